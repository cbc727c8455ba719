//! The sink: one multiplexed connection for all endpoints of a server, one XADD for each delivery.

use std::sync::Arc;

use async_trait::async_trait;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, Value};
use serde_json::Map;

use super::answer;
use super::config::RedisConfig;
use super::open::RedisOpener;
use crate::protocol::broker::BrokerAddress;
use crate::sink::link::{Link, LinkKey};
use crate::sink::{Delivery, Environment, Sink, SinkConnection, Undelivered};
use crate::verdict::{Failure, Receipt};

pub(super) struct RedisSink {
    link: Arc<Link<MultiplexedConnection>>,
    address: Arc<BrokerAddress>,
    stream_key: String,
    /// What stands between the stream's key and the entry's fields.
    trimming: Vec<String>,
}

impl RedisSink {
    pub(super) fn connect(config: &RedisConfig, environment: &Environment) -> Result<Self, Undelivered> {
        let address =
            Arc::new(config.connection.address().map_err(|error| Failure::permanent(error.to_string()))?);
        let key = LinkKey::of("redis", &config.connection);
        let (connection, at) = (config.connection.clone(), Arc::clone(&address));
        let opener =
            move |environment: &Environment| RedisOpener::new(&connection, Arc::clone(&at), environment);
        let link = environment.links.shared(key, config.connect_timeout, environment, opener);
        Ok(Self { link, address, stream_key: config.stream_key.clone(), trimming: trimming(config) })
    }

    fn command(&self, delivery: &Delivery) -> Cmd {
        let message = &*delivery.message;
        let mut command = Cmd::with_capacity(24, message.payload.len() + 512);
        let stream_key = message.options.get("stream_key").and_then(|key| key.as_str());
        command.arg("XADD").arg(stream_key.unwrap_or(&self.stream_key)).arg(&self.trimming).arg("*");
        command.arg("id").arg(delivery.public_id());
        command.arg("content_type").arg(&message.content_type);
        for (name, value) in delivery.facts() {
            command.arg(name).arg(value);
        }
        let fields = message.options.get("fields").and_then(|fields| fields.as_object());
        let replaced = |name: &String| fields.is_some_and(|fields| fields.contains_key(name));
        for (name, value) in message.headers.iter().filter(|(name, _)| !replaced(name)) {
            command.arg(name).arg(value);
        }
        for (name, value) in fields.into_iter().flat_map(Map::iter) {
            command.arg(name).arg(value.as_str().unwrap_or_default());
        }
        command.arg("payload").arg(&message.payload[..]);
        command
    }
}

fn trimming(config: &RedisConfig) -> Vec<String> {
    let mut words = Vec::new();
    if config.nomkstream {
        words.push("NOMKSTREAM".to_owned());
    }
    // "~" lets Redis trim whole blocks, which costs almost nothing.
    if let Some(maxlen) = config.maxlen {
        words.extend(["MAXLEN".to_owned(), "~".to_owned(), maxlen.to_string()]);
    }
    if let Some(minid) = &config.minid {
        words.extend(["MINID".to_owned(), "~".to_owned(), minid.clone()]);
    }
    words
}

#[async_trait]
impl Sink for RedisSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let command = self.command(delivery);
        let send = async |connection: &MultiplexedConnection| {
            // The client returns an error that the server answered as a value, too.
            let answered =
                connection.clone().req_packed_command(&command).await.and_then(Value::extract_error);
            answered.map_err(|error| {
                if answer::is_of_no_use(&error) {
                    self.link.replace("it takes no writes");
                }
                answer::failure(&error, &self.address).into()
            })
        };
        match self.link.deliver(send).await? {
            Value::BulkString(_entry_id) => Ok(Receipt::default()),
            Value::Nil => Err(answer::no_stream().into()),
            other => Err(Failure::retryable(format!("{} answered {other:?} to XADD", self.address)).into()),
        }
    }

    fn connection(&self) -> SinkConnection {
        self.link.connection()
    }
}
