use test_servers::BrokerKind::RabbitMq;
use test_servers::brokers::{DENIED_USER, PASSWORD, USER};

#[test]
fn rabbitmq_speaks_tls() {
    let Some(listeners) = RabbitMq.shared() else { return };
    super::speaks_tls(RabbitMq, listeners);
}

/// One test, because each start takes seconds.
#[test]
fn rabbitmq_survives_a_kill_freezes_and_checks_passwords() {
    let Some(mut broker) = RabbitMq.start() else { return };
    let queue = "Queue = rabbit_misc:r(<<\"/\">>, queue, <<\"letters\">>)";
    let exchange = "rabbit_misc:r(<<\"/\">>, exchange, <<>>)";
    let publish = format!(
        "{queue}, rabbit_amqqueue:declare(Queue, true, false, [], none, <<\"test\">>), \
         rabbit_basic:publish({exchange}, <<\"letters\">>, [{{delivery_mode, 2}}], <<\"hello\">>)."
    );
    broker.rabbitmqctl(&["eval", &publish]).expect("a publish");
    let queues = ["list_queues", "--silent", "--no-table-headers", "name", "messages"];
    assert_eq!(broker.rabbitmqctl(&queues), Ok("letters\t1".to_owned()));

    super::freezes(RabbitMq, &broker);
    broker.rabbitmqctl(&["authenticate_user", USER, PASSWORD]).expect("a user");
    broker.rabbitmqctl(&["authenticate_user", USER, "wrong"]).expect_err("a wrong password");
    let may_write = |user: &str| {
        let login =
            format!("rabbit_access_control:check_user_pass_login(<<\"{user}\">>, <<\"{PASSWORD}\">>)");
        let topic = "rabbit_misc:r(<<\"/\">>, exchange, <<\"amq.topic\">>)";
        let ask = format!("catch rabbit_access_control:check_resource_access(User, {topic}, write, #{{}}).");
        broker.rabbitmqctl(&["eval", &format!("{{ok, User}} = {login}, {ask}")]).expect("an answer")
    };
    assert_eq!(may_write(USER), "ok");
    assert!(may_write(DENIED_USER).contains("access_refused"));

    broker.kill();
    broker.rabbitmqctl(&queues).expect_err("a killed broker");
    broker.start_again().expect("the same broker");
    assert_eq!(broker.rabbitmqctl(&queues), Ok("letters\t1".to_owned()));
    broker.stop();
    broker.rabbitmqctl(&queues).expect_err("a stopped broker");
}
