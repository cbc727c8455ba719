//! What brokers mean by their reasons.

use super::incoming::MqttReason;
use crate::protocol::broker::BrokerAddress;
use crate::verdict::{Class, Failure, Receipt, ReceiverHealth};

const SERVER_BUSY: u8 = 0x89;
const QUOTA_EXCEEDED: u8 = 0x97;
const CONNECTION_RATE_EXCEEDED: u8 = 0x9f;

/// Of the last answer to a message. 0x10 says that nobody subscribes to the topic: the broker did its part.
pub(super) fn receipt(reason: &MqttReason, address: &BrokerAddress) -> Result<Receipt, Failure> {
    match judge(reason.code) {
        None => Ok(Receipt::default()),
        Some((class, receiver)) => {
            let error = format!("{address} refused the message: {}", words(reason));
            Err(Failure { receiver, ..Failure::new(class, error) })
        }
    }
}

fn judge(code: u8) -> Option<(Class, ReceiverHealth)> {
    match code {
        ..0x80 => None,
        // Not authorized, topic name invalid, packet too large, payload format invalid: the next time would be the same.
        0x87 | 0x90 | 0x95 | 0x99 => Some((Class::Permanent, ReceiverHealth::Unknown)),
        QUOTA_EXCEEDED => Some((Class::Retryable, ReceiverHealth::Overloaded)),
        _ => Some((Class::Retryable, ReceiverHealth::Failing)),
    }
}

/// Of a connection. An operator can mend it, so messages wait.
pub(super) fn refused_login(reason: &MqttReason, address: &BrokerAddress) -> Failure {
    let receiver = match reason.code {
        // 3 is "server unavailable" in version 3.1.1.
        3 | SERVER_BUSY | QUOTA_EXCEEDED | CONNECTION_RATE_EXCEEDED => ReceiverHealth::Overloaded,
        _ => ReceiverHealth::Failing,
    };
    let error = format!("{address} refused the connection: {}", words(reason));
    Failure { receiver, ..Failure::retryable(error) }
}

/// The reason's name, and what the broker says of it.
pub(super) fn words(reason: &MqttReason) -> String {
    let code = reason.code;
    let name = match NAMES.iter().find(|(known, _)| *known == code) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("reason 0x{code:02x}"),
    };
    match &reason.says {
        Some(says) => format!("{name} ({says})"),
        None => name,
    }
}

/// Those below 0x80 are the return codes of version 3.1.1, but for 0.
const NAMES: &[(u8, &str)] = &[
    (0x00, "normal disconnection"),
    (0x01, "unacceptable protocol version, see config.version"),
    (0x02, "client identifier rejected"),
    (0x03, "server unavailable"),
    (0x04, "bad user name or password"),
    (0x05, "not authorized"),
    (0x80, "unspecified error"),
    (0x81, "malformed packet"),
    (0x82, "protocol error"),
    (0x83, "implementation specific error"),
    (0x84, "unsupported protocol version, see config.version"),
    (0x85, "client identifier not valid"),
    (0x86, "bad user name or password"),
    (0x87, "not authorized"),
    (0x88, "server unavailable"),
    (SERVER_BUSY, "server busy"),
    (0x8a, "banned"),
    (0x8b, "server shutting down"),
    (0x8c, "bad authentication method"),
    (0x8d, "keep alive timeout"),
    (0x8e, "another client connected with the same client_id"),
    (0x90, "topic name invalid"),
    (0x91, "packet identifier in use"),
    (0x92, "packet identifier not found"),
    (0x93, "receive maximum exceeded"),
    (0x94, "topic alias invalid"),
    (0x95, "packet too large"),
    (0x96, "message rate too high"),
    (QUOTA_EXCEEDED, "quota exceeded"),
    (0x98, "administrative action"),
    (0x99, "payload format invalid"),
    (0x9a, "retain not supported"),
    (0x9b, "QoS not supported"),
    (0x9c, "use another server"),
    (0x9d, "server moved"),
    (CONNECTION_RATE_EXCEEDED, "connection rate exceeded"),
    (0xa0, "maximum connect time"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_classed_by_what_can_mend_them() {
        assert_eq!((judge(0), judge(0x10)), (None, None));
        for code in [0x87, 0x90, 0x95, 0x99] {
            assert_eq!(judge(code), Some((Class::Permanent, ReceiverHealth::Unknown)), "{code:x}");
        }
        for code in [0x80, 0x83, 0x91, 0x92, 0x97, 0xff] {
            assert_eq!(judge(code).map(|(class, _)| class), Some(Class::Retryable), "{code:x}");
        }
        assert_eq!(judge(0x97), Some((Class::Retryable, ReceiverHealth::Overloaded)));
    }

    #[test]
    fn a_reason_reads_as_words() {
        let reason = |code, says: Option<&str>| words(&MqttReason { code, says: says.map(str::to_owned) });
        assert_eq!(reason(0x87, None), "not authorized");
        assert_eq!(reason(0x97, Some("1000 a day")), "quota exceeded (1000 a day)");
        assert_eq!(reason(0xfe, None), "reason 0xfe");
    }
}
