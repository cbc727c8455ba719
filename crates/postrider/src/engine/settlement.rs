//! From the outcome of an attempt to the settlement that the store gets.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::attempt::{CutOffAttempt, FinishedAttempt};
use crate::message::{Claim, LostClaim, NodeId};
use crate::protocol::MessageOptions;
use crate::retry::RetryPolicy;
use crate::store::{AttemptOutcome, AttemptRecord, End, Settlement};
use crate::verdict::{AttemptContext, Class, Outcome, Verdict, verdict};

pub(super) const LEASE_EXPIRED: &str = "lease expired";
const CUT_OFF: &str = "the node stopped before the receiver answered";

/// The verdict under the endpoint's policy, or under the message's own `max_attempts`.
pub(super) fn decide(
    outcome: &Outcome,
    context: AttemptContext,
    policy: &RetryPolicy,
    options: &Map<String, Value>,
    now: Timestamp,
) -> Verdict {
    match MessageOptions::of(options).max_attempts {
        None => verdict(outcome, context, policy, now, rand::random()),
        own => verdict(outcome, context, &policy.limited_to(own), now, rand::random()),
    }
}

pub(super) fn of_attempt(
    finished: &FinishedAttempt,
    verdict: Verdict,
    hold_endpoint_until: Option<Timestamp>,
) -> Settlement {
    let mut record = AttemptRecord {
        number: finished.claim.attempt,
        node: finished.claim.fence.node,
        started_at: finished.started_at,
        duration: finished.duration,
        outcome: AttemptOutcome::Delivered,
        class: None,
        error: None,
        response_status: None,
        response_body: None,
    };
    match &finished.outcome {
        Outcome::Delivered(receipt) => {
            record.response_status = receipt.status;
            record.response_body = receipt.body.clone();
        }
        Outcome::Failed(failure) => {
            record.outcome = AttemptOutcome::Failed;
            record.class = Some(failure.class);
            record.error = Some(failure.tagged());
            record.response_status = failure.status;
            record.response_body = failure.body.clone();
        }
        Outcome::Lost { .. } | Outcome::CutOff => unreachable!("an attempt that finished has a result"),
    }
    Settlement { hold_endpoint_until, ..with_end(&finished.claim, End::Attempted { verdict, record }) }
}

pub(super) fn of_cut_off(cut: &CutOffAttempt, verdict: Verdict, now: Timestamp) -> Settlement {
    let CutOffAttempt { claim, started_at } = cut;
    let record = AttemptRecord {
        outcome: AttemptOutcome::Failed,
        ..without_answer(claim.attempt, claim.fence.node, *started_at, now, CUT_OFF)
    };
    with_end(claim, End::Attempted { verdict, record })
}

pub(super) fn of_lost(claim: &LostClaim, verdict: Verdict, now: Timestamp) -> Settlement {
    let record = without_answer(claim.attempt, claim.fence.node, claim.started_at, now, LEASE_EXPIRED);
    Settlement {
        id: claim.id,
        endpoint: claim.endpoint,
        fence: claim.fence,
        end: End::Attempted { verdict, record },
        hold_endpoint_until: None,
    }
}

pub(super) fn with_end(claim: &Claim, end: End) -> Settlement {
    let (id, endpoint) = (claim.message.id, claim.message.endpoint);
    Settlement { id, endpoint, fence: claim.fence, end, hold_endpoint_until: None }
}

fn without_answer(
    number: u32,
    node: NodeId,
    started_at: Timestamp,
    now: Timestamp,
    why: &str,
) -> AttemptRecord {
    AttemptRecord {
        number,
        node,
        started_at,
        duration: Duration::try_from(now.duration_since(started_at)).unwrap_or_default(),
        outcome: AttemptOutcome::Lost,
        class: Some(Class::Retryable),
        error: Some(format!("{} {why}", Class::Retryable.tag())),
        response_status: None,
        response_body: None,
    }
}
