//! What a node says instead of yes, as the error that its store would have given; and what others say in its place.

use http::StatusCode;
use postrider::StoreError;
use postrider::error::{LIMITS, known_word};

use super::Remote;
use super::asking::NodeRequest;
use crate::view::ProblemView;

impl Remote {
    pub(super) fn refusal(&self, asked: &NodeRequest, status: StatusCode, document: &[u8]) -> StoreError {
        let Ok(problem) = serde_json::from_slice::<ProblemView>(document) else {
            return self.not_by_a_node(asked, status);
        };
        if let Some(error) = problem.error() {
            return error;
        }
        let said = match &problem.detail {
            Some(detail) => format!("{}: {detail}", problem.title),
            None => problem.title.to_string(),
        };
        match problem.kind.as_ref() {
            "unauthorized" if self.authorization.is_none() => StoreError::Denied(format!(
                "{self} asks for a token, and the variable {} is not set, or empty",
                self.token_env
            )),
            "unauthorized" => {
                StoreError::Denied(format!("{self} does not take the token in {}", self.token_env))
            }
            "forbidden" if self.authorization.is_some() => {
                let why = problem.detail.unwrap_or_default();
                StoreError::Denied(format!("the token in {} is not for this: {why}", self.token_env))
            }
            "forbidden" => StoreError::Denied(said),
            "too-large" => StoreError::TooLarge {
                field: "payload",
                bytes: asked.bytes(),
                limit: problem.limit.unwrap_or_default(),
                setting: match problem.setting.as_deref() {
                    Some(setting) if LIMITS.contains(&setting) => known_word(&LIMITS, Some(setting)),
                    _ => "the API",
                },
            },
            "too-many-bodies" | "too-many-requests" => StoreError::Unavailable(said),
            "unknown-route" | "wrong-method" => {
                StoreError::Unusable(format!("{self} runs another version of Postrider. {said}"))
            }
            _ => StoreError::Unusable(format!("{self} did not understand what it was asked for. {said}")),
        }
    }

    /// A proxy before a node that is not there, or something else altogether.
    fn not_by_a_node(&self, asked: &NodeRequest, status: StatusCode) -> StoreError {
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                let why = format!("something before it answered {status}");
                if asked.changes() { self.uncertain(&why) } else { self.unreachable(&why) }
            }
            status if status.is_redirection() => StoreError::Unusable(format!(
                "{self} answered {status}; redirects are not followed, so --url must be the node's own address"
            )),
            status => self.foreign(status),
        }
    }

    pub(super) fn foreign(&self, status: StatusCode) -> StoreError {
        StoreError::Unusable(format!(
            "{self} answered {status}, and not as a node does; --url must be the address of a node"
        ))
    }

    pub(super) fn unreachable(&self, why: &str) -> StoreError {
        StoreError::Unreachable(format!("cannot reach a node at {self}: {why}"))
    }

    pub(super) fn uncertain(&self, why: &str) -> StoreError {
        StoreError::Uncertain(format!("no answer came from {self} ({why}): whether it was done is not known"))
    }
}
