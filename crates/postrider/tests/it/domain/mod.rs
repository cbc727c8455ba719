//! The pure decisions: every rule as a table, every invariant as a property.

mod retry;
mod verdict;
mod breaker;
mod rate;
mod settings;
mod endpoint;
pub(crate) mod events;
mod lifecycle;
