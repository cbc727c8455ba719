//! The sink: one connection for all endpoints of a broker, one publication for each delivery.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::config::{AmqpConfig, AmqpConnectionConfig};
use super::connection::{AmqpClient, AmqpConnection};
use super::publication::PublicationTemplate;
use super::sign_in::{AmqpLogin, sign_in};
use crate::endpoint::Endpoint;
use crate::net::Dialer;
use crate::protocol::broker::BrokerAddress;
use crate::protocol::{MessageOptions, ProtocolConfig as _};
use crate::sink::link::{Link, LinkKey, OpenLink, OpenedLink};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Environment, Sink, SinkConnection, Undelivered};
use crate::verdict::{Failure, Receipt, ReceiverHealth};

/// The user that brokers come with.
const GUEST: &str = "guest";
/// A delivery to a blocked broker ends this much before the engine's deadline, to say what it waited for.
const BEFORE_DEADLINE_MAX: Duration = Duration::from_millis(250);

pub(super) struct AmqpSink {
    link: Arc<Link<AmqpClient>>,
    template: PublicationTemplate,
    timeout: Duration,
}

impl AmqpSink {
    pub(super) fn connect(
        config: &AmqpConfig,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let address =
            Arc::new(config.connection.address().map_err(|error| Failure::permanent(error.to_string()))?);
        let template = PublicationTemplate::new(config, endpoint, &Secrets::new(environment))?;
        let key = LinkKey::of("amqp", &config.connection);
        let connection = config.connection.clone();
        let opener =
            move |environment: &Environment| AmqpOpener::new(&connection, Arc::clone(&address), environment);
        let link = environment.links.shared(key, config.connect_timeout, environment, opener);
        Ok(Self { link, template, timeout: config.timeout() })
    }
}

#[async_trait]
impl Sink for AmqpSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let timeout = MessageOptions::of(&delivery.message.options).timeout.unwrap_or(self.timeout);
        let give_up = Instant::now() + timeout - BEFORE_DEADLINE_MAX.min(timeout / 10);
        let publication = self.template.fill(delivery)?;
        let send = async |client: &AmqpClient| {
            tokio::select! {
                biased;
                answer = client.publish(publication) => answer,
                failure = still_blocked(client, give_up) => Err(failure.into()),
            }
        };
        self.link.deliver(send).await?;
        Ok(Receipt::default())
    }

    fn connection(&self) -> SinkConnection {
        match self.link.look(AmqpClient::blocked) {
            Some(Some(error)) => SinkConnection::Down { error },
            Some(None) | None => self.link.connection(),
        }
    }
}

/// At this time. Never ends if the broker is not blocked then.
async fn still_blocked(client: &AmqpClient, at: Instant) -> Failure {
    tokio::time::sleep_until(at).await;
    match client.blocked() {
        Some(error) => Failure { receiver: ReceiverHealth::Overloaded, ..Failure::retryable(error) },
        None => std::future::pending().await,
    }
}

struct AmqpOpener {
    config: AmqpConnectionConfig,
    address: Arc<BrokerAddress>,
    dialer: Dialer,
    secrets: Secrets,
}

impl AmqpOpener {
    fn new(
        config: &AmqpConnectionConfig,
        address: Arc<BrokerAddress>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let dialer = Dialer::new(&config.tls.clone().unwrap_or_default(), &[], environment)?;
        Ok(Self { config: config.clone(), address, dialer, secrets: Secrets::new(environment) })
    }

    fn login(&self) -> Result<AmqpLogin, Undelivered> {
        let AmqpConnectionConfig { vhost, username, password, heartbeat, .. } = &self.config;
        let password = password.as_ref().map(|password| self.secrets.reveal(password)).transpose()?;
        let username = username.as_deref().unwrap_or(GUEST);
        Ok(AmqpLogin::new(vhost, username, password.as_deref().unwrap_or(GUEST), *heartbeat)?)
    }
}

#[async_trait]
impl OpenLink for AmqpOpener {
    type Client = AmqpClient;

    async fn open(&self) -> Result<OpenedLink<AmqpClient>, Undelivered> {
        let BrokerAddress { host, port } = &*self.address;
        let login = self.login()?;
        let stream = self.dialer.open(host, *port, self.config.tls.is_some()).await?;
        let signed_in = sign_in(stream, &login)
            .await
            .map_err(|why| Failure::retryable(format!("cannot sign in at {}: {why}", self.address)))?;
        let (client, connection) = AmqpConnection::new(signed_in, Arc::clone(&self.address));
        Ok(OpenedLink { client, lost: Box::pin(connection.run()) })
    }
}
