//! The sink: one connection for all endpoints of a broker, one PUBLISH for each delivery.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::answer;
use super::config::{MqttConfig, MqttVersion, NOT_IN_TEXTS};
use super::driver::MqttClient;
use super::opener::{MqttOpener, random_client_id};
use super::outgoing::{EncodedPublish, PublishPacket, PublishProperties};
use crate::endpoint::Endpoint;
use crate::protocol::broker::BrokerAddress;
use crate::protocol::cloudevents::{CloudEvents, CloudEventsMode, ENVELOPE};
use crate::sink::link::{Link, LinkKey};
use crate::sink::{Delivery, Environment, Sink, SinkConnection, Undelivered};
use crate::verdict::{Failure, Receipt};

pub(super) struct MqttSink {
    link: Arc<Link<MqttClient>>,
    address: Arc<BrokerAddress>,
    version: MqttVersion,
    topic: String,
    qos: u8,
    retain: bool,
    cloudevents: Option<CloudEvents>,
}

impl MqttSink {
    pub(super) fn connect(
        config: &MqttConfig,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let connection = &config.connection;
        let address = Arc::new(connection.address().map_err(|error| Failure::permanent(error.to_string()))?);
        let key = LinkKey::of("mqtt", connection);
        let opener = {
            let (connection, address) = (connection.clone(), Arc::clone(&address));
            let client_id = connection.client_id.clone().unwrap_or_else(random_client_id);
            move |environment: &Environment| {
                MqttOpener::new(&connection, &client_id, Arc::clone(&address), environment)
            }
        };
        Ok(Self {
            link: environment.links.shared(key, config.connect_timeout, environment, opener),
            address,
            version: connection.version,
            topic: config.topic.clone(),
            qos: config.qos,
            retain: config.retain,
            cloudevents: CloudEvents::of(config.cloudevents, &config.cloudevents_type, &endpoint.name),
        })
    }

    fn packet(&self, delivery: &Delivery) -> Result<EncodedPublish, Failure> {
        let message = &*delivery.message;
        let option = |name: &str| message.options.get(name);
        let id = delivery.public_id();
        let (content_type, payload) = self.content(delivery, &id);
        let user = match self.version {
            MqttVersion::V5 => Some(self.user_properties(delivery, id)),
            MqttVersion::V3 => None,
        };
        let packet = PublishPacket {
            topic: option("topic").and_then(Value::as_str).unwrap_or(&self.topic),
            qos: option("qos").and_then(Value::as_u64).map_or(self.qos, |qos| qos as u8),
            retain: option("retain").and_then(Value::as_bool).unwrap_or(self.retain),
            properties: user.as_ref().map(|user| PublishProperties {
                content_type,
                user: user.iter().map(|(name, value)| (&**name, &**value)).collect(),
            }),
            payload,
        };
        packet.encoded()
    }

    fn content<'d>(&self, delivery: &'d Delivery, id: &str) -> (&'d str, Bytes) {
        match &self.cloudevents {
            Some(event) if event.mode == CloudEventsMode::Structured => {
                (ENVELOPE, event.envelope(delivery, id))
            }
            _ => (&delivery.message.content_type, delivery.message.payload.clone()),
        }
    }

    /// Attributes of CloudEvents replace the message's own, and its option `user_properties` replaces its headers.
    fn user_properties<'d>(&self, delivery: &'d Delivery, id: String) -> Vec<(Cow<'d, str>, Cow<'d, str>)> {
        let message = &*delivery.message;
        let mut properties: Vec<(Cow<'d, str>, Cow<'d, str>)> = Vec::new();
        if let Some(event) = &self.cloudevents
            && event.mode == CloudEventsMode::Binary
        {
            let attributes = event.attributes(delivery, &id).into_iter();
            properties.extend(attributes.map(|(name, value)| (name.into(), carried(value).into())));
        }
        properties.push(("postrider-id".into(), id.into()));
        properties.extend(delivery.facts().map(|(name, value)| (name.into(), carried(value).into())));
        let option = message.options.get("user_properties").and_then(Value::as_object);
        let option = option.into_iter().flat_map(Map::iter);
        let option = option.map(|(name, value)| (name, value.as_str().unwrap_or_default()));
        let headers = message.headers.iter().map(|(name, value)| (name, value.as_str()));
        for (name, value) in option.chain(headers) {
            if !properties.iter().any(|(known, _)| known == name) {
                properties.push((name.into(), value.into()));
            }
        }
        properties
    }
}

/// Brokers close the connection on some characters: these are percent-encoded, and percent signs beside them.
fn carried(text: String) -> String {
    let is_refused = |c: char| NOT_IN_TEXTS.iter().any(|(first, last)| (*first..=*last).contains(&c));
    if !text.contains(is_refused) {
        return text;
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_refused(c) || c == '%' {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| encoded.push_str(&format!("%{byte:02X}")));
        } else {
            encoded.push(c);
        }
    }
    encoded
}

#[async_trait]
impl Sink for MqttSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let packet = self.packet(delivery)?;
        let send = async |client: &MqttClient| {
            client.check(&packet, &self.address)?;
            let reason = client.publish(packet).await;
            Ok(answer::receipt(&reason, &self.address)?)
        };
        self.link.deliver(send).await
    }

    fn connection(&self) -> SinkConnection {
        self.link.connection()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_brokers_refuse_in_texts_is_percent_encoded() {
        for plain in ["customer 7 é", "100%", ""] {
            assert_eq!(carried(plain.to_owned()), plain);
        }
        assert_eq!(carried("100% a\nb\u{fffe}é".to_owned()), "100%25 a%0Ab%EF%BF%BEé");
    }
}
