//! The choices that the library has, for the API's description.

use postrider::State;
use postrider::breaker::CircuitName;
use postrider::protocol::Protocol;
use postrider::store::{DEAD_REASONS, ReplayState, ReplayStatus, Scope};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

const CLASSES: [&str; 3] = ["retryable", "permanent", "gone"];

pub(crate) fn state() -> Schema {
    choice(State::ALL.iter().map(|state| state.as_str()))
}

pub(crate) fn protocol() -> Schema {
    choice(Protocol::ALL.iter().map(|protocol| protocol.as_str()))
}

pub(crate) fn circuit_state() -> Schema {
    choice([CircuitName::Closed, CircuitName::HalfOpen, CircuitName::Open].iter().map(|name| name.as_str()))
}

pub(crate) fn scope() -> Schema {
    choice(Scope::ALL.iter().map(|scope| scope.as_str()))
}

pub(crate) fn replay_state() -> Schema {
    choice([ReplayState::Running, ReplayState::Stopped, ReplayState::Completed].map(ReplayState::as_str))
}

pub(crate) fn replay_status() -> Schema {
    choice(ReplayStatus::ALL.map(ReplayStatus::as_str))
}

pub(crate) fn replay_status_or_null() -> Schema {
    choice_or_null(ReplayStatus::ALL.map(ReplayStatus::as_str))
}

pub(crate) fn outcome() -> Schema {
    choice(["delivered", "failed", "lost"])
}

pub(crate) fn class() -> Schema {
    choice_or_null(CLASSES)
}

pub(crate) fn known_class() -> Schema {
    choice(CLASSES)
}

pub(crate) fn disabled_by() -> Schema {
    choice_or_null(["operator", "gone"])
}

pub(crate) fn dlq_status() -> Schema {
    choice(["failed", "redriven", "discarded"])
}

pub(crate) fn dead_reason() -> Schema {
    choice(DEAD_REASONS)
}

pub(crate) fn dead_reason_or_null() -> Schema {
    choice_or_null(DEAD_REASONS)
}

pub(crate) fn node_state() -> Schema {
    choice(["live", "left", "lost"])
}

fn choice<'a>(choices: impl IntoIterator<Item = &'a str>) -> Schema {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(choices)).into()
}

fn choice_or_null<'a>(choices: impl IntoIterator<Item = &'a str>) -> Schema {
    let or_null = SchemaType::from_iter([Type::String, Type::Null]);
    let choices = choices.into_iter().map(Some).chain([None]);
    ObjectBuilder::new().schema_type(or_null).enum_values(Some(choices)).into()
}
