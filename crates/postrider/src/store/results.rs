//! What attempts at an endpoint came to: a node adds it up and tells the store about once a second, so that no delivery
//! writes it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::verdict::{Class, Outcome};

/// What attempts at one endpoint came to since the store was told last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    pub delivered: u64,
    /// Failed attempts, by class.
    pub retryable: u64,
    pub permanent: u64,
    pub gone: u64,
    /// Claims that were lost with a node, or not settled in time.
    pub lost: u64,
    /// Failed attempts after the last delivery among these; all of them when there is none.
    pub failed_since: u64,
    pub last_success_at: Option<Timestamp>,
    /// With its error.
    pub last_failure: Option<(Timestamp, String)>,
}

impl Results {
    pub(crate) fn add(&mut self, outcome: &Outcome, at: Timestamp) {
        match outcome {
            Outcome::Delivered(_) => {
                self.delivered += 1;
                self.failed_since = 0;
                self.last_success_at = Some(at);
            }
            Outcome::Failed(failure) => {
                match failure.class {
                    Class::Retryable => self.retryable += 1,
                    Class::Permanent => self.permanent += 1,
                    Class::Gone => self.gone += 1,
                }
                self.failed_since += 1;
                self.last_failure = Some((at, failure.tagged()));
            }
            Outcome::Lost { .. } => self.lost += 1,
            // Its outcome is unknown, and it cost no attempt.
            Outcome::CutOff => {}
        }
    }

    /// These, and those that came after them.
    pub(crate) fn then(self, later: Self) -> Self {
        let before = if later.last_success_at.is_some() { 0 } else { self.failed_since };
        Self {
            delivered: self.delivered + later.delivered,
            retryable: self.retryable + later.retryable,
            permanent: self.permanent + later.permanent,
            gone: self.gone + later.gone,
            lost: self.lost + later.lost,
            failed_since: before + later.failed_since,
            last_success_at: later.last_success_at.or(self.last_success_at),
            last_failure: later.last_failure.or(self.last_failure),
        }
    }
}

/// How attempts at an endpoint went, but for those of the last second or so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndpointHealth {
    /// Attempts since the endpoint was created or imported.
    pub delivered: u64,
    /// Lost ones among them.
    pub failed: u64,
    /// Failed attempts since the last success.
    pub consecutive_failures: u64,
    pub last_success_at: Option<Timestamp>,
    pub last_failure_at: Option<Timestamp>,
    /// Of the last failure.
    pub last_error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Failure;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// `d` is delivered, `f` fails, `l` is lost.
    fn results(outcomes: &str, from: i64) -> Results {
        let mut results = Results::default();
        for (outcome, second) in outcomes.chars().zip(from..) {
            let outcome = match outcome {
                'd' => Outcome::Delivered(Default::default()),
                'f' => Outcome::Failed(Failure::retryable(format!("failure {second}"))),
                _ => Outcome::Lost { alone: false },
            };
            results.add(&outcome, at(second));
        }
        results
    }

    #[test]
    fn what_is_told_in_parts_is_what_is_told_at_once() {
        for whole in ["", "d", "f", "dff", "ffd", "fdfldf", "ffff", "lfdl"] {
            for split in 0..=whole.len() {
                let (first, then) = whole.split_at(split);
                let parts = results(first, 0).then(results(then, split as i64));
                assert_eq!(parts, results(whole, 0), "{first} then {then}");
            }
        }
        assert_eq!(results("fdff", 0).failed_since, 2);
    }
}
