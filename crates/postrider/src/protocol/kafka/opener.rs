//! How a producer is opened.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krafka::Kafka;
use krafka::admin::DescribeClusterOptions;
use krafka::auth::AuthConfig;
use krafka::error::KrafkaError;
use krafka::producer::Producer;
use tokio::sync::OnceCell;

use super::answer;
use super::client::{BATCH_BYTES_MAX, KafkaClient, producer};
use super::config::{ProducerConfig, SaslMechanism};
use super::passage::Passage;
use super::tunnel::KafkaTunnel;
use crate::net::Dialer;
use crate::protocol::broker::BrokerAddress;
use crate::sink::link::{OpenLink, OpenedLink};
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};
use crate::verdict::{Class, Failure};

pub(super) struct KafkaOpener {
    config: ProducerConfig,
    connect_timeout: Duration,
    dialer: Arc<Dialer>,
    secrets: Secrets,
    /// The same for all openers of a link.
    tunnel: Arc<OnceCell<KafkaTunnel>>,
}

impl KafkaOpener {
    pub(super) fn new(
        config: ProducerConfig,
        connect_timeout: Duration,
        tunnel: &Arc<OnceCell<KafkaTunnel>>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let dialer = Arc::new(Dialer::new(&config.tls.clone().unwrap_or_default(), &[], environment)?);
        let secrets = Secrets::new(environment);
        Ok(Self { config, connect_timeout, dialer, secrets, tunnel: Arc::clone(tunnel) })
    }

    async fn open_through(
        &self,
        passage: &Passage,
        login: AuthConfig,
    ) -> Result<(Kafka, Producer), Undelivered> {
        let failed =
            |error: KrafkaError| answer::cannot_open(&error, passage.trouble(), &self.config.brokers);
        let kafka = self.connect(passage, login).await.map_err(failed)?;
        self.check_brokers(&kafka).await?;
        let producer = producer(&kafka, &self.config, BATCH_BYTES_MAX).await.map_err(failed)?;
        Ok((kafka, producer))
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
}

#[async_trait]
impl OpenLink for KafkaOpener {
    type Client = KafkaClient;

    /// The producer keeps what was given up, and would send it.
    const SILENCE_MAX: Duration = Duration::from_secs(1);

    async fn open(&self) -> Result<OpenedLink<KafkaClient>, Undelivered> {
        let encrypted = self.config.tls.is_some();
        let tunnel = self.tunnel.get_or_try_init(async || KafkaTunnel::open(encrypted)).await?;
        let login = self.login()?;
        let passage = tunnel.passage(&self.dialer);
        let (kafka, producer) = tokio::select! {
            biased;
            refused = passage.refused() => return Err(refused),
            opened = self.open_through(&passage, login) => opened?,
        };
        let lost = passage.lost();
        Ok(OpenedLink { client: KafkaClient::new(kafka, self.config.clone(), producer, passage), lost })
    }
}
