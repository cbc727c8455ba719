//! A refusal as JSON (RFC 9457), and back: a command gets the same error from a node as from its store.

use std::borrow::Cow;

use http::StatusCode;
use postrider::error::{FIELDS, LIMITS, THINGS, known_word};
use postrider::{Invalid, MessageId, StoreError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

const URN: &str = "urn:postrider:problem:";

/// Why a request was refused (RFC 9457).
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemView {
    /// `urn:postrider:problem:…`; docs/api.md lists them.
    #[serde(rename = "type", serialize_with = "as_urn", deserialize_with = "from_urn")]
    pub(crate) kind: Cow<'static, str>,
    pub(crate) title: Cow<'static, str>,
    pub(crate) status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// The field that broke a rule, as a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// The line of a batch that was refused, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
    /// The code that names the same error in SQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sqlstate: Option<Cow<'static, str>>,
    /// What does not exist, or exists already: `endpoint`, `message`, `event type` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) what: Option<Cow<'static, str>>,
    /// Its name or id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The endpoint that is disabled, or whose queue is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// The message that has the idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_id: Option<i64>,
    /// How large it is: bytes, or messages of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// How many messages are queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queued: Option<u64>,
    /// How much is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
    /// The setting that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) setting: Option<Cow<'static, str>>,
}

impl ProblemView {
    pub(crate) fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self { kind: kind.into(), title: title.into(), status: status.as_u16(), ..Self::default() }
    }

    fn about(self, what: &'static str, name: &str) -> Self {
        Self { what: Some(what.into()), name: Some(name.to_owned()), ..self }
    }

    /// What was refused, as the store said it; None for what only a node refuses.
    pub(crate) fn error(&self) -> Option<StoreError> {
        let detail = || self.detail.clone().unwrap_or_default();
        let name = || self.name.clone().unwrap_or_default();
        let what = known_word(&THINGS, self.what.as_deref());
        Some(match self.kind.as_ref() {
            "bad-value" => {
                let field = self.field.clone().unwrap_or_default();
                let rule = without(&detail(), &format!("{field}: "));
                Invalid { field, rule }.into()
            }
            "unknown" => StoreError::Unknown { what, name: name() },
            "endpoint-disabled" => {
                StoreError::Disabled { endpoint: self.endpoint.clone().unwrap_or_default() }
            }
            "idempotency-conflict" => {
                let at = self.line.map_or(0, |line| line.saturating_sub(1) as usize);
                StoreError::IdempotencyConflict { holder: self.message_id.map(MessageId), at }
            }
            "exists" => StoreError::Exists { what, name: name() },
            "conflict" => StoreError::Conflict(detail()),
            "queue-full" => StoreError::QueueFull {
                queued: self.queued.unwrap_or_default(),
                limit: self.limit.unwrap_or_default(),
                endpoint: self.endpoint.clone(),
            },
            "too-large" => StoreError::TooLarge {
                field: known_word(&FIELDS, Some(self.field.as_deref()?)),
                bytes: self.size.unwrap_or_default(),
                limit: self.limit.unwrap_or_default(),
                setting: known_word(&LIMITS, self.setting.as_deref()),
            },
            "store-unavailable" => {
                // What the sentence begins with is said again by the error.
                let begins = StoreError::Unavailable(String::new()).to_string();
                StoreError::Unavailable(without(&detail(), &begins))
            }
            "store-unusable" => StoreError::Unusable(detail()),
            _ => return None,
        })
    }
}

fn without(text: &str, prefix: &str) -> String {
    text.strip_prefix(prefix).unwrap_or(text).to_owned()
}

