//! The sink: one connection for all endpoints of a server, one message for each delivery.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::answer::{self, NatsDestination};
use super::config::{HEADERS, NatsConfig, check_subject};
use super::connection::NatsClient;
use super::exchange::NatsMessage;
use super::open::NatsOpener;
use super::wire::{self, push_header};
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::protocol::broker::BrokerAddress;
use crate::protocol::cloudevents::{CloudEvents, CloudEventsMode, ENVELOPE};
use crate::protocol::headers::carried;
use crate::sink::link::{Link, LinkKey};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Environment, Sink, SinkConnection, Undelivered};
use crate::verdict::{Failure, Receipt};

const MESSAGE_ID: &str = "Nats-Msg-Id";
const CONTENT_TYPE: &str = "content-type";

pub(super) struct NatsSink {
    link: Arc<Link<NatsClient>>,
    address: Arc<BrokerAddress>,
    subject: String,
    jetstream: bool,
    headers: Vec<NatsHeader>,
    cloudevents: Option<CloudEvents>,
}

/// Of an endpoint.
struct NatsHeader {
    name: String,
    value: String,
    /// May no message replace it?
    is_kept: bool,
}

impl NatsSink {
    pub(super) fn connect(
        config: &NatsConfig,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let address =
            Arc::new(config.connection.address().map_err(|error| Failure::permanent(error.to_string()))?);
        let headers = headers(config, endpoint, &Secrets::new(environment))?;
        let key = LinkKey::of("nats", &config.connection);
        let (connection, at) = (config.connection.clone(), Arc::clone(&address));
        let opener =
            move |environment: &Environment| NatsOpener::new(&connection, Arc::clone(&at), environment);
        let link = environment.links.shared(key, config.connect_timeout, environment, opener);
        Ok(Self {
            link,
            address,
            subject: config.subject.clone(),
            jetstream: config.jetstream,
            headers,
            cloudevents: CloudEvents::of(config.cloudevents, &config.cloudevents_type, &endpoint.name),
        })
    }

    fn message(&self, delivery: &Delivery) -> Result<NatsMessage, Failure> {
        let message = &*delivery.message;
        let subject = message.options.get("subject").and_then(|subject| subject.as_str());
        let subject = subject.unwrap_or(&self.subject).to_owned();
        check_subject(&subject).map_err(|rule| Failure::permanent(format!("options.subject: {rule}")))?;
        let mut block = wire::headers();
        push_header(&mut block, MESSAGE_ID, &delivery.public_id());
        for (name, value) in delivery.facts() {
            push_header(&mut block, name, &carried(&value));
        }
        self.push_headers(&mut block, message)?;
        let payload = self.push_content(&mut block, delivery)?;
        Ok(NatsMessage { subject, headers: block, payload, jetstream: self.jetstream })
    }

    /// Those of the message, and those of the endpoint that the message does not replace.
    fn push_headers(&self, block: &mut Vec<u8>, message: &Message) -> Result<(), Failure> {
        let own = |name: &str| self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        for (name, value) in &message.headers {
            checked(name, value).map_err(|rule| Failure::permanent(format!("headers.{name}: {rule}")))?;
            if !own(name).is_some_and(|own| own.is_kept) {
                push_header(block, name, value);
            }
        }
        let replaced = |name: &str| message.headers.keys().any(|other| other.eq_ignore_ascii_case(name));
        for NatsHeader { name, value, is_kept } in &self.headers {
            if *is_kept || !replaced(name) {
                push_header(block, name, value);
            }
        }
        Ok(())
    }

    /// What the payload is; returns it as it is sent.
    fn push_content(&self, block: &mut Vec<u8>, delivery: &Delivery) -> Result<Bytes, Failure> {
        let message = &*delivery.message;
        let structured = self.cloudevents.as_ref().filter(|event| event.mode == CloudEventsMode::Structured);
        if let Some(event) = structured {
            push_header(block, CONTENT_TYPE, ENVELOPE);
            return Ok(event.envelope(delivery, &delivery.public_id()));
        }
        HEADERS
            .check_value(CONTENT_TYPE, &message.content_type)
            .map_err(|rule| Failure::permanent(format!("content_type: {rule}")))?;
        push_header(block, CONTENT_TYPE, &message.content_type);
        if let Some(event) = &self.cloudevents {
            for (name, value) in event.attributes(delivery, &delivery.public_id()) {
                push_header(block, &format!("ce-{name}"), &carried(&value));
            }
            push_header(block, "ce-datacontenttype", &carried(&message.content_type));
        }
        Ok(message.payload.clone())
    }
}

fn headers(
    config: &NatsConfig,
    endpoint: &Endpoint,
    secrets: &Secrets,
) -> Result<Vec<NatsHeader>, Undelivered> {
    let header = |(name, text): (&String, &String)| {
        let value = secrets.reveal_as(text, |text| checked(name, text).map(|()| text.to_owned()))?;
        Ok(NatsHeader { name: name.clone(), value, is_kept: endpoint.keeps_header(name) })
    };
    config.headers.iter().map(header).collect()
}

fn checked(name: &str, value: &str) -> Result<(), String> {
    HEADERS.check_name(name)?;
    HEADERS.check_value(name, value)
}

#[async_trait]
impl Sink for NatsSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let message = self.message(delivery)?;
        let subject = message.subject.clone();
        let send = async |client: &NatsClient| {
            let answer = client.publish(message).await;
            answer.ok_or_else(|| {
                let error = format!("the connection to {} was lost", self.address);
                Failure { ambiguous: true, ..Failure::retryable(error) }.into()
            })
        };
        let answer = self.link.deliver(send).await?;
        let named_by_message = delivery.message.options.contains_key("subject");
        let destination = NatsDestination { address: &self.address, subject: &subject, named_by_message };
        Ok(answer::judged(answer, &destination)?)
    }

    fn connection(&self) -> SinkConnection {
        self.link.connection()
    }
}
