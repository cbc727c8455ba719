//! What Kafka means by its errors.

use krafka::error::{ErrorCode, KrafkaError, ProtocolErrorKind};

use crate::net::judge;
use crate::sink::Undelivered;
use crate::verdict::{Class, Failure, ReceiverHealth};

/// Of one record. `chosen` says that the message itself named its topic or partition.
pub(super) fn failure(error: &KrafkaError, brokers: &str, topic: &str, chosen: bool) -> Failure {
    match error {
        KrafkaError::Broker { code, .. } => answered(*code, brokers, topic, chosen),
        KrafkaError::Protocol {
            kind: ProtocolErrorKind::InvalidLength | ProtocolErrorKind::FrameTooLarge,
            message,
        } => Failure::permanent(format!("Kafka cannot hold the message: {message}")),
        KrafkaError::DeliveryTimeout { possibly_written: false, .. } => {
            Failure::retryable(format!("no leader of topic {topic} at {brokers} took the record in time"))
        }
        KrafkaError::DeliveryTimeout { message, .. } => {
            let error =
                format!("{brokers} did not acknowledge the record in time; it may be written: {message}");
            Failure { ambiguous: true, receiver: ReceiverHealth::Overloaded, ..Failure::retryable(error) }
        }
        KrafkaError::Timeout { .. } => {
            Failure::retryable(format!("{brokers} was not ready for topic {topic} in time"))
        }
        KrafkaError::Auth { message, .. } => refused_login(message, brokers),
        // Of a partition that the topic does not have, or not yet.
        KrafkaError::Config { message } => {
            let error = format!("the record cannot be sent to {brokers}: {message}");
            Failure { receiver: unknown_place(chosen), ..Failure::retryable(error) }
        }
        other => Failure::retryable(format!("the record was not acknowledged by {brokers}: {other}")),
    }
}

pub(super) fn is_too_large(error: &KrafkaError) -> bool {
    matches!(
        error,
        KrafkaError::Broker { code: ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge, .. }
    )
}

/// A cluster that lacks what the endpoint names fails all of its messages; what one message names may be a mistake.
fn unknown_place(chosen: bool) -> ReceiverHealth {
    if chosen { ReceiverHealth::Unknown } else { ReceiverHealth::Failing }
}

/// Of a connection. `trouble` is what the tunnel saw.
pub(super) fn cannot_open(error: &KrafkaError, trouble: Option<Undelivered>, brokers: &str) -> Undelivered {
    match error {
        KrafkaError::Auth { message, .. } => refused_login(message, brokers).into(),
        KrafkaError::Broker { code: ErrorCode::ClusterAuthorizationFailed, .. } => {
            Failure::permanent(format!("{brokers} denies the user to write to any topic")).into()
        }
        other => trouble.unwrap_or_else(|| {
            let failure = Failure::retryable(format!("cannot make a producer at {brokers}: {other}"));
            match other {
                KrafkaError::Network(error) => judge(error, failure),
                _ => failure.into(),
            }
        }),
    }
}

/// An operator can mend it, so messages wait.
fn refused_login(why: &str, brokers: &str) -> Failure {
    Failure::retryable(format!("{brokers} refused the sign-in: {why}"))
}

fn answered(code: ErrorCode, brokers: &str, topic: &str, chosen: bool) -> Failure {
    let (class, receiver) = class_of(code, chosen);
    let error = format!("{brokers} answered {code:?} for topic {topic}");
    Failure { receiver, ..Failure::new(class, error) }
}

fn class_of(code: ErrorCode, chosen: bool) -> (Class, ReceiverHealth) {
    match code {
        // Rights.
        ErrorCode::TopicAuthorizationFailed
        | ErrorCode::ClusterAuthorizationFailed
        // What no broker of this cluster would take.
        | ErrorCode::InvalidTopic
        | ErrorCode::InvalidRecord
        | ErrorCode::MessageTooLarge
        | ErrorCode::RecordListTooLarge
        | ErrorCode::PolicyViolation
        | ErrorCode::UnsupportedCompressionType
        | ErrorCode::UnsupportedForMessageFormat => (Class::Permanent, ReceiverHealth::Unknown),
        ErrorCode::UnknownTopicOrPartition => (Class::Retryable, unknown_place(chosen)),
        ErrorCode::ThrottlingQuotaExceeded => (Class::Retryable, ReceiverHealth::Overloaded),
        // Leaders that changed, too few replicas, full disks, and what later versions may have: the cluster has to change,
        // not the message.
        _ => (Class::Retryable, ReceiverHealth::Failing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classed_by_what_can_mend_them() {
        let permanent =
            [ErrorCode::TopicAuthorizationFailed, ErrorCode::MessageTooLarge, ErrorCode::InvalidRecord];
        let retryable = [
            ErrorCode::UnknownTopicOrPartition,
            ErrorCode::NotLeaderForPartition,
            ErrorCode::NotEnoughReplicas,
            ErrorCode::RequestTimedOut,
            ErrorCode::KafkaStorageException,
            ErrorCode::SaslAuthenticationFailed,
        ];
        for code in permanent {
            assert_eq!(class_of(code, false), (Class::Permanent, ReceiverHealth::Unknown), "{code:?}");
        }
        for code in retryable {
            assert_eq!(class_of(code, false), (Class::Retryable, ReceiverHealth::Failing), "{code:?}");
        }
    }
}