impl From<&StoreError> for ProblemView {
    fn from(error: &StoreError) -> Self {
        let new = Self::new;
        let problem = match error {
            StoreError::Invalid(invalid) => Self {
                field: Some(invalid.field.clone()),
                ..new(StatusCode::UNPROCESSABLE_ENTITY, "bad-value", "A value breaks a rule")
            },
            StoreError::Unknown { what, name } => {
                new(StatusCode::NOT_FOUND, "unknown", "What was asked for does not exist").about(what, name)
            }
            StoreError::Disabled { endpoint } => Self {
                endpoint: Some(endpoint.clone()),
                ..new(StatusCode::CONFLICT, "endpoint-disabled", "The endpoint is disabled")
            },
            StoreError::IdempotencyConflict { holder, .. } => Self {
                field: Some("idempotency_key".to_owned()),
                message_id: holder.map(|id| id.0),
                ..new(
                    StatusCode::CONFLICT,
                    "idempotency-conflict",
                    "The idempotency key belongs to another payload",
                )
            },
            StoreError::Exists { what, name } => {
                new(StatusCode::CONFLICT, "exists", "The name is taken").about(what, name)
            }
            StoreError::Conflict(_) => {
                new(StatusCode::CONFLICT, "conflict", "That cannot be done in its present state")
            }
            StoreError::QueueFull { queued, limit, endpoint } => Self {
                queued: Some(*queued),
                limit: Some(*limit),
                endpoint: endpoint.clone(),
                ..new(StatusCode::TOO_MANY_REQUESTS, "queue-full", "The queue is full")
            },
            StoreError::TooLarge { field, bytes, limit, setting } => Self {
                field: Some((*field).to_owned()),
                size: Some(*bytes),
                limit: Some(*limit),
                setting: Some((*setting).into()),
                ..new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large")
            },
            StoreError::Unavailable(_) | StoreError::Unreachable(_) | StoreError::Uncertain(_) => {
                new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The store is not available now")
            }
            StoreError::Unusable(_) => {
                new(StatusCode::SERVICE_UNAVAILABLE, "store-unusable", "The store needs a person")
            }
            StoreError::Denied(_) => new(StatusCode::FORBIDDEN, "forbidden", "That is not allowed"),
        };
        Self { detail: Some(error.to_string()), sqlstate: Some(error.sqlstate().into()), ..problem }
    }
}

fn as_urn<S: Serializer>(kind: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{URN}{kind}"))
}

fn from_urn<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'static, str>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.strip_prefix(URN) {
        Some(kind) => Ok(kind.to_owned().into()),
        None => Err(serde::de::Error::custom("not a problem of a node")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_is_the_same_after_the_way_through_a_node() {
        let errors = [
            StoreError::Invalid(Invalid::new("config.url", "must be a URL: a: b")),
            StoreError::Unknown { what: "dead letter", name: "7".to_owned() },
            StoreError::Disabled { endpoint: "shop".to_owned() },
            StoreError::IdempotencyConflict { holder: Some(MessageId(12)), at: 0 },
            StoreError::IdempotencyConflict { holder: None, at: 0 },
            StoreError::Exists { what: "event type", name: "orders.created".to_owned() },
            StoreError::Conflict("message 7 is completed".to_owned()),
            StoreError::QueueFull { queued: 10, limit: 11, endpoint: None },
            StoreError::QueueFull { queued: 10, limit: 11, endpoint: Some("shop".to_owned()) },
            StoreError::TooLarge { field: "payload", bytes: 9, limit: 8, setting: "max_payload_bytes" },
            StoreError::Unavailable("the disk is full".to_owned()),
            StoreError::Unusable("another version".to_owned()),
        ];
        for error in errors {
            let written = serde_json::to_string(&ProblemView::from(&error)).expect("a problem becomes JSON");
            let read: ProblemView = serde_json::from_str(&written).expect("and is read again");
            assert_eq!(format!("{:?}", read.error()), format!("{:?}", Some(error)), "{written}");
        }
    }

    #[test]
    fn a_document_of_somebody_else_is_none_of_ours() {
        for other in [r#"{"title":"x","status":404}"#, r#"{"type":"about:blank","title":"x","status":404}"#] {
            assert!(serde_json::from_str::<ProblemView>(other).is_err(), "{other}");
        }
    }
}
