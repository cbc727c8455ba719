use std::process::Command;

use test_servers::BrokerKind::Redis;
use test_servers::brokers::{DENIED_USER, PASSWORD, USER, redis};

const ADD: [&str; 5] = ["XADD", "letters", "*", "text", "hello"];

#[test]
fn a_stream_survives_a_kill() {
    let Some(mut broker) = Redis.start() else { return };
    let port = broker.listeners().plain;
    client(port, &ADD).expect("an entry");
    broker.kill();
    client(port, &ADD).expect_err("a killed broker");
    broker.start_again().expect("the same broker");
    assert_eq!(client(port, &["XLEN", "letters"]), Ok("1".to_owned()));
    broker.stop();
    client(port, &ADD).expect_err("a stopped broker");
}

#[test]
fn redis_freezes() {
    let Some(broker) = Redis.start() else { return };
    super::freezes(Redis, &broker);
}

#[test]
fn redis_speaks_tls() {
    let Some(listeners) = Redis.shared() else { return };
    super::speaks_tls(Redis, listeners);
}

#[test]
fn redis_checks_passwords_and_rights() {
    let Some(listeners) = Redis.shared() else { return };
    let as_user = |user: &str, password: &str| {
        client(
            listeners.password,
            &[&["--no-auth-warning", "--user", user, "--pass", password], &ADD[..]].concat(),
        )
    };
    as_user(USER, PASSWORD).expect("a user with all rights");
    // With the options of above the client would continue as the default user.
    let wrong = client(listeners.password, &["AUTH", USER, "wrong"]).expect_err("a wrong password");
    assert!(wrong.contains("WRONGPASS"), "{wrong}");
    let denied = as_user(DENIED_USER, PASSWORD).expect_err("a user without rights");
    assert!(denied.contains("NOPERM"), "{denied}");
}

#[test]
fn a_full_redis_refuses_writes() {
    let Some(broker) = Redis.start_with(redis::FULL) else { return };
    let error = client(broker.listeners().plain, &ADD).expect_err("a full broker");
    assert!(error.contains("OOM"), "{error}");
}

#[test]
fn a_replica_has_the_data_and_refuses_writes() {
    let Some(broker) = Redis.start() else { return };
    client(broker.listeners().plain, &ADD).expect("an entry");
    let replica = broker.read_only_replica().expect("a replica");
    assert_eq!(client(replica.listeners().plain, &["XLEN", "letters"]), Ok("1".to_owned()));
    let error = client(replica.listeners().plain, &ADD).expect_err("a replica");
    assert!(error.contains("READONLY"), "{error}");
}

/// `-e` makes errors of the server fail the client, too.
fn client(port: u16, arguments: &[&str]) -> Result<String, String> {
    super::run(Command::new("redis-cli").args(["-e", "-p", &port.to_string()]).args(arguments))
}
