//! The log lines that say what became of a message; docs/operations.md lists their fields. Nodes write most of them
//! (`engine/journal.rs`), stores those of what people do.

use crate::message::{MessageId, State};

/// The target of these lines, for filters.
pub const OUTCOME: &str = "postrider::outcome";

/// A person cancelled it, through this process.
pub(crate) fn log_cancelled(message: MessageId) {
    tracing::info!(target: OUTCOME, message_id = message.0, state = State::Cancelled.as_str(), "A message was cancelled");
}
