use std::process::Command;
use std::thread;
use std::time::Duration;

use test_servers::BrokerKind::Mosquitto;
use test_servers::brokers::{DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, USER};

#[test]
fn a_retained_message_survives_a_kill() {
    let Some(mut broker) = Mosquitto.start() else { return };
    let port = broker.listeners().plain;
    publish(port, &["-r", "-m", "hello"]).expect("a publish");
    // mosquitto saves changes some time after it acknowledged them.
    thread::sleep(Duration::from_millis(500));
    broker.kill();
    publish(port, &["-m", "hello"]).expect_err("a killed broker");
    broker.start_again().expect("the same broker");
    assert_eq!(
        super::run(client("mosquitto_sub", port).args(["-C", "1", "-W", "5"])),
        Ok("hello".to_owned())
    );
    broker.stop();
    publish(port, &["-m", "hello"]).expect_err("a stopped broker");
}

#[test]
fn mosquitto_freezes() {
    let Some(broker) = Mosquitto.start() else { return };
    super::freezes(Mosquitto, &broker);
}

#[test]
fn mosquitto_speaks_tls() {
    let Some(listeners) = Mosquitto.shared() else { return };
    super::speaks_tls(Mosquitto, listeners);
}

#[test]
fn mosquitto_checks_passwords_and_rights() {
    let Some(listeners) = Mosquitto.shared() else { return };
    let as_user = |user: &str, password: &str| {
        publish(listeners.password, &["-u", user, "-P", password, "-m", "hello"]).map(drop)
    };
    as_user(USER, PASSWORD).expect("a user with all rights");
    let wrong = as_user(USER, "wrong").expect_err("a wrong password");
    assert!(wrong.contains("ot authori"), "{wrong}");
    let denied = as_user(DENIED_USER, PASSWORD).expect_err("a user without rights");
    assert!(denied.contains("ot authori"), "{denied}");
}

#[test]
fn mosquitto_refuses_long_messages() {
    let Some(listeners) = Mosquitto.shared() else { return };
    let file = std::env::temp_dir().join(format!("postrider-long-message-{}", std::process::id()));
    std::fs::write(&file, vec![b'x'; MESSAGE_BYTES_MAX + 1]).expect("a file");
    let published = publish(listeners.plain, &["-f", &file.to_string_lossy()]);
    let _ = std::fs::remove_file(&file);
    let error = published.expect_err("a message that is too long");
    assert!(error.to_lowercase().contains("too large"), "{error}");
}

/// With QoS 1. Version 5, because in earlier ones the acknowledgement does not tell that a message was refused.
fn publish(port: u16, arguments: &[&str]) -> Result<String, String> {
    let output = client("mosquitto_pub", port).args(arguments).output().expect("a client that is installed");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // It complains about a refused message without failing.
    if output.status.success() && errors.is_empty() { Ok(errors) } else { Err(errors) }
}

fn client(program: &str, port: u16) -> Command {
    let mut client = Command::new(program);
    client.args(["-V", "5", "-h", "127.0.0.1", "-p", &port.to_string(), "-q", "1", "-t", "letters"]);
    client
}
