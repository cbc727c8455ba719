//! The sink: one producer for all endpoints of a cluster, one record for each delivery.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krafka::producer::DeliveryConfirmation;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::answer;
use super::client::{BATCH_BYTES_MAX, KafkaClient, REQUEST_BYTES_MAX};
use super::config::KafkaConfig;
use super::opener::KafkaOpener;
use super::record::KafkaRecords;
use crate::endpoint::Endpoint;
use crate::sink::link::{Link, LinkKey};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Environment, Sink, SinkConnection, Undelivered};
use crate::verdict::{Failure, Receipt};

pub(super) struct KafkaSink {
    link: Arc<Link<KafkaClient>>,
    brokers: String,
    records: KafkaRecords,
    hand_over_within: Duration,
}

impl KafkaSink {
    pub(super) fn connect(
        config: &KafkaConfig,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let producer = config.producer().map_err(|error| Failure::permanent(error.to_string()))?;
        let brokers = producer.brokers.clone();
        let records = KafkaRecords::new(config, endpoint, &Secrets::new(environment))?;
        let key = LinkKey::of("kafka", &producer);
        let (connect_timeout, tunnel) = (config.connect_timeout, Arc::new(OnceCell::new()));
        let opener = move |environment: &Environment| {
            KafkaOpener::new(producer.clone(), connect_timeout, &tunnel, environment)
        };
        let link = environment.links.shared(key, connect_timeout, environment, opener);
        Ok(Self { link, brokers, records, hand_over_within: config.hand_over_within() })
    }
}

#[async_trait]
impl Sink for KafkaSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let hand_over = Instant::now() + self.hand_over_within;
        let record = self.records.record(delivery);
        let (topic, bytes) = (record.topic.clone(), record.estimated_size());
        if bytes > REQUEST_BYTES_MAX {
            return Err(Failure::permanent(format!(
                "the message has more than the {REQUEST_BYTES_MAX} bytes that Kafka takes"
            ))
            .into());
        }
        let sent = self.link.deliver(async |client: &KafkaClient| {
            let mut sent = client.send(record, hand_over).await;
            // Kafka's limit is one for batches. A larger record had one of its own.
            if bytes <= BATCH_BYTES_MAX && sent.as_ref().is_err_and(answer::is_too_large) {
                sent = client.send_single(self.records.record(delivery), hand_over).await;
            }
            let options = &delivery.message.options;
            let chosen = options.contains_key("topic") || options.contains_key("partition");
            sent.map_err(|error| answer::failure(&error, &self.brokers, &topic, chosen).into())
        });
        match sent.await?.delivery {
            DeliveryConfirmation::Offset | DeliveryConfirmation::Deduplicated => Ok(Receipt::default()),
            other => Err(Failure::retryable(format!("{} confirmed only {other:?}", self.brokers)).into()),
        }
    }

    fn connection(&self) -> SinkConnection {
        self.link.connection()
    }
}
