//! The retry-or-dead decision: from the outcome of an attempt to the fate of its message. Pure.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::retry::RetryPolicy;

/// A longer `Retry-After` is cut to this.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// The kind of a failure, which decides whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Trying again may help: timeouts, failed connections, a failing receiver, a lost lease.
    Retryable,
    /// Trying again cannot help: refused, malformed, too large.
    Permanent,
    /// The receiver says it is gone for good.
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

    /// The beginning of `last_error`.
    pub fn tag(self) -> &'static str {
        match self {
            Self::Retryable => "[RETRYABLE]",
            Self::Permanent => "[PERMANENT]",
            Self::Gone => "[DISABLE]",
        }
    }
}

/// The receiver's acknowledgement. MQTT with QoS 0 has none: the message was written, and nobody confirmed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    pub status: Option<u16>,
    /// The captured answer, when capturing is on.
    pub body: Option<Bytes>,
}

/// What a failed attempt says about the receiver, as its protocol judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiverHealth {
    /// Nothing: the message was refused, or the endpoint is gone.
    Unknown,
    /// It works, and wants fewer messages at a time.
    Busy,
    /// It does not work: this counts for the circuit breaker.
    Failing,
    /// It does not work, and fewer messages at a time may help.
    Overloaded,
}

/// Why one attempt did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub class: Class,
    pub receiver: ReceiverHealth,
    /// A sentence without the class tag.
    pub error: String,
    /// No answer came after the message was handed over, so the receiver may have it.
    pub ambiguous: bool,
    /// What the protocol calls the answer; only shown.
    pub status: Option<u16>,
    /// The receiver asked not to be tried again before.
    pub retry_after: Option<Duration>,
    pub body: Option<Bytes>,
}

impl Failure {
    pub fn new(class: Class, error: impl Into<String>) -> Self {
        let receiver = match class {
            Class::Retryable => ReceiverHealth::Failing,
            Class::Permanent | Class::Gone => ReceiverHealth::Unknown,
        };
        let error = error.into();
        Self { class, receiver, error, ambiguous: false, status: None, retry_after: None, body: None }
    }

    pub fn retryable(error: impl Into<String>) -> Self {
        Self::new(Class::Retryable, error)
    }

    pub fn timed_out(after: Duration) -> Self {
        let error = format!("timed out after {} s", after.as_secs_f64());
        Self { receiver: ReceiverHealth::Overloaded, ..Self::retryable(error) }
    }

    pub fn permanent(error: impl Into<String>) -> Self {
        Self::new(Class::Permanent, error)
    }

    pub fn tagged(&self) -> String {
        format!("{} {}", self.class.tag(), self.error)
    }

    pub fn counts_for_breaker(&self) -> bool {
        match self.receiver {
            ReceiverHealth::Failing | ReceiverHealth::Overloaded => true,
            ReceiverHealth::Unknown | ReceiverHealth::Busy => false,
        }
    }

    /// Should fewer attempts run at a time?
    pub fn is_overload(&self) -> bool {
        match self.receiver {
            ReceiverHealth::Busy | ReceiverHealth::Overloaded => true,
            ReceiverHealth::Unknown | ReceiverHealth::Failing => false,
        }
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered(Receipt),
    Failed(Failure),
    /// The node's lease ran out, or the attempt was not settled in time. `alone`: nothing else was in flight on that
    /// node, so this message is to blame.
    Lost {
        alone: bool,
    },
    /// The node stopped before the receiver answered.
    CutOff,
}

/// What the decision needs to know about the message.
#[derive(Clone, Copy, Debug)]
pub struct AttemptContext {
    /// Attempts of the current budget, this one included.
    pub budget_used: u32,
    /// How many of its claims were lost before this attempt.
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
        /// The receiver asked for this time (`Retry-After`); the policy did not choose it.
        asked: bool,
    },
    /// A retry that does not use the budget, though the attempt number is used: a clean stop cut the attempt off, or the
    /// message lost its last attempt together with other messages.
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

/// Until when a `Retry-After` holds back the endpoint's other messages: at most `retry_max_delay` from now.
pub fn endpoint_hold(outcome: &Outcome, retry_max_delay: Duration, now: Timestamp) -> Option<Timestamp> {
    match outcome {
        Outcome::Failed(failure) => failure.retry_after.map(|delay| now + delay.min(retry_max_delay)),
        Outcome::Delivered(_) | Outcome::Lost { .. } | Outcome::CutOff => None,
    }
}

pub fn verdict(
    outcome: &Outcome,
    context: AttemptContext,
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
    // A 410 disables the endpoint even if the message has expired.
    let disables = class == Class::Gone && context.auto_disable_on_gone;
    if context.expires_at.is_some_and(|at| at <= now) && !disables {
        return Verdict::Expire;
    }
    match class {
        Class::Gone => Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: disables },
        Class::Permanent => Verdict::Dead { reason: DeadReason::Permanent, disable_endpoint: false },
        Class::Retryable => {
            let asked = failure.and_then(|failure| failure.retry_after);
            retry_or_dead(outcome, context, policy, asked, now, dice)
        }
    }
}

fn retry_or_dead(
    outcome: &Outcome,
    context: AttemptContext,
    policy: &RetryPolicy,
    asked: Option<Duration>,
    now: Timestamp,
    dice: f64,
) -> Verdict {
    let delay = match (asked, outcome) {
        (Some(delay), _) => delay.min(RETRY_AFTER_MAX),
        // The node stopped; that says nothing about the message.
        (None, Outcome::CutOff) => Duration::ZERO,
        (None, Outcome::Lost { .. }) if context.losses == 0 => Duration::ZERO,
        (None, Outcome::Lost { .. } | Outcome::Failed(_) | Outcome::Delivered(_)) => {
            policy.delay(context.budget_used.saturating_sub(1), dice)
        }
    };
    let due_at = now + delay;
    let is_last = !policy.allows_another(context.budget_used);
    let may_start_once = policy.max_attempts == 1;
    match outcome {
        Outcome::CutOff if !may_start_once => Verdict::Spare { due_at },
        // Only a message that was alone can die of lost leases; otherwise one poisonous message would kill others.
        Outcome::Lost { alone: false } if is_last && !may_start_once => Verdict::Spare { due_at },
        Outcome::CutOff | Outcome::Lost { .. } | Outcome::Failed(_) | Outcome::Delivered(_) if is_last => {
            Verdict::Dead { reason: DeadReason::AttemptsExhausted, disable_endpoint: false }
        }
        Outcome::CutOff | Outcome::Lost { .. } | Outcome::Failed(_) | Outcome::Delivered(_) => {
            Verdict::Retry { due_at, asked: asked.is_some() }
        }
    }
}
