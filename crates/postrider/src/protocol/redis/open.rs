//! Opens a connection and signs in. The crate would sign in, too, but keeps to itself what the server says.

use std::sync::Arc;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, RedisResult, Value, cmd};
use tokio::io::AsyncWriteExt as _;

use super::answer;
use super::config::RedisConnectionConfig;
use crate::net::{Dialer, Stream};
use crate::protocol::broker::BrokerAddress;
use crate::sink::link::{OpenLink, OpenedLink};
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};

/// Commands that wait to be written. With fewer than a node has attempts in flight, senders would wait in turns.
const WAITING_MAX: usize = 1024;

pub(super) struct RedisOpener {
    is_encrypted: bool,
    address: Arc<BrokerAddress>,
    dialer: Dialer,
    sign_in: Vec<Cmd>,
}

impl RedisOpener {
    pub(super) fn new(
        config: &RedisConnectionConfig,
        address: Arc<BrokerAddress>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let dialer = Dialer::new(&config.tls.clone().unwrap_or_default(), &[], environment)?;
        let sign_in = sign_in(config, &Secrets::new(environment))?;
        Ok(Self { is_encrypted: config.tls.is_some(), address, dialer, sign_in })
    }

    async fn sign_in(&self, stream: &mut Stream) -> Result<(), Undelivered> {
        let refused = |error: RedisError| answer::refused_login(&error, &self.address);
        for command in &self.sign_in {
            ask(stream, command).await.map_err(refused)?;
        }
        // Whatever listens at the port, only Redis answers this. A user that adds to streams need not have the right to ping.
        match ask(stream, &cmd("PING")).await {
            Err(error) if error.code() != Some("NOPERM") => Err(refused(error).into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn sign_in(config: &RedisConnectionConfig, secrets: &Secrets) -> Result<Vec<Cmd>, Undelivered> {
    let mut commands = Vec::new();
    if let Some(password) = &config.password {
        commands.push(cmd("AUTH").arg(&config.username).arg(secrets.reveal(password)?).to_owned());
    }
    if config.db != 0 {
        commands.push(cmd("SELECT").arg(config.db).to_owned());
    }
    Ok(commands)
}

/// Redis says nothing unasked, so all that is read belongs to this answer.
async fn ask(stream: &mut Stream, command: &Cmd) -> RedisResult<Value> {
    stream.write_all(&command.get_packed_command()).await?;
    stream.flush().await?;
    redis::parse_redis_value_async(&mut Default::default(), stream).await?.extract_error()
}

#[async_trait]
impl OpenLink for RedisOpener {
    type Client = MultiplexedConnection;

    async fn open(&self) -> Result<OpenedLink<MultiplexedConnection>, Undelivered> {
        let BrokerAddress { host, port } = &*self.address;
        let mut stream = self.dialer.open(host, *port, self.is_encrypted).await?;
        self.sign_in(&mut stream).await?;
        let signed_in = RedisConnectionInfo::default().set_skip_set_lib_name();
        // The engine has the deadline of a delivery.
        let settings =
            AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(WAITING_MAX);
        let opened = MultiplexedConnection::new_with_config(&signed_in, stream, settings).await;
        let (client, driver) = opened.map_err(|error| answer::refused_login(&error, &self.address))?;
        let closed = format!("{} closed it", self.address);
        let lost = Box::pin(async move {
            driver.await;
            closed
        });
        Ok(OpenedLink { client, lost })
    }
}
