//! What NATS and its streams mean by their answers.

use bytes::Bytes;
use serde::Deserialize;

use crate::protocol::broker::BrokerAddress;
use crate::verdict::{Class, Failure, Receipt, ReceiverHealth};

/// What became of a message.
#[derive(Debug)]
pub(super) enum NatsAnswer {
    /// A reply, which should be an acknowledgement.
    Stream(Bytes),
    /// No stream takes the subject, and no subscriber either.
    NoStream,
    /// The server has read it. Nothing is known of subscribers.
    Read,
    Denied(String),
    /// We would hear of no acknowledgement, so it was not sent.
    Deaf,
    TooLarge {
        bytes: usize,
        bytes_max: usize,
    },
}

/// Of a stream. One that it has stored before is acknowledged, too (`duplicate`).
#[derive(Deserialize)]
struct NatsPubAck {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    error: Option<NatsStreamError>,
}

#[derive(Deserialize)]
struct NatsStreamError {
    /// As of HTTP.
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// Where a message was published to.
pub(super) struct NatsDestination<'a> {
    pub(super) address: &'a BrokerAddress,
    pub(super) subject: &'a str,
    /// Not the endpoint. That no stream takes the subject then says nothing about the server.
    pub(super) named_by_message: bool,
}

pub(super) fn judged(answer: NatsAnswer, destination: &NatsDestination<'_>) -> Result<Receipt, Failure> {
    let NatsDestination { address, subject, .. } = destination;
    match answer {
        NatsAnswer::Read => Ok(Receipt::default()),
        NatsAnswer::Stream(payload) => acknowledged(&payload, destination),
        // An operator can create the stream.
        NatsAnswer::NoStream => {
            Err(destination.is_wrong(format!("no stream at {address} takes the subject {subject}")))
        }
        NatsAnswer::Denied(error) => Err(Failure::permanent(format!("{address} refused it: {error}"))),
        NatsAnswer::Deaf => Err(Failure::permanent(format!(
            "the user may not subscribe to _INBOX.> at {address}, where streams acknowledge"
        ))),
        NatsAnswer::TooLarge { bytes, bytes_max } => Err(Failure::permanent(format!(
            "headers and payload have {bytes} bytes, and {address} takes {bytes_max} at most"
        ))),
    }
}

impl NatsDestination<'_> {
    fn is_wrong(&self, error: String) -> Failure {
        let failure = Failure::retryable(error);
        match self.named_by_message {
            true => Failure { receiver: ReceiverHealth::Unknown, ..failure },
            false => failure,
        }
    }
}

fn acknowledged(payload: &[u8], destination: &NatsDestination<'_>) -> Result<Receipt, Failure> {
    let NatsDestination { address, subject, .. } = destination;
    match serde_json::from_slice(payload) {
        Ok(NatsPubAck { error: Some(error), .. }) => {
            let (class, receiver) = judge(error.code, error.err_code);
            let said = format!("the stream of {subject} at {address} refused it: {}", error.description);
            Err(Failure { receiver, status: Some(error.code), ..Failure::new(class, said) })
        }
        Ok(NatsPubAck { stream, seq: 1.., .. }) if !stream.is_empty() => Ok(Receipt::default()),
        // A subscriber that replies is no stream.
        Ok(_) | Err(_) => Err(destination.is_wrong(format!(
            "{subject} at {address} was answered, but not with the acknowledgement of a stream"
        ))),
    }
}

fn judge(code: u16, err_code: u32) -> (Class, ReceiverHealth) {
    match (code, err_code) {
        // Limits of the account, resources, memory, storage, the stream (it is full), requests at a time.
        (_, 10002 | 10023 | 10028 | 10047 | 10077 | 10167) | (429, _) => {
            (Class::Retryable, ReceiverHealth::Overloaded)
        }
        // Too large for the stream, wrong expected sequence, sealed: the message does not fit.
        (400, _) => (Class::Permanent, ReceiverHealth::Unknown),
        // No leader, offline, JetStream switched off, and what later versions may have.
        _ => (Class::Retryable, ReceiverHealth::Failing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(payload: &str) -> Result<Receipt, Failure> {
        let address = BrokerAddress::new("url", "nats.example", 4222).unwrap();
        let destination = NatsDestination { address: &address, subject: "orders", named_by_message: false };
        super::judged(NatsAnswer::Stream(Bytes::copy_from_slice(payload.as_bytes())), &destination)
    }

    #[test]
    fn only_an_acknowledgement_of_a_stream_delivers() {
        for payload in
            [r#"{"stream":"S","seq":1}"#, r#"{"stream":"S","domain":"hub","seq":9,"duplicate":true}"#]
        {
            assert_eq!(judged(payload), Ok(Receipt::default()));
        }
        let others =
            ["", "+OK", "{}", "[]", r#"{"stream":"","seq":1}"#, r#"{"stream":"S","seq":0}"#, r#"{"seq":1}"#];
        for payload in others {
            assert_eq!(judged(payload).unwrap_err().class, Class::Retryable, "{payload}");
        }
    }

    #[test]
    fn errors_are_classed_by_what_can_mend_them() {
        let cases = [
            (503, 10077, Class::Retryable, ReceiverHealth::Overloaded),
            (503, 10023, Class::Retryable, ReceiverHealth::Overloaded),
            (400, 10002, Class::Retryable, ReceiverHealth::Overloaded),
            (429, 1, Class::Retryable, ReceiverHealth::Overloaded),
            (404, 10059, Class::Retryable, ReceiverHealth::Failing),
            (503, 10008, Class::Retryable, ReceiverHealth::Failing),
            (409, 10158, Class::Retryable, ReceiverHealth::Failing),
            (500, 10118, Class::Retryable, ReceiverHealth::Failing),
            (400, 10054, Class::Permanent, ReceiverHealth::Unknown),
            (400, 10071, Class::Permanent, ReceiverHealth::Unknown),
        ];
        for (code, err_code, class, receiver) in cases {
            let payload = format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"why"}},"stream":"S","seq":0}}"#
            );
            let failure = judged(&payload).unwrap_err();
            assert_eq!((failure.class, failure.receiver), (class, receiver), "{payload}");
            assert_eq!(failure.error, "the stream of orders at nats.example:4222 refused it: why");
        }
    }
}
