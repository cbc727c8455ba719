//! What Redis means by its errors.

use redis::{ErrorKind, RedisError};

use crate::protocol::broker::BrokerAddress;
use crate::verdict::{Class, Failure, ReceiverHealth};

/// Of an XADD.
pub(super) fn failure(error: &RedisError, address: &BrokerAddress) -> Failure {
    let (Some(code), ErrorKind::Server(_) | ErrorKind::Extension) = (error.code(), error.kind()) else {
        let failure = Failure::retryable(format!("the connection to {address} was lost: {error}"));
        return Failure { ambiguous: true, ..failure };
    };
    let detail = error.detail().unwrap_or_default();
    let (class, receiver) = judge(code, detail);
    Failure { receiver, ..Failure::new(class, format!("{address} answered {code} {detail}")) }
}

/// What a server says about the command itself, so that it would say it again.
const COMMAND_ERRORS: [&str; 5] = [
    "Protocol error",
    "Invalid stream ID",
    "syntax error",
    "wrong number of arguments",
    "string exceeds maximum",
];

/// Does the server take no writes over this connection, while another one behind the same name may take them?
pub(super) fn is_of_no_use(error: &RedisError) -> bool {
    error.code().is_some_and(|code| ["READONLY", "MASTERDOWN", "NOAUTH"].contains(&code))
}

/// Of `nomkstream`. It says nothing about the server: the message may have named the stream.
pub(super) fn no_stream() -> Failure {
    let failure = Failure::retryable("the stream does not exist, and config.nomkstream is on");
    Failure { receiver: ReceiverHealth::Unknown, ..failure }
}

fn judge(code: &str, detail: &str) -> (Class, ReceiverHealth) {
    match code {
        // Rights, the type of the key, or what no server would take.
        "NOPERM" | "WRONGTYPE" | "CROSSSLOT" => (Class::Permanent, ReceiverHealth::Unknown),
        // Of sign-in: the server's users were changed while we were connected.
        "NOAUTH" | "WRONGPASS" => (Class::Retryable, ReceiverHealth::Failing),
        "OOM" | "BUSY" => (Class::Retryable, ReceiverHealth::Overloaded),
        "LOADING" | "TRYAGAIN" => (Class::Retryable, ReceiverHealth::Busy),
        "ERR" if detail.contains("max number of clients") => (Class::Retryable, ReceiverHealth::Overloaded),
        "ERR" if COMMAND_ERRORS.iter().any(|about| detail.contains(about)) => {
            (Class::Permanent, ReceiverHealth::Unknown)
        }
        // READONLY, MOVED, ASK, CLUSTERDOWN, MASTERDOWN, NOREPLICAS, MISCONF (its disk is full), other errors of proxies,
        // and what later versions may have: the server or the cluster has to change, not the message.
        _ => (Class::Retryable, ReceiverHealth::Failing),
    }
}

/// Of a sign-in. An operator can mend it, so messages wait.
pub(super) fn refused_login(error: &RedisError, address: &BrokerAddress) -> Failure {
    let Some(code) = error.code() else {
        return Failure::retryable(match error.kind() {
            ErrorKind::Parse => format!("{address} does not answer as Redis does"),
            _ => format!("cannot sign in at {address}: {error}"),
        });
    };
    let detail = error.detail().unwrap_or_default();
    let receiver = match judge(code, detail) {
        (Class::Retryable, receiver) => receiver,
        (Class::Permanent | Class::Gone, _) => ReceiverHealth::Failing,
    };
    Failure { receiver, ..Failure::retryable(format!("{address} refused the sign-in: {code} {detail}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classed_by_what_can_mend_them() {
        let permanent = [
            ("NOPERM", ""),
            ("WRONGTYPE", ""),
            ("ERR", "Protocol error: invalid bulk length"),
            ("ERR", "Invalid stream ID specified as stream command argument"),
        ];
        let retryable =
            ["READONLY", "OOM", "LOADING", "MOVED", "CLUSTERDOWN", "MISCONF", "NOAUTH", "NEWERCODE"];
        for (code, detail) in permanent {
            assert_eq!(judge(code, detail), (Class::Permanent, ReceiverHealth::Unknown), "{code}");
        }
        for code in retryable {
            assert_eq!(judge(code, "").0, Class::Retryable, "{code}");
        }
        assert_eq!(judge("ERR", "Connection refused").0, Class::Retryable, "a proxy says so");
    }
}
