//! Version 3.1.1 carries a payload and nothing else. The suite needs the ids of messages, so its endpoints send structured
//! CloudEvents, which have the id inside.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::value::RawValue;

use super::*;

pub(super) struct Mqtt3;

#[async_trait]
impl BrokerUnderTest for Mqtt3 {
    const PROTOCOL: &'static str = "mqtt";
    const KIND: BrokerKind = BrokerKind::Mosquitto;

    fn config(port: u16, target: &str) -> Value {
        with(config(port, target), json!({"version": "3.1.1", "cloudevents": "structured"}))
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

    /// As in version 5.
    fn unroutable(_: u16) -> Option<(Value, Class)> {
        None
    }

    /// A PUBACK of version 3.1.1 has no reason: mosquitto acknowledges what it drops for want of rights.
    fn denied() -> Option<Class> {
        None
    }

    /// The same for messages above its `message_size_limit`; see [`super::own`] for `max_packet_size`.
    fn oversized() -> Option<Class> {
        None
    }
}

#[derive(serde::Deserialize)]
struct Envelope<'e> {
    id: String,
    datacontenttype: String,
    #[serde(borrow)]
    data: Option<&'e RawValue>,
    data_base64: Option<String>,
}

fn message_of(arrived: Arrived) -> BrokerMessage {
    let envelope: Envelope<'_> = serde_json::from_slice(&arrived.payload).unwrap();
    let payload = match (envelope.data, envelope.data_base64) {
        (Some(data), None) => Bytes::copy_from_slice(data.get().as_bytes()),
        (None, Some(data)) => BASE64_STANDARD.decode(data).unwrap().into(),
        both => panic!("{both:?}"),
    };
    BrokerMessage {
        id: envelope.id,
        headers: BTreeMap::new(),
        content_type: envelope.datacontenttype,
        payload,
    }
}

// Without the two that look at headers, and at a payload that would not fit into an envelope: `own` has these without
// CloudEvents.
broker_conforms!(Mqtt3:
    nothing_is_delivered_while_acknowledgements_are_lost,
    a_cut_connection_loses_nothing_and_comes_back,
    while_the_broker_is_away_deliveries_are_refused_and_the_sink_reconnects_by_itself,
    a_connection_closed_while_idle_costs_no_attempt,
    a_frozen_connection_is_replaced,
    a_slow_broker_is_no_failure,
    a_wrong_password_is_retryable_and_not_shown,
    what_the_broker_denies_is_classed,
    an_oversized_message_is_permanent_and_hurts_no_other,
    an_unroutable_message_is_never_delivered,
    tls_trusts_a_private_authority_only_when_told,
    a_client_certificate_is_shown,
    the_gate_refuses_internal_addresses,
    many_deliveries_share_one_connection,
    endpoints_of_one_broker_share_a_connection_and_the_last_closes_it,
    a_cancelled_delivery_does_not_break_the_next,
    one_after_the_other_stays_in_order_through_reconnects,
    a_broker_that_is_killed_stopped_and_frozen_loses_nothing_acknowledged,
);
