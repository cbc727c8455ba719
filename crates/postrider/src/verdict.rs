//! The one retry-or-dead decision: what one attempt's outcome makes of its message. Pure.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::retry::RetryPolicy;

/// The longest that a `Retry-After` can put off a message.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// What kind of failure it was; decides whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Trying again may help: timeouts, connections, 5xx, a lost lease.
    Retryable,
    /// Trying again cannot help: refused, malformed, too large.
    Permanent,
    /// The receiver says it is gone for good (410).
    Gone,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Permanent => "permanent",
            Self::Gone => "gone",
        }
    }

    /// How `last_error` begins.
    pub fn tag(self) -> &'static str {
        match self {
            Self::Retryable => "[RETRYABLE]",
            Self::Permanent => "[PERMANENT]",
            Self::Gone => "[DISABLE]",
        }
    }
}

/// What the receiver said when it acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    pub status: Option<u16>,
    /// The captured answer, when capturing is on.
    pub body: Option<Bytes>,
}

/// Why one attempt did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub class: Class,
    /// A sentence without the class tag.
    pub error: String,
    pub status: Option<u16>,
    /// What the receiver asked for (429 and 503).
    pub retry_after: Option<Duration>,
    pub body: Option<Bytes>,
}

impl Failure {
    pub fn new(class: Class, error: impl Into<String>) -> Self {
        Self { class, error: error.into(), status: None, retry_after: None, body: None }
    }

    pub fn retryable(error: impl Into<String>) -> Self {
        Self::new(Class::Retryable, error)
    }

    pub fn permanent(error: impl Into<String>) -> Self {
        Self::new(Class::Permanent, error)
    }

    pub fn tagged(&self) -> String {
        format!("{} {}", self.class.tag(), self.error)
    }

    /// Does it speak about the endpoint's health? A busy receiver and a bad message do not.
    pub fn counts_for_breaker(&self) -> bool {
        match self.class {
            Class::Retryable => self.status != Some(429),
            Class::Permanent | Class::Gone => false,
        }
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered(Receipt),
    Failed(Failure),
    /// The node's lease ran out, or the attempt was never settled. `alone`: nothing else was in
    /// flight on that node, so this message is the one to blame.
    Lost {
        alone: bool,
    },
    /// The node stopped before the receiver answered.
    CutOff,
}

/// What is known of a message when its attempt ends.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Attempts of the current budget, this one included.
    pub budget_used: u32,
    /// How often a claim of it was lost before this attempt.
    pub losses: u32,
    pub expires_at: Option<Timestamp>,
    pub auto_disable_on_gone: bool,
}

/// What becomes of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Complete,
    Retry {
        due_at: Timestamp,
    },
    /// Tried again; the number of this attempt is used, its budget is not. It was lost with others around it on its last
    /// attempt, or cut off by a clean stop.
    Spare {
        due_at: Timestamp,
    },
    Dead {
        reason: DeadReason,
        disable_endpoint: bool,
    },
    Expire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    AttemptsExhausted,
    Permanent,
    Gone,
}

impl DeadReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Permanent => "permanent",
            Self::Gone => "gone",
        }
    }
}

/// Until when the receiver wants to be left alone (`Retry-After`), whatever becomes of the message: at most
/// `retry_max_delay` from now.
pub fn endpoint_hold(outcome: &Outcome, retry_max_delay: Duration, now: Timestamp) -> Option<Timestamp> {
    match outcome {
        Outcome::Failed(failure) => failure.retry_after.map(|delay| now + delay.min(retry_max_delay)),
        Outcome::Delivered(_) | Outcome::Lost { .. } | Outcome::CutOff => None,
    }
}

pub fn verdict(
    outcome: &Outcome,
    standing: Standing,
    policy: &RetryPolicy,
    now: Timestamp,
    dice: f64,
) -> Verdict {
    let failure = match outcome {
        Outcome::Delivered(_) => return Verdict::Complete,
        Outcome::Failed(failure) => Some(failure),
        Outcome::Lost { .. } | Outcome::CutOff => None,
    };
    let class = failure.map_or(Class::Retryable, |failure| failure.class);
    // What a 410 says about the endpoint must not be lost with the message that heard it.
    let disables = class == Class::Gone && standing.auto_disable_on_gone;
    if standing.expires_at.is_some_and(|at| at <= now) && !disables {
        return Verdict::Expire;
    }
    match class {
        Class::Gone => Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: disables },
        Class::Permanent => Verdict::Dead { reason: DeadReason::Permanent, disable_endpoint: false },
        Class::Retryable => {
            let asked = failure.and_then(|failure| failure.retry_after);
            retry_or_dead(outcome, standing, policy, asked, now, dice)
        }
    }
}

fn retry_or_dead(
    outcome: &Outcome,
    standing: Standing,
    policy: &RetryPolicy,
    asked: Option<Duration>,
    now: Timestamp,
    dice: f64,
) -> Verdict {
    let delay = match (asked, outcome) {
        (Some(delay), _) => delay.min(RETRY_AFTER_MAX),
        // It speaks of the node, not of the message.
        (None, Outcome::CutOff) => Duration::ZERO,
        (None, Outcome::Lost { .. }) if standing.losses == 0 => Duration::ZERO,
        (None, Outcome::Lost { .. } | Outcome::Failed(_) | Outcome::Delivered(_)) => {
            policy.delay(standing.budget_used.saturating_sub(1), dice)
        }
    };
    let due_at = now + delay;
    let is_last = !policy.allows_another(standing.budget_used);
    let may_start_once = policy.max_attempts == 1;
    match outcome {
        Outcome::CutOff if !may_start_once => Verdict::Spare { due_at },
        // Only a message that was alone can die of lost leases, or poison would take its neighbours along.
        Outcome::Lost { alone: false } if is_last && !may_start_once => Verdict::Spare { due_at },
        Outcome::CutOff | Outcome::Lost { .. } | Outcome::Failed(_) | Outcome::Delivered(_) if is_last => {
            Verdict::Dead { reason: DeadReason::AttemptsExhausted, disable_endpoint: false }
        }
        Outcome::CutOff | Outcome::Lost { .. } | Outcome::Failed(_) | Outcome::Delivered(_) => {
            Verdict::Retry { due_at }
        }
    }
}
