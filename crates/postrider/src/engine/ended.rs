//! A claim that ended, what it comes to, and what is told of it once the store has it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::attempt::{CutOff, Finished};
use super::events::{Events, Happening};
use super::journal::{self, About, Journal, Line};
use super::lane::Lane;
use super::settlement;
use super::spans::Settling;
use crate::message::{Claim, State};
use crate::protocol::max_attempts_option;
use crate::retry::RetryPolicy;
use crate::settings::Settings;
use crate::store::{Effect, End, Settled, Settlement};
use crate::verdict::{Outcome, Standing, Verdict, endpoint_hold, verdict};

pub(super) struct Ended {
    pub(super) settlement: Settlement,
    /// When it is next due, if it goes back to pending.
    pub(super) due_at: Option<Timestamp>,
    /// So often the store could not settle it.
    pub(super) postponed: u32,
    /// None when nobody listens and nobody reads its line.
    report: Option<Box<Report>>,
    /// Its span, while spans are made.
    settling: Option<Settling>,
}

struct Report {
    endpoint: Arc<str>,
    attempt: u32,
    outcome: Option<Outcome>,
    duration: Option<Duration>,
    age: Duration,
    about: About,
}

impl Ended {
    pub(super) fn attempted(
        finished: Finished,
        lane: &Lane,
        settings: &Settings,
        now: Timestamp,
        anybody_listens: bool,
    ) -> Self {
        let verdict = judge(&finished.claim, &finished.outcome, lane, now);
        let hold = endpoint_hold(&finished.outcome, settings.retry_max_delay, now);
        Self::judged(finished, verdict, hold, now, anybody_listens)
    }

    /// Its endpoint was dropped meanwhile, and its message cancelled. What the receiver acknowledged is recorded all the
    /// same; of everything else the store forgets the claim.
    pub(super) fn attempted_in_vain(finished: Finished, now: Timestamp, anybody_listens: bool) -> Self {
        match finished.outcome {
            Outcome::Delivered(_) => Self::judged(finished, Verdict::Complete, None, now, anybody_listens),
            Outcome::Failed(_) | Outcome::Lost { .. } | Outcome::CutOff => {
                Self::given_back(&finished.claim, now)
            }
        }
    }

    fn judged(
        mut finished: Finished,
        verdict: Verdict,
        hold: Option<Timestamp>,
        now: Timestamp,
        anybody_listens: bool,
    ) -> Self {
        let due_at = match &verdict {
            Verdict::Retry { due_at } | Verdict::Spare { due_at } => Some(*due_at),
            Verdict::Complete | Verdict::Dead { .. } | Verdict::Expire => None,
        };
        let is_told = anybody_listens || journal::is_wanted(&verdict);
        let settlement = settlement::of_attempt(&finished, verdict, hold);
        let settling = finished.settling.take();
        let report = is_told.then(|| {
            Box::new(Report {
                endpoint: finished.endpoint.name.clone(),
                attempt: finished.claim.attempt,
                duration: Some(finished.duration),
                age: age(&finished.claim, now),
                about: About::of(&finished.claim.message),
                outcome: Some(finished.outcome),
            })
        });
        Self { settlement, due_at, postponed: 0, report, settling }
    }

    /// The receiver may have it, and the node waits for its answer no longer.
    pub(super) fn cut_off(cut: &CutOff, lane: &Lane, now: Timestamp) -> Self {
        let verdict = judge(&cut.claim, &Outcome::CutOff, lane, now);
        let settlement = settlement::of_cut_off(cut, verdict, now);
        Self { settlement, due_at: None, postponed: 0, report: None, settling: None }
    }

    /// It was not begun, and does not count.
    pub(super) fn given_back(claim: &Claim, now: Timestamp) -> Self {
        let settlement = settlement::with_end(claim, End::Released);
        Self { settlement, due_at: Some(now), postponed: 0, report: None, settling: None }
    }

    /// Between claim and start.
    pub(super) fn expired(claim: &Claim, lane: Option<&Lane>, now: Timestamp) -> Self {
        let settlement = settlement::with_end(claim, End::ExpiredUnstarted);
        let report = lane.filter(|_| journal::is_enabled(State::Expired)).map(|lane| {
            Box::new(Report {
                endpoint: lane.endpoint.name.clone(),
                attempt: claim.attempt.saturating_sub(1),
                outcome: None,
                duration: None,
                age: age(claim, now),
                about: About::of(&claim.message),
            })
        });
        Self { settlement, due_at: None, postponed: 0, report, settling: None }
    }

    pub(super) fn tell(self, settled: Settled, events: &Events, journal: &Journal) {
        if let Some(settling) = self.settling {
            settling.end(settled.effect);
        }
        let (Some(report), Effect::Applied(state)) = (self.report, settled.effect) else { return };
        let (class, error, status) = match report.outcome {
            Some(Outcome::Delivered(receipt)) => (None, None, receipt.status),
            Some(Outcome::Failed(failure)) => (Some(failure.class), Some(failure.tagged()), failure.status),
            Some(Outcome::Lost { .. } | Outcome::CutOff) | None => (None, None, None),
        };
        if events.anybody_listens()
            && let Some(duration) = report.duration
        {
            let happening = Happening::Attempted {
                message: settled.id,
                attempt: report.attempt,
                event_type: report.about.event_type.as_deref().map(Arc::from),
                state,
                class,
                error: error.clone(),
                status,
                duration,
                age: report.age,
            };
            events.tell_named(settled.endpoint, report.endpoint.clone(), happening);
        }
        if journal::is_enabled(state) {
            journal.put(Line {
                message: settled.id,
                endpoint: report.endpoint,
                state,
                attempt: report.attempt,
                class,
                error,
                status,
                duration: report.duration,
                age: Some(report.age),
                about: report.about,
            });
        }
    }
}

fn age(claim: &Claim, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(claim.message.created_at)).unwrap_or_default()
}

fn judge(claim: &Claim, outcome: &Outcome, lane: &Lane, now: Timestamp) -> Verdict {
    let standing = Standing {
        budget_used: claim.budget_used(),
        losses: claim.losses,
        expires_at: claim.message.expires_at,
        auto_disable_on_gone: lane.endpoint.protocol.auto_disable_on_gone(&lane.endpoint.config),
    };
    let decide = |policy: &RetryPolicy| verdict(outcome, standing, policy, now, rand::random());
    match max_attempts_option(&claim.message.options) {
        None => decide(&lane.policy),
        own => decide(&lane.policy.limited_to(own)),
    }
}
