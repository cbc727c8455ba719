use std::io::Write;
use std::process::Stdio;

use test_servers::BrokerKind::Kafka;
use test_servers::brokers::{DENIED_USER, PASSWORD, USER, kafka};

#[test]
fn kafka_speaks_tls() {
    let Some(listeners) = Kafka.shared() else { return };
    super::speaks_tls(Kafka, listeners);
}

/// One test, because each start takes seconds.
#[test]
fn kafka_survives_a_kill_freezes_and_checks_passwords() {
    let Some(mut broker) = Kafka.start() else { return };
    let listeners = broker.listeners().clone();
    let server = format!("127.0.0.1:{}", listeners.plain);
    let mut create = kafka::tool("org.apache.kafka.tools.TopicCommand");
    super::run(create.args(["--bootstrap-server", &server, "--create", "--topic", "letters"]))
        .expect("a topic");
    publish(listeners.plain, "", "hello").expect("a publish");

    super::freezes(Kafka, &broker);
    let login = |user: &str, password: &str| {
        format!(
            "security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"{user}\" password=\"{password}\";
"
        )
    };
    publish(listeners.password, &login(USER, PASSWORD), "with a password").expect("a user with all rights");
    let wrong = publish(listeners.password, &login(USER, "wrong"), "no").expect_err("a wrong password");
    assert!(wrong.contains("SaslAuthenticationException"), "{wrong}");
    let denied = publish(listeners.password, &login(DENIED_USER, PASSWORD), "no").expect_err("no rights");
    assert!(denied.contains("TopicAuthorizationException"), "{denied}");

    broker.kill();
    broker.start_again().expect("the same broker");
    let mut consume = kafka::tool("org.apache.kafka.tools.consumer.ConsoleConsumer");
    consume.args(["--bootstrap-server", &server, "--topic", "letters", "--from-beginning"]);
    consume.args(["--max-messages", "2", "--timeout-ms", "20000"]);
    assert_eq!(super::run(&mut consume), Ok("hello\nwith a password".to_owned()));
    broker.stop();
}

/// The producer says in its log why it failed, not by its exit code.
fn publish(port: u16, settings: &str, text: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("postrider-producer-{}-{port}", std::process::id()));
    std::fs::write(&file, settings).expect("a file");
    let mut producer = kafka::tool("org.apache.kafka.tools.ConsoleProducer");
    producer.args(["--bootstrap-server", &format!("127.0.0.1:{port}"), "--topic", "letters", "--sync"]);
    producer.args(["--max-block-ms", "10000", "--producer.config", &file.to_string_lossy()]);
    producer.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut producer = producer.spawn().expect("Java");
    writeln!(producer.stdin.take().expect("a pipe"), "{text}").expect("a producer that reads");
    let output = producer.wait_with_output().expect("an end");
    let _ = std::fs::remove_file(&file);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if log.contains(" ERROR ") || log.contains("Exception") { Err(log) } else { Ok(()) }
}
