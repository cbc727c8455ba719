//! A producer, and how it is opened and dropped.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krafka::admin::DescribeClusterOptions;
use krafka::auth::AuthConfig;
use krafka::error::KrafkaError;
use krafka::producer::{Acks, Producer, Record, RecordMetadata};
use krafka::{CloseOptions, Compression, Kafka};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use super::answer;
use super::config::{KafkaCompression, ProducerConfig, SaslMechanism};
use super::passage::Passage;
use super::tunnel::KafkaTunnel;
use crate::net::Dialer;
use crate::protocol::broker::BrokerAddress;
use crate::sink::link::{OpenLink, OpenedLink};
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};
use crate::verdict::{Class, Failure};

/// Kafka's brokers take no larger request.
pub(super) const REQUEST_BYTES_MAX: usize = 100 << 20;
/// Records of one partition that wait while a batch is under way go together in the next, up to this size.
pub(super) const BATCH_BYTES_MAX: usize = 64 << 10;
/// Room for the attempts of a node with messages of 1 MiB. Larger ones wait for room, as long as for their topic.
const BUFFER_BYTES_MAX: usize = 1 << 30;
/// How long a delivery waits for the metadata of its topic. A topic that exists is known after one round trip.
const TOPIC_WAIT: Duration = Duration::from_secs(2);

pub(super) struct KafkaClient {
    producer: Arc<Producer>,
    passage: Passage,
}

impl KafkaClient {
    pub(super) async fn send(&self, record: Record) -> Result<RecordMetadata, KrafkaError> {
        let sent = self.producer.send(record).await;
        if let Err(error) = &sent
            && error.is_fatal()
        {
            self.passage.lose(format!("the producer cannot be used any more: {error}"));
        }
        sent
    }
}

/// A dropped producer would go on to send what it holds. Its connections are cut first, so that nothing leaves.
impl Drop for KafkaClient {
    fn drop(&mut self) {
        self.passage.cut();
        if let Ok(runtime) = Handle::try_current() {
            let producer = Arc::clone(&self.producer);
            runtime.spawn(async move {
                let _ = producer.close_with(CloseOptions::new().timeout(Duration::ZERO)).await;
            });
        }
    }
}

pub(super) struct KafkaOpener {
    config: ProducerConfig,
    connect_timeout: Duration,
    dialer: Arc<Dialer>,
    secrets: Secrets,
    tunnel: OnceCell<KafkaTunnel>,
}

impl KafkaOpener {
    pub(super) fn new(
        config: ProducerConfig,
        connect_timeout: Duration,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let dialer = Arc::new(Dialer::new(&config.tls.clone().unwrap_or_default(), &[], environment)?);
        let secrets = Secrets::new(environment);
        Ok(Self { config, connect_timeout, dialer, secrets, tunnel: OnceCell::new() })
    }

    async fn open_through(&self, passage: &Passage, login: AuthConfig) -> Result<Producer, Undelivered> {
        let failed =
            |error: KrafkaError| answer::cannot_open(&error, passage.trouble(), &self.config.brokers);
        let kafka = self.connect(passage, login).await.map_err(failed)?;
        self.check_brokers(&kafka).await?;
        self.producer(&kafka).await.map_err(failed)
    }

    fn login(&self) -> Result<AuthConfig, Undelivered> {
        let Some(sasl) = &self.config.sasl else { return Ok(AuthConfig::plaintext()) };
        let password = self.secrets.reveal(&sasl.password)?;
        Ok(match sasl.mechanism {
            SaslMechanism::Plain => AuthConfig::sasl_plain(&sasl.username, password),
            SaslMechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(&sasl.username, password),
            SaslMechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(&sasl.username, password),
        })
    }

    async fn connect(&self, passage: &Passage, login: AuthConfig) -> Result<Kafka, KrafkaError> {
        Kafka::builder(&self.config.brokers)
            .client_id("postrider")
            .proxy(passage.proxy())
            // The tunnel encrypts, so the client does not.
            .security(login)
            .connect_timeout(self.connect_timeout.min(self.config.patience))
            .request_timeout(self.config.patience)
            // The tunnel must hear of every connection that is gone, and the broker closes idle ones itself.
            .connections_max_idle(None)
            .connect()
            .await
    }

    /// One broker at an internal address is enough to refuse the cluster. The tunnel would refuse to connect to it, but
    /// only when messages were handed to the producer.
    async fn check_brokers(&self, kafka: &Kafka) -> Result<(), Failure> {
        // Brokers before 2.8 cannot tell. Then the tunnel alone refuses.
        let Ok(cluster) = kafka.admin().describe_cluster(DescribeClusterOptions::default()).await else {
            return Ok(());
        };
        for broker in cluster.brokers {
            let port = u16::try_from(broker.port).unwrap_or_default();
            let Ok(BrokerAddress { host, port }) = BrokerAddress::new("brokers", &broker.host, port) else {
                continue;
            };
            // A name that cannot be resolved now may be a broker that is down.
            if let Err(Undelivered::Failed(failure)) = self.dialer.check(&host, port).await
                && failure.class == Class::Permanent
            {
                return Err(failure);
            }
        }
        Ok(())
    }

    async fn producer(&self, kafka: &Kafka) -> Result<Producer, KrafkaError> {
        let compression = match self.config.compression {
            KafkaCompression::None => Compression::None,
            KafkaCompression::Gzip => Compression::Gzip,
            KafkaCompression::Snappy => Compression::Snappy,
            KafkaCompression::Lz4 => Compression::Lz4,
            KafkaCompression::Zstd => Compression::Zstd,
        };
        kafka
            .producer()
            .acks(Acks::All)
            .idempotent(self.config.idempotence)
            .compression(compression)
            // A batch is sent at once if its partition has none under way.
            .linger(Duration::ZERO)
            .batch_size(BATCH_BYTES_MAX)
            .max_request_size(REQUEST_BYTES_MAX)
            .buffer_memory(BUFFER_BYTES_MAX)
            .max_block(TOPIC_WAIT)
            .delivery_timeout(self.config.patience)
            .metrics_push(false)
            .build()
            .await
    }
}

#[async_trait]
impl OpenLink for KafkaOpener {
    type Client = KafkaClient;

    /// The producer keeps what was given up, and would send it.
    const SILENCE_MAX: Duration = Duration::from_secs(1);

    async fn open(&self) -> Result<OpenedLink<KafkaClient>, Undelivered> {
        let encrypted = self.config.tls.is_some();
        let tunnel = self
            .tunnel
            .get_or_try_init(async || KafkaTunnel::open(Arc::clone(&self.dialer), encrypted))
            .await?;
        let login = self.login()?;
        let passage = tunnel.passage();
        let producer = tokio::select! {
            biased;
            refused = passage.refused() => return Err(refused),
            producer = self.open_through(&passage, login) => producer?,
        };
        let lost = passage.lost();
        Ok(OpenedLink { client: KafkaClient { producer: Arc::new(producer), passage }, lost })
    }
}
