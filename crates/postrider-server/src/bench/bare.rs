//! Well-known clients of the brokers, without Postrider: what `bench --sink` compares with. A broker that wants TLS or a
//! password is left out.

use async_trait::async_trait;
use bytes::Bytes;
use lapin::Confirmation;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};

use redis::AsyncConnectionConfig;
use serde_json::{Map, Value};

use super::sink::Measured;

const IN_FLIGHT_MAX: u16 = 1024;
const CREDENTIALS: [&str; 7] = ["tls", "sasl", "username", "user", "token", "nkey_seed", "creds"];

pub(super) type Failed = Box<dyn std::error::Error + Send + Sync>;

#[async_trait]
pub(super) trait BareClient: Send + Sync {
    /// Until the broker acknowledged it.
    async fn publish(&self, payload: String) -> Result<(), Failed>;
}

/// None where there is no such client.
pub(super) async fn connect(measured: &Measured) -> Result<Option<Box<dyn BareClient>>, Failed> {
    let config = &measured.config;
    if CREDENTIALS.iter().any(|key| config.contains_key(*key)) {
        return Ok(None);
    }
    Ok(match measured.protocol.as_str() {
        "redis" => Some(Box::new(BareRedis::connect(config).await?)),
        "kafka" => Some(Box::new(BareKafka::connect(config).await?)),
        "amqp" => Some(Box::new(BareAmqp::connect(config).await?)),
        "nats" if config.get("jetstream") != Some(&Value::Bool(false)) => {
            Some(Box::new(BareNats::connect(config).await?))
        }
        "mqtt" if !config.contains_key("version") => Some(Box::new(BareMqtt::connect(config))),
        _ => None,
    })
}

fn text(config: &Map<String, Value>, key: &str) -> String {
    config.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(config: &Map<String, Value>, key: &str, default: u16) -> u16 {
    let number = config.get(key).and_then(Value::as_u64);
    number.and_then(|number| number.try_into().ok()).unwrap_or(default)
}

struct BareRedis {
    connection: redis::aio::MultiplexedConnection,
    stream_key: String,
}

impl BareRedis {
    async fn connect(config: &Map<String, Value>) -> Result<Self, Failed> {
        let url = format!("redis://{}:{}", text(config, "host"), number(config, "port", 6379));
        let settings = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(IN_FLIGHT_MAX.into());
        let connection =
            redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&settings).await?;
        Ok(Self { connection, stream_key: text(config, "stream_key") })
    }
}

#[async_trait]
impl BareClient for BareRedis {
    async fn publish(&self, payload: String) -> Result<(), Failed> {
        let mut command = redis::cmd("XADD");
        command.arg(&self.stream_key).arg("*").arg("payload").arg(payload);
        command.query_async::<String>(&mut self.connection.clone()).await?;
        Ok(())
    }
}

struct BareKafka {
    producer: krafka::producer::Producer,
    topic: String,
}

impl BareKafka {
    async fn connect(config: &Map<String, Value>) -> Result<Self, Failed> {
        let kafka = krafka::Kafka::builder(text(config, "brokers")).connect().await?;
        let producer = kafka.producer().acks(krafka::producer::Acks::All).idempotent(true);
        let producer = producer.linger(std::time::Duration::ZERO).build().await?;
        Ok(Self { producer, topic: text(config, "topic") })
    }
}

#[async_trait]
impl BareClient for BareKafka {
    async fn publish(&self, payload: String) -> Result<(), Failed> {
        let sent = self.producer.send(krafka::Record::new(&*self.topic, payload)).await;
        Ok(sent.map(drop)?)
    }
}

struct BareAmqp {
    _connection: lapin::Connection,
    channel: lapin::Channel,
    exchange: String,
    routing_key: String,
}

impl BareAmqp {
    async fn connect(config: &Map<String, Value>) -> Result<Self, Failed> {
        let url = format!("amqp://{}:{}/%2f", text(config, "host"), number(config, "port", 5672));
        let connection = lapin::Connection::connect(&url, Default::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (exchange, routing_key) = (text(config, "exchange"), text(config, "routing_key"));
        Ok(Self { _connection: connection, channel, exchange, routing_key })
    }
}

#[async_trait]
impl BareClient for BareAmqp {
    async fn publish(&self, payload: String) -> Result<(), Failed> {
        let (exchange, routing_key) = (self.exchange.as_str().into(), self.routing_key.as_str().into());
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let persistent = lapin::BasicProperties::default().with_delivery_mode(2);
        let publish =
            self.channel.basic_publish(exchange, routing_key, options, payload.as_bytes(), persistent);
        match publish.await?.await? {
            Confirmation::Ack(None) => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }
}

struct BareNats {
    stream: async_nats::jetstream::Context,
    subject: String,
}

impl BareNats {
    async fn connect(config: &Map<String, Value>) -> Result<Self, Failed> {
        let client = async_nats::connect(text(config, "url")).await?;
        Ok(Self { stream: async_nats::jetstream::new(client), subject: text(config, "subject") })
    }
}

#[async_trait]
impl BareClient for BareNats {
    async fn publish(&self, payload: String) -> Result<(), Failed> {
        self.stream.publish(self.subject.clone(), Bytes::from(payload)).await?.await?;
        Ok(())
    }
}

struct BareMqtt {
    client: rumqttc::AsyncClient,
    topic: String,
    qos: rumqttc::QoS,
}

impl BareMqtt {
    fn connect(config: &Map<String, Value>) -> Self {
        let broker = (text(config, "broker"), number(config, "port", 1883));
        let mut options = rumqttc::MqttOptions::new("postrider-bench", broker);
        let mut network = rumqttc::NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options.set_outgoing_inflight_upper_limit(IN_FLIGHT_MAX).set_network_options(network);
        let (client, mut connection) =
            rumqttc::AsyncClient::builder(options).capacity(IN_FLIGHT_MAX.into()).build();
        // Ends with the client, or with the connection.
        tokio::spawn(async move { while connection.poll().await.is_ok() {} });
        let qos = match number(config, "qos", 1) {
            0 => rumqttc::QoS::AtMostOnce,
            2 => rumqttc::QoS::ExactlyOnce,
            _ => rumqttc::QoS::AtLeastOnce,
        };
        Self { client, topic: text(config, "topic"), qos }
    }
}

#[async_trait]
impl BareClient for BareMqtt {
    async fn publish(&self, payload: String) -> Result<(), Failed> {
        let options = rumqttc::PublishOptions::new(self.qos);
        let notice = self.client.publish_tracked(self.topic.clone(), payload, options).await?;
        Ok(notice.wait_completion_async().await?)
    }
}
