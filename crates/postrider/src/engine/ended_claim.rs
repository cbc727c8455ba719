//! A claim that ended: the settlement for the store, and what is reported once the store has it.

use std::sync::Arc;

use jiff::Timestamp;

use super::attempt::{CutOffAttempt, FinishedAttempt};
use super::endpoint_state::EndpointState;
use super::events::{EngineEventKind, Events};
use super::settlement;
use super::spans::SettleSpan;
use crate::message::{Claim, State};
use crate::outcome_log::{self, OutcomeLine, OutcomeLog};
use crate::settings::Settings;
use crate::store::{Effect, End, Settled, Settlement};
use crate::verdict::{AttemptContext, Outcome, Verdict, endpoint_hold};

pub(super) struct EndedClaim {
    pub(super) settlement: Settlement,
    /// When the message is next due, if it becomes pending again.
    pub(super) due_at: Option<Timestamp>,
    /// How often the store could not settle it.
    pub(super) postponed: u32,
    /// None when no event listener and no log wants it.
    line: Option<Box<OutcomeLine>>,
    span: Option<SettleSpan>,
}

impl EndedClaim {
    pub(super) fn attempted(
        finished: FinishedAttempt,
        state: &EndpointState,
        settings: &Settings,
        now: Timestamp,
        has_listeners: bool,
    ) -> Self {
        let verdict = judge(&finished.claim, &finished.outcome, state, now);
        let hold = endpoint_hold(&finished.outcome, settings.retry_max_delay, now);
        Self::judged(finished, verdict, hold, now, has_listeners)
    }

    /// The endpoint was dropped during the attempt, which cancelled the message. A delivery is still recorded; any other
    /// outcome is not.
    pub(super) fn attempted_for_dropped(
        finished: FinishedAttempt,
        now: Timestamp,
        has_listeners: bool,
    ) -> Self {
        match finished.outcome {
            Outcome::Delivered(_) => Self::judged(finished, Verdict::Complete, None, now, has_listeners),
            Outcome::Failed(_) | Outcome::Lost { .. } | Outcome::CutOff => {
                Self::released(&finished.claim, now)
            }
        }
    }

    fn judged(
        finished: FinishedAttempt,
        verdict: Verdict,
        hold: Option<Timestamp>,
        now: Timestamp,
        has_listeners: bool,
    ) -> Self {
        let (state, due_at) = match &verdict {
            Verdict::Complete => (State::Completed, None),
            Verdict::Retry { due_at, .. } | Verdict::Spare { due_at } => (State::Pending, Some(*due_at)),
            Verdict::Dead { .. } => (State::Dead, None),
            Verdict::Expire => (State::Expired, None),
        };
        let is_reported = has_listeners || outcome_log::is_enabled(state);
        let line = is_reported.then(|| Box::new(line(&finished, state, now)));
        let settlement = settlement::of_attempt(&finished, verdict, hold);
        Self { line, span: finished.settle_span, ..Self::unreported(settlement, due_at) }
    }

    /// The node stops and does not wait for the receiver's answer any longer. The receiver may have the message.
    pub(super) fn cut_off(cut: &CutOffAttempt, state: &EndpointState, now: Timestamp) -> Self {
        let verdict = judge(&cut.claim, &Outcome::CutOff, state, now);
        Self::unreported(settlement::of_cut_off(cut, verdict, now), None)
    }

    /// No attempt was started, and none is counted.
    pub(super) fn released(claim: &Claim, now: Timestamp) -> Self {
        Self::unreported(settlement::with_end(claim, End::Released), Some(now))
    }

    /// Between claim and start.
    pub(super) fn expired(claim: &Claim, state: Option<&EndpointState>, now: Timestamp) -> Self {
        let line = state.filter(|_| outcome_log::is_enabled(State::Expired)).map(|state| {
            let attempts = claim.attempt.saturating_sub(1);
            let name = state.endpoint.name.clone();
            Box::new(OutcomeLine::of_message(&claim.message, name, State::Expired, attempts, now))
        });
        let settlement = settlement::with_end(claim, End::ExpiredUnstarted);
        Self { line, ..Self::unreported(settlement, None) }
    }

    fn unreported(settlement: Settlement, due_at: Option<Timestamp>) -> Self {
        Self { settlement, due_at, postponed: 0, line: None, span: None }
    }

    pub(super) fn report(self, settled: Settled, events: &Events, outcome_log: &OutcomeLog) {
        if let Some(span) = self.span {
            span.end(settled.effect);
        }
        let (Some(mut line), Effect::Applied(state)) = (self.line, settled.effect) else { return };
        line.state = state;
        if events.has_listeners()
            && let (Some(duration), Some(age)) = (line.duration, line.age)
        {
            let kind = EngineEventKind::Attempted {
                message: settled.id,
                attempt: line.attempt,
                event_type: line.event_type.as_deref().map(Arc::from),
                state,
                class: line.class,
                error: line.error.clone(),
                response_status: line.response_status,
                duration,
                age,
            };
            events.send(settled.endpoint, line.endpoint.clone(), kind);
        }
        if outcome_log::is_enabled(state) {
            outcome_log.put(*line);
        }
    }
}

/// `state` is what the verdict leads to; the store has the last word.
fn line(finished: &FinishedAttempt, state: State, now: Timestamp) -> OutcomeLine {
    let (class, error, status) = match &finished.outcome {
        Outcome::Delivered(receipt) => (None, None, receipt.status),
        Outcome::Failed(failure) => (Some(failure.class), Some(failure.tagged()), failure.status),
        Outcome::Lost { .. } | Outcome::CutOff => (None, None, None),
    };
    let (claim, name) = (&finished.claim, finished.endpoint.name.clone());
    OutcomeLine {
        class,
        error,
        response_status: status,
        duration: Some(finished.duration),
        ..OutcomeLine::of_message(&claim.message, name, state, claim.attempt, now)
    }
}

fn judge(claim: &Claim, outcome: &Outcome, state: &EndpointState, now: Timestamp) -> Verdict {
    let context = AttemptContext {
        budget_used: claim.budget_used(),
        losses: claim.losses,
        expires_at: claim.message.expires_at,
        auto_disable_on_gone: state.endpoint.config.auto_disable_on_gone(),
    };
    settlement::decide(outcome, context, &state.policy, &claim.message.options, now)
}
