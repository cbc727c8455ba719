//! Version 5 has a place for everything.

use super::*;

pub(super) struct Mqtt5;

#[async_trait]
impl BrokerUnderTest for Mqtt5 {
    const PROTOCOL: &'static str = "mqtt";
    const KIND: BrokerKind = BrokerKind::Mosquitto;

    fn config(port: u16, target: &str) -> Value {
        config(port, target)
    }

    /// mosquitto acknowledges first, and writes to its subscribers and to its file later: kill -9 loses what it acknowledged
    /// in that moment.
    fn survives_a_kill() -> bool {
        false
    }

    fn login(user: &str, password: &str) -> Value {
        login(user, password)
    }

    async fn create(listeners: &BrokerListeners, target: &str) {
        subscribe(listeners, target).await;
    }

    async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage> {
        arrived(listeners, target).await.into_iter().map(message_of).collect()
    }

    /// A topic without subscribers is no failure: the broker has done all that it promises (reason 0x10).
    fn unroutable(_: u16) -> Option<(Value, Class)> {
        None
    }
}

fn message_of(arrived: Arrived) -> BrokerMessage {
    let mut headers: BTreeMap<String, String> = arrived.user_properties.into_iter().collect();
    BrokerMessage {
        id: headers.remove("postrider-id").unwrap_or_default(),
        headers,
        content_type: arrived.content_type,
        payload: arrived.payload,
    }
}

broker_conforms!(Mqtt5);

/// The same with QoS 2, whose answers come in two steps.
mod qos2 {
    use super::*;

    struct Mqtt5Qos2;

    #[async_trait]
    impl BrokerUnderTest for Mqtt5Qos2 {
        const PROTOCOL: &'static str = Mqtt5::PROTOCOL;
        const KIND: BrokerKind = Mqtt5::KIND;

        fn config(port: u16, target: &str) -> Value {
            with(config(port, target), json!({"qos": 2}))
        }

        fn survives_a_kill() -> bool {
            Mqtt5::survives_a_kill()
        }

        fn login(user: &str, password: &str) -> Value {
            login(user, password)
        }

        async fn create(listeners: &BrokerListeners, target: &str) {
            subscribe(listeners, target).await;
        }

        async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage> {
            Mqtt5::held(listeners, target).await
        }

        fn unroutable(port: u16) -> Option<(Value, Class)> {
            Mqtt5::unroutable(port)
        }
    }

    broker_conforms!(Mqtt5Qos2:
        nothing_is_delivered_while_acknowledgements_are_lost,
        a_cut_connection_loses_nothing_and_comes_back,
        what_the_broker_denies_is_classed,
        an_oversized_message_is_permanent_and_hurts_no_other,
        many_deliveries_share_one_connection,
        a_cancelled_delivery_does_not_break_the_next,
        one_after_the_other_stays_in_order_through_reconnects,
        a_broker_that_is_killed_stopped_and_frozen_loses_nothing_acknowledged,
    );
}
