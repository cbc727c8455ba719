//! A claim that ended, what it comes to, and what is told of it once the store has it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::attempt::Finished;
use super::events::{Events, Happening};
use super::lane::Lane;
use super::settlement;
use crate::message::Claim;
use crate::protocol::max_attempts_option;
use crate::retry::RetryPolicy;
use crate::settings::Settings;
use crate::store::{Effect, End, Settled, Settlement};
use crate::verdict::{Outcome, Standing, Verdict, endpoint_hold, verdict};

pub(super) struct Ended {
    pub(super) settlement: Settlement,
    /// When it is next due, if it goes back to pending.
    pub(super) due_at: Option<Timestamp>,
    report: Option<Report>,
}

struct Report {
    endpoint: Arc<str>,
    attempt: u32,
    event_type: Option<Arc<str>>,
    outcome: Outcome,
    duration: Duration,
    age: Duration,
}

impl Ended {
    pub(super) fn attempted(
        finished: Finished,
        lane: &Lane,
        settings: &Settings,
        now: Timestamp,
        anybody_listens: bool,
    ) -> Self {
        let verdict = judge(&finished, lane, now);
        let due_at = match &verdict {
            Verdict::Retry { due_at } | Verdict::Spare { due_at } => Some(*due_at),
            Verdict::Complete | Verdict::Dead { .. } | Verdict::Expire => None,
        };
        let hold = endpoint_hold(&finished.outcome, settings.retry_max_delay, now);
        let settlement = settlement::of_attempt(&finished, verdict, hold);
        let report = anybody_listens.then(|| Report {
            endpoint: lane.endpoint.name.clone(),
            attempt: finished.claim.attempt,
            event_type: finished.claim.message.event_type.as_deref().map(Arc::from),
            duration: finished.duration,
            age: Duration::try_from(now.duration_since(finished.claim.message.created_at))
                .unwrap_or_default(),
            outcome: finished.outcome,
        });
        Self { settlement, due_at, report }
    }

    /// It was not begun, and does not count.
    pub(super) fn given_back(claim: &Claim, now: Timestamp) -> Self {
        let settlement = settlement::with_end(claim, End::Released);
        Self { settlement, due_at: Some(now), report: None }
    }

    /// Between claim and start.
    pub(super) fn expired(claim: &Claim) -> Self {
        let settlement = settlement::with_end(claim, End::ExpiredUnstarted);
        Self { settlement, due_at: None, report: None }
    }

    pub(super) fn tell(self, settled: Settled, events: &Events) {
        let (Some(report), Effect::Applied(state)) = (self.report, settled.effect) else { return };
        let (class, error, status) = match report.outcome {
            Outcome::Delivered(receipt) => (None, None, receipt.status),
            Outcome::Failed(failure) => (Some(failure.class), Some(failure.tagged()), failure.status),
            Outcome::Lost { .. } => (None, None, None),
        };
        let happening = Happening::Attempted {
            message: settled.id,
            attempt: report.attempt,
            event_type: report.event_type,
            state,
            class,
            error,
            status,
            duration: report.duration,
            age: report.age,
        };
        events.tell_named(settled.endpoint, report.endpoint, happening);
    }
}

fn judge(finished: &Finished, lane: &Lane, now: Timestamp) -> Verdict {
    let standing = Standing {
        budget_used: finished.claim.budget_used(),
        expires_at: finished.claim.message.expires_at,
        auto_disable_on_gone: lane.endpoint.protocol.auto_disable_on_gone(&lane.endpoint.config),
    };
    let decide = |policy: &RetryPolicy| verdict(&finished.outcome, standing, policy, now, rand::random());
    match max_attempts_option(&finished.claim.message.options) {
        None => decide(&lane.policy),
        own => decide(&lane.policy.limited_to(own)),
    }
}
