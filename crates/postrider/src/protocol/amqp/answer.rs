//! What a broker means when it does not take a message.

use super::incoming::AmqpReply;
use crate::protocol::broker::BrokerAddress;
use crate::verdict::{Class, Failure, ReceiverHealth};

const CONTENT_TOO_LARGE: u16 = 311;
const ACCESS_REFUSED: u16 = 403;
const PRECONDITION_FAILED: u16 = 406;

/// The broker closed the channel that carried the message.
pub(super) fn refused(address: &BrokerAddress, why: &AmqpReply) -> Failure {
    Failure { status: Some(why.code), ..Failure::new(class(why.code), format!("{address} answered {why}")) }
}

fn class(code: u16) -> Class {
    match code {
        // Rights; the size, or headers that the broker reads itself.
        ACCESS_REFUSED | PRECONDITION_FAILED | CONTENT_TOO_LARGE => Class::Permanent,
        // No such exchange (404), a locked resource (405), and what other brokers may have: it can be mended at the broker.
        _ => Class::Retryable,
    }
}

/// The broker gave the message back, because no queue is bound for it.
pub(super) fn returned(address: &BrokerAddress, why: &AmqpReply) -> Failure {
    let error = format!("{address} can bring the message to no queue: {why}");
    Failure { status: Some(why.code), ..Failure::permanent(error) }
}

/// A queue is full and refuses messages, or it failed.
pub(super) fn not_taken(address: &BrokerAddress) -> Failure {
    let error = format!("{address} did not take the message (nack): its queue is full or failed");
    Failure { receiver: ReceiverHealth::Overloaded, ..Failure::retryable(error) }
}

/// As `why` shows it, too.
pub(super) fn blocked(address: &BrokerAddress, reason: &str) -> String {
    format!("{address} blocks publishers: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classed_by_what_can_mend_them() {
        for code in [311, 403, 406] {
            assert_eq!(class(code), Class::Permanent, "{code}");
        }
        for code in [404, 405, 320, 501, 541] {
            assert_eq!(class(code), Class::Retryable, "{code}");
        }
    }
}
