//! One message as AMQP carries it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes};

use super::config::AmqpConfig;
use super::frames::FrameWriter;
use super::wire::{self, WireFields};
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::protocol::cloudevents::{CloudEvents, CloudEventsMode, ENVELOPE};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Undelivered};
use crate::verdict::Failure;

const CLASS_BASIC: u16 = 60;
const TRANSIENT: u8 = 1;
const PERSISTENT: u8 = 2;
const ALWAYS_GIVEN: u16 = wire::CONTENT_TYPE | wire::HEADERS | wire::DELIVERY_MODE | wire::MESSAGE_ID;

/// All that messages of one endpoint share.
pub(super) struct PublicationTemplate {
    exchange: Arc<str>,
    routing_key: String,
    persistent: bool,
    mandatory: bool,
    headers: BTreeMap<String, String>,
    /// Those that no message may replace.
    kept: Vec<String>,
    cloudevents: Option<CloudEvents>,
}

pub(super) struct Publication {
    exchange: Arc<str>,
    id: String,
    /// Of the method that publishes it.
    arguments: WireFields,
    properties: WireFields,
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
            exchange: config.exchange.as_str().into(),
            routing_key: config.routing_key.clone(),
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
        let mut headers = self.headers(message);
        headers.extend(delivery.facts().map(|(fact, value)| (fact.to_owned(), value)));
        let (content_type, body) = match &self.cloudevents {
            None => (message.content_type.as_str(), message.payload.clone()),
            Some(event) if event.mode == CloudEventsMode::Structured => {
                (ENVELOPE, event.envelope(delivery, &id))
            }
            Some(event) => {
                let attributes = event.attributes(delivery, &id).into_iter();
                headers.extend(attributes.map(|(name, value)| (format!("cloudEvents:{name}"), value)));
                (message.content_type.as_str(), message.payload.clone())
            }
        };
        let mut table = WireFields::default();
        headers.iter().try_for_each(|(name, value)| table.header(name, value))?;
        let has_priority = if message.priority > 0 { wire::PRIORITY } else { 0 };
        let mut properties = WireFields::default();
        properties.0.put_u16(CLASS_BASIC);
        properties.0.put_u16(0);
        properties.0.put_u64(body.len() as u64);
        properties.0.put_u16(ALWAYS_GIVEN | has_priority);
        properties.short("content_type", content_type)?;
        properties.long(&table.0);
        properties.0.put_u8(self.delivery_mode(message));
        if has_priority != 0 {
            properties.0.put_u8(message.priority);
        }
        properties.short("id", &id)?;
        Ok(Publication {
            exchange: Arc::clone(&self.exchange),
            id,
            arguments: self.arguments(message)?,
            properties,
            body,
        })
    }

    /// The endpoint's, and the message's in their place.
    fn headers(&self, message: &Message) -> BTreeMap<String, String> {
        let is_kept = |name: &str| self.kept.iter().any(|kept| kept.eq_ignore_ascii_case(name));
        let is_replaced = |name: &str| message.headers.keys().any(|own| own.eq_ignore_ascii_case(name));
        let of_endpoint = self.headers.iter().filter(|(name, _)| is_kept(name) || !is_replaced(name));
        // The endpoint may have begun to set one after the message was sent.
        let of_message = message.headers.iter().filter(|(name, _)| !is_kept(name));
        of_endpoint.chain(of_message).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn delivery_mode(&self, message: &Message) -> u8 {
        let persistent = message.options.get("persistent").and_then(|flag| flag.as_bool());
        if persistent.unwrap_or(self.persistent) { PERSISTENT } else { TRANSIENT }
    }

    fn arguments(&self, message: &Message) -> Result<WireFields, Failure> {
        let routing_key = message.options.get("routing_key").and_then(|key| key.as_str());
        let mut arguments = WireFields::default();
        arguments.0.put_u16(0);
        arguments.short("exchange", &self.exchange)?;
        arguments.short("routing_key", routing_key.unwrap_or(&self.routing_key))?;
        arguments.0.put_u8(self.mandatory.into());
        Ok(arguments)
    }
}

impl Publication {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn exchange(&self) -> &Arc<str> {
        &self.exchange
    }

    pub(super) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// On this channel. Refused where the properties do not fit: they have to be in one frame, and a longer one would end the
    /// connection for all.
    pub(super) fn write(&self, channel: u16, writer: &mut FrameWriter) -> Result<(), Failure> {
        let bytes = self.properties.0.len() + wire::FRAME_EXTRA;
        if bytes > writer.frame_max {
            let limit = writer.frame_max;
            return Err(Failure::permanent(format!(
                "headers and properties take {bytes} bytes; this broker takes {limit}"
            )));
        }
        writer.method(channel, wire::BASIC_PUBLISH, &self.arguments.0);
        writer.frame(wire::PROPERTIES, channel, &self.properties.0);
        writer.body(channel, &self.body);
        Ok(())
    }
}
