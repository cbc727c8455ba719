//! Opens connections to one broker, signed in.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::answer;
use super::config::MqttConnectionConfig;
use super::driver::{self, MqttClient};
use super::incoming::{self, BrokerLimits, BrokerPacket, PACKET_BYTES_MAX};
use super::outgoing::ConnectPacket;
use crate::net::{Dialer, Stream, judge, short};
use crate::protocol::broker::BrokerAddress;
use crate::sink::link::{OpenLink, OpenedLink};
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};
use crate::verdict::Failure;

pub(super) struct MqttOpener {
    config: MqttConnectionConfig,
    address: Arc<BrokerAddress>,
    /// The same for every connection of this link: the broker then ends the one before, if it has not noticed its end.
    client_id: String,
    dialer: Dialer,
    secrets: Secrets,
}

impl MqttOpener {
    pub(super) fn new(
        config: &MqttConnectionConfig,
        client_id: &str,
        address: Arc<BrokerAddress>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        Ok(Self {
            config: config.clone(),
            address,
            client_id: client_id.to_owned(),
            dialer: Dialer::new(&config.tls.clone().unwrap_or_default(), &[], environment)?,
            secrets: Secrets::new(environment),
        })
    }

    fn connect_packet(&self) -> Result<BytesMut, Undelivered> {
        let config = &self.config;
        let password =
            config.password.as_deref().map(|password| self.secrets.reveal(password)).transpose()?;
        let packet = ConnectPacket {
            version: config.version,
            client_id: &self.client_id,
            username: config.username.as_deref(),
            password: password.as_deref(),
            keepalive: config.keepalive,
            will: config.will.as_ref(),
            packet_bytes_max: PACKET_BYTES_MAX as u32,
        };
        Ok(packet.bytes()?)
    }

    /// What the broker answered, and what it sent behind that.
    async fn sign_in(
        &self,
        stream: &mut Stream,
        packet: &[u8],
    ) -> Result<(BrokerLimits, BytesMut), Undelivered> {
        let address = &self.address;
        let lost = |error: std::io::Error| {
            let why = short(&error);
            judge(&error, Failure::retryable(format!("cannot sign in at {address}: {why}")))
        };
        stream.write_all(packet).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        let mut received = BytesMut::new();
        loop {
            match incoming::take(&mut received, self.config.version) {
                Ok(Some(BrokerPacket::Connected(limits))) => return Ok((limits, received)),
                Ok(Some(BrokerPacket::Refused(reason))) => {
                    return Err(answer::refused_login(&reason, address).into());
                }
                Ok(None) => {}
                Ok(Some(BrokerPacket::Disconnect(reason))) => {
                    return Err(answer::refused_login(&reason, address).into());
                }
                Ok(Some(BrokerPacket::Answer { .. } | BrokerPacket::Pong)) | Err(_) => {
                    return Err(Failure::retryable(format!("{address} does not speak MQTT")).into());
                }
            }
            if stream.read_buf(&mut received).await.map_err(lost)? == 0 {
                return Err(Failure::retryable(format!(
                    "{address} closed the connection without an answer to the sign-in"
                ))
                .into());
            }
        }
    }
}

#[async_trait]
impl OpenLink for MqttOpener {
    type Client = MqttClient;

    async fn open(&self) -> Result<OpenedLink<MqttClient>, Undelivered> {
        let BrokerAddress { host, port } = &*self.address;
        let packet = self.connect_packet()?;
        let mut stream = self.dialer.open(host, *port, self.config.tls.is_some()).await?;
        let (limits, received) = self.sign_in(&mut stream, &packet).await?;
        let keepalive = Duration::from_secs(limits.keepalive.unwrap_or(self.config.keepalive).max(1).into());
        let (client, driver) = driver::start(stream, self.config.version, limits, keepalive, received);
        let address = Arc::clone(&self.address);
        let lost = Box::pin(async move {
            let why = driver.run().await;
            format!("{address} {why}")
        });
        Ok(OpenedLink { client, lost })
    }
}

/// Letters and digits only, and at most 23, which every broker of version 3.1.1 has to accept.
pub(super) fn random_client_id() -> String {
    format!("postrider{:013x}", rand::random::<u64>() >> 12)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_broker_has_to_accept_the_client_id() {
        let id = super::random_client_id();
        assert!(id.len() <= 23 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_ne!(id, super::random_client_id());
    }
}
