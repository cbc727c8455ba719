//! Opens a connection and signs in.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::either::Either;
use uuid::Uuid;

use super::config::NatsConnectionConfig;
use super::connection::{NatsClient, NatsConnection};
use super::exchange::{NatsExchange, is_denial};
use super::nkey::{NatsCredentials, NatsKey};
use super::wire::{self, NatsInfo, NatsOperation};
use crate::net::{Dialer, Stream, judge, short};
use crate::protocol::broker::BrokerAddress;
use crate::sink::link::{OpenLink, OpenedLink};
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};
use crate::verdict::Failure;

pub(super) struct NatsOpener {
    config: NatsConnectionConfig,
    address: Arc<BrokerAddress>,
    dialer: Dialer,
    secrets: Secrets,
}

impl NatsOpener {
    pub(super) fn new(
        config: &NatsConnectionConfig,
        address: Arc<BrokerAddress>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let dialer = Dialer::new(&config.tls.clone().unwrap_or_default(), &[], environment)?;
        Ok(Self { config: config.clone(), address, dialer, secrets: Secrets::new(environment) })
    }

    /// The server speaks first, usually in plain text. Its INFO may name other servers; they are never used.
    async fn connect(&self) -> Result<(NatsConversation, NatsInfo), Undelivered> {
        let BrokerAddress { host, port } = &*self.address;
        let stream = self.dialer.open(host, *port, self.config.tls_first).await?;
        let address = Arc::clone(&self.address);
        let mut conversation = NatsConversation { stream, incoming: BytesMut::new(), address };
        let NatsOperation::Info(info) = conversation.next().await? else {
            return Err(conversation.failure("did not begin with an INFO, so it is no NATS server"));
        };
        if !info.headers {
            return Err(conversation.failure("knows no headers; NATS 2.2 or later is needed"));
        }
        if self.config.tls_first {
            return Ok((conversation, info));
        }
        let is_encrypted = self.config.is_encrypted();
        if is_encrypted && !info.tls_required && !info.tls_available {
            return Err(conversation.failure("does not offer TLS"));
        }
        if is_encrypted || info.tls_required {
            conversation = conversation.encrypted(&self.dialer).await?;
        }
        Ok((conversation, info))
    }

    fn options(&self, nonce: &str) -> Result<Value, Undelivered> {
        let NatsConnectionConfig { token, username, password, nkey_seed, creds, .. } = &self.config;
        let mut options = json!({
            "name": "postrider",
            "lang": "rust",
            "version": env!("CARGO_PKG_VERSION"),
            // Later changes of INFO are sent, too.
            "protocol": 1,
            "verbose": false,
            "pedantic": false,
            "echo": false,
            "headers": true,
            "no_responders": true,
            "tls_required": self.config.is_encrypted(),
        });
        let mut set = |name: &str, text: String| options[name] = text.into();
        if let Some(token) = token {
            set("auth_token", self.secrets.reveal(token)?);
        }
        if let (Some(username), Some(password)) = (username, password) {
            set("user", username.clone());
            set("pass", self.secrets.reveal(password)?);
        }
        if let Some(seed) = nkey_seed {
            let key = self.secrets.reveal_as(seed, NatsKey::parse)?;
            set("nkey", key.public());
            set("sig", key.sign(nonce));
        }
        if let Some(creds) = creds {
            let NatsCredentials { jwt, key } = self.secrets.reveal_as(creds, NatsCredentials::parse)?;
            set("jwt", jwt);
            set("sig", key.sign(nonce));
        }
        Ok(options)
    }
}

#[async_trait]
impl OpenLink for NatsOpener {
    type Client = NatsClient;

    async fn open(&self) -> Result<OpenedLink<NatsClient>, Undelivered> {
        let (mut conversation, info) = self.connect().await?;
        let options = self.options(&info.nonce)?;
        // Nobody can guess it, so nobody else can acknowledge.
        let inbox = format!("_INBOX.{}.", Uuid::new_v4().simple());
        conversation.say(&format!("CONNECT {options}\r\nSUB {inbox}* 1\r\nPING\r\n")).await?;
        let hears_streams = conversation.is_welcome().await?;
        let NatsConversation { stream, incoming, .. } = conversation;
        let exchange = NatsExchange::new(inbox, hears_streams, info.max_payload, incoming);
        let (client, connection) = NatsConnection::new(stream, exchange);
        let address = Arc::clone(&self.address);
        let lost = Box::pin(async move { format!("{address}: {}", connection.run().await) });
        Ok(OpenedLink { client, lost })
    }
}

/// One question, one answer, until we are signed in.
struct NatsConversation {
    stream: Stream,
    incoming: BytesMut,
    address: Arc<BrokerAddress>,
}

impl NatsConversation {
    /// What came in plain text behind INFO could be from anyone: it is dropped.
    async fn encrypted(self, dialer: &Dialer) -> Result<Self, Undelivered> {
        let Self { stream, address, .. } = self;
        let stream = match stream {
            Either::Left(plain) => Either::Right(dialer.encrypt(plain, &address.host).await?),
            encrypted @ Either::Right(_) => encrypted,
        };
        Ok(Self { stream, incoming: BytesMut::new(), address })
    }

    async fn next(&mut self) -> Result<NatsOperation, Undelivered> {
        loop {
            if let Some(operation) = wire::take(&mut self.incoming).map_err(|why| self.failure(&why))? {
                return Ok(operation);
            }
            match self.stream.read_buf(&mut self.incoming).await {
                Ok(0) => return Err(self.failure("closed the connection before the sign-in was finished")),
                Ok(_) => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    async fn say(&mut self, text: &str) -> Result<(), Undelivered> {
        let said = async {
            self.stream.write_all(text.as_bytes()).await?;
            self.stream.flush().await
        };
        said.await.map_err(|error| self.lost(&error))
    }

    /// May we sign in? True if we may hear of acknowledgements, too.
    async fn is_welcome(&mut self) -> Result<bool, Undelivered> {
        let mut hears_streams = true;
        loop {
            match self.next().await? {
                NatsOperation::Pong => return Ok(hears_streams),
                NatsOperation::Error(error) if is_denial(&error) => hears_streams = false,
                NatsOperation::Error(error) => {
                    return Err(self.failure(&format!("refused the sign-in: {error}")));
                }
                NatsOperation::Ping => self.say("PONG\r\n").await?,
                NatsOperation::Info(_) | NatsOperation::Okay | NatsOperation::Message(_) => {}
            }
        }
    }

    /// An operator can mend it, so messages wait.
    fn failure(&self, why: &str) -> Undelivered {
        Failure::retryable(format!("{} {why}", self.address)).into()
    }

    fn lost(&self, error: &std::io::Error) -> Undelivered {
        let failure =
            format!("the connection to {} was lost during the sign-in: {}", self.address, short(error));
        judge(error, Failure::retryable(failure))
    }
}
