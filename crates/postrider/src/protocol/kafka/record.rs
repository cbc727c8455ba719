//! Messages as records of Kafka.

use std::sync::Arc;

use bytes::Bytes;
use krafka::Record;
use serde_json::Value;

use super::config::KafkaConfig;
use crate::endpoint::Endpoint;
use crate::protocol::cloudevents::{CloudEvents, CloudEventsMode, ENVELOPE};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Undelivered};

/// What all records of an endpoint have in common.
pub(super) struct KafkaRecords {
    topic: String,
    key: Option<String>,
    partition: Option<i32>,
    headers: Vec<EndpointHeader>,
    events: Option<CloudEvents>,
}

struct EndpointHeader {
    name: String,
    value: Bytes,
    /// Messages may not replace it.
    kept: bool,
}

impl KafkaRecords {
    pub(super) fn new(
        config: &KafkaConfig,
        endpoint: &Endpoint,
        secrets: &Secrets,
    ) -> Result<Self, Undelivered> {
        let header = |(name, text): (&String, &String)| {
            let value = secrets.reveal(text)?.into();
            Ok(EndpointHeader { name: name.clone(), value, kept: endpoint.keeps_header(name) })
        };
        let name: Arc<str> = endpoint.name.to_string().into();
        Ok(Self {
            topic: config.topic.clone(),
            key: config.key.clone(),
            partition: config.partition,
            headers: config.headers.iter().map(header).collect::<Result<_, Undelivered>>()?,
            events: CloudEvents::of(config.cloudevents, &config.cloudevents_type, &name),
        })
    }

    pub(super) fn record(&self, delivery: &Delivery) -> Record {
        let message = &*delivery.message;
        let id = delivery.public_id();
        let (content_type, value) = match &self.events {
            Some(events) if events.mode == CloudEventsMode::Structured => {
                (ENVELOPE, events.envelope(delivery, &id))
            }
            Some(_) | None => (message.content_type.as_str(), message.payload.clone()),
        };
        let option = |name: &str| message.options.get(name);
        let topic = option("topic").and_then(Value::as_str).unwrap_or(&self.topic);
        let mut record = Record::new(topic, value).header("content-type", content_type.to_owned());
        if let Some(events) = self.events.as_ref().filter(|events| events.mode == CloudEventsMode::Binary) {
            for (name, value) in events.attributes(delivery, &id) {
                record = record.header(format!("ce_{name}"), value);
            }
        }
        record = record.header("postrider-id", id);
        for (name, value) in delivery.facts() {
            record = record.header(name, value);
        }
        record = self.with_headers(record, delivery);
        let key = option("key").and_then(Value::as_str).or(self.key.as_deref());
        if let Some(key) = key.or(message.ordering_key.as_deref()) {
            record = record.key(key.to_owned());
        }
        let partition = option("partition").and_then(Value::as_i64).and_then(|number| number.try_into().ok());
        match partition.or(self.partition) {
            Some(partition) => record.partition(partition),
            None => record,
        }
    }

    /// Those of the message replace those of the endpoint, unless it keeps them.
    fn with_headers(&self, mut record: Record, delivery: &Delivery) -> Record {
        let own = &delivery.message.headers;
        let has = |name: &str| own.keys().any(|other| other.eq_ignore_ascii_case(name));
        for header in self.headers.iter().filter(|header| header.kept || !has(&header.name)) {
            record = record.header(header.name.clone(), header.value.clone());
        }
        let is_kept =
            |name: &str| self.headers.iter().any(|kept| kept.kept && kept.name.eq_ignore_ascii_case(name));
        for (name, value) in own.iter().filter(|(name, _)| !is_kept(name)) {
            record = record.header(name.clone(), value.clone());
        }
        record
    }
}
