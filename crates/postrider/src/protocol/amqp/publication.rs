//! One message as AMQP carries it.

use std::collections::BTreeMap;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::basic::{self, AMQPMethod, AMQPProperties};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};
use bytes::Bytes;

use super::config::AmqpConfig;
use super::frames::{FrameWriter, encoded};
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::protocol::cloudevents::{CloudEvents, CloudEventsMode, ENVELOPE};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Undelivered};
use crate::verdict::Failure;

const CLASS_BASIC: u16 = 60;
const TRANSIENT: u8 = 1;
const PERSISTENT: u8 = 2;

/// All that messages of one endpoint share.
pub(super) struct PublicationTemplate {
    exchange: ShortString,
    routing_key: ShortString,
    persistent: bool,
    mandatory: bool,
    headers: BTreeMap<String, String>,
    /// Those that no message may replace.
    kept: Vec<String>,
    cloudevents: Option<CloudEvents>,
}

pub(super) struct Publication {
    method: basic::Publish,
    id: ShortString,
    properties: AMQPProperties,
    body: Bytes,
}

impl PublicationTemplate {
    pub(super) fn new(
        config: &AmqpConfig,
        endpoint: &Endpoint,
        secrets: &Secrets,
    ) -> Result<Self, Undelivered> {
        let mut headers = BTreeMap::new();
        for (name, text) in &config.headers {
            headers.insert(name.clone(), secrets.reveal(text)?);
        }
        Ok(Self {
            exchange: name("config.exchange", &config.exchange)?,
            routing_key: name("config.routing_key", &config.routing_key)?,
            persistent: config.persistent,
            mandatory: config.mandatory,
            kept: headers.keys().filter(|name| endpoint.keeps_header(name)).cloned().collect(),
            headers,
            cloudevents: CloudEvents::of(config.cloudevents, &config.cloudevents_type, &endpoint.name),
        })
    }

    pub(super) fn fill(&self, delivery: &Delivery) -> Result<Publication, Failure> {
        let message = &*delivery.message;
        let id = delivery.public_id();
        let mut headers = self.headers(message)?;
        for (fact, value) in delivery.facts() {
            set(&mut headers, fact, &value)?;
        }
        let (content_type, body) = match &self.cloudevents {
            None => (message.content_type.as_str(), message.payload.clone()),
            Some(event) if event.mode == CloudEventsMode::Structured => {
                (ENVELOPE, event.envelope(delivery, &id))
            }
            Some(event) => {
                for (attribute, value) in event.attributes(delivery, &id) {
                    set(&mut headers, &format!("cloudEvents:{attribute}"), &value)?;
                }
                (message.content_type.as_str(), message.payload.clone())
            }
        };
        let id = name("id", &id)?;
        let mut properties = AMQPProperties::default()
            .with_message_id(id.clone())
            .with_content_type(name("content_type", content_type)?)
            .with_delivery_mode(self.delivery_mode(message))
            .with_headers(headers);
        if message.priority > 0 {
            properties = properties.with_priority(message.priority);
        }
        Ok(Publication { method: self.method(message)?, id, properties, body })
    }

    /// The endpoint's, and the message's in their place.
    fn headers(&self, message: &Message) -> Result<FieldTable, Failure> {
        let mut headers = FieldTable::default();
        let is_kept = |name: &str| self.kept.iter().any(|kept| kept.eq_ignore_ascii_case(name));
        let is_replaced = |name: &str| message.headers.keys().any(|own| own.eq_ignore_ascii_case(name));
        let of_endpoint = self.headers.iter().filter(|(name, _)| is_kept(name) || !is_replaced(name));
        // The endpoint may have begun to set one after the message was sent.
        let of_message = message.headers.iter().filter(|(name, _)| !is_kept(name));
        for (name, value) in of_endpoint.chain(of_message) {
            set(&mut headers, name, value)?;
        }
        Ok(headers)
    }

    fn delivery_mode(&self, message: &Message) -> u8 {
        let persistent = message.options.get("persistent").and_then(|flag| flag.as_bool());
        if persistent.unwrap_or(self.persistent) { PERSISTENT } else { TRANSIENT }
    }

    fn method(&self, message: &Message) -> Result<basic::Publish, Failure> {
        let routing_key = match message.options.get("routing_key").and_then(|key| key.as_str()) {
            Some(key) => name("options.routing_key", key)?,
            None => self.routing_key.clone(),
        };
        let (exchange, mandatory) = (self.exchange.clone(), self.mandatory);
        Ok(basic::Publish { exchange, routing_key, mandatory, immediate: false })
    }
}

fn set(headers: &mut FieldTable, key: &str, value: &str) -> Result<(), Failure> {
    headers.insert(name("the name of a header", key)?, AMQPValue::LongString(LongString::from(value)));
    Ok(())
}

fn name(field: &str, text: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(text)
        .map_err(|_| Failure::permanent(format!("{field}: has {} bytes; AMQP takes 255", text.len())))
}

impl Publication {
    pub(super) fn id(&self) -> &str {
        self.id.as_str()
    }

    pub(super) fn exchange(&self) -> &ShortString {
        &self.method.exchange
    }

    pub(super) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// On this channel. Refused where the properties do not fit: they have to be in one frame, and a longer one would end the
    /// connection for all.
    pub(super) fn write(&self, channel: u16, writer: &mut FrameWriter) -> Result<(), Failure> {
        let properties = encoded(&AMQPFrame::Header(
            channel,
            AMQPContentHeader {
                class_id: CLASS_BASIC,
                body_size: self.body.len() as u64,
                properties: self.properties.clone(),
            },
        ));
        if properties.len() > writer.frame_max {
            return Err(Failure::permanent(format!(
                "headers and properties take {} bytes; this broker takes {}",
                properties.len(),
                writer.frame_max
            )));
        }
        writer.method(channel, AMQPClass::Basic(AMQPMethod::Publish(self.method.clone())));
        writer.bytes(&properties);
        writer.body(channel, &self.body);
        Ok(())
    }
}
