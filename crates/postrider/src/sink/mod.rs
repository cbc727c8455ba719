//! Sinks carry one message to one receiver and return its answer. Each protocol has its own, in `protocol/`.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::protocol::secret::Reference;
use crate::verdict::{Failure, Receipt};

pub use crate::net::{Resolve, Resource, Shortage, SystemResolver};
pub use kept::Kept;
pub use link::Links;

pub(crate) mod json;
pub(crate) mod kept;
// Only brokers have standing connections.
#[cfg_attr(
    not(any(feature = "amqp", feature = "kafka", feature = "mqtt", feature = "nats", feature = "redis")),
    allow(dead_code)
)]
pub(crate) mod link;
pub(crate) mod secret;
pub(crate) mod secret_mask;

/// A connected destination. `deliver` returns Ok only when the receiver acknowledged. The caller puts
/// one deadline over the whole call and drops it when that passes.
#[async_trait]
pub trait Sink: Send + Sync {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered>;

    fn connection(&self) -> SinkConnection {
        SinkConnection::NotKept
    }
}

tokio::task_local! {
    /// Whether the receiver may have the message of the attempt that this task makes.
    pub(crate) static HANDED_OVER: Cell<bool>;
}

/// A sink calls it when the message is about to leave.
pub(crate) fn hand_over() {
    let _ = HANDED_OVER.try_with(|handed_over| handed_over.set(true));
}

/// Whether a sink could deliver now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SinkConnection {
    /// It keeps no connection to one receiver that could be up or down.
    NotKept,
    /// The next delivery connects it.
    Idle,
    Connecting,
    Up,
    Down {
        error: String,
    },
}

/// Why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// The attempt was made, or can never be made.
    Failed(Failure),
    /// This node could not make the attempt; that says nothing about the receiver.
    Short(Shortage),
}

impl Undelivered {
    /// Of an attempt of which the receiver has seen something: it counts, whatever kept it from being finished.
    pub(crate) fn after_a_beginning(self) -> Self {
        match self {
            Self::Failed(failure) => Self::Failed(failure),
            Self::Short(shortage) => Self::Failed(Failure::retryable(shortage.to_string())),
        }
    }

    /// Names the part of the way that failed, before the message was handed over.
    pub(crate) fn about(self, part: &str) -> Self {
        match self {
            Self::Failed(failure) => {
                let error = format!("{part}: {}", failure.error);
                Self::Failed(Failure { error, ambiguous: false, ..failure })
            }
            Self::Short(shortage) => Self::Short(shortage),
        }
    }
}

impl From<Failure> for Undelivered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Shortage> for Undelivered {
    fn from(shortage: Shortage) -> Self {
        Self::Short(shortage)
    }
}

/// One attempt to deliver one message.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub message: Arc<Message>,
    /// Short name of the store: part of the id that receivers see.
    pub store: Arc<str>,
    pub attempt: u32,
    /// How much of the answer to keep; None keeps nothing.
    pub capture: Capture,
    pub now: jiff::Timestamp,
}

/// How much of a receiver's answer is kept with the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    pub on_success: bool,
    pub on_failure: bool,
    pub bytes_max: usize,
}

impl Delivery {
    /// The same for every attempt, different between any two stores.
    pub fn public_id(&self) -> String {
        format!("msg_{}_{}", self.store, self.message.id)
    }

    /// What brokers are told of a message beside its id, as headers, properties or fields of these names.
    #[cfg_attr(
        not(any(
            feature = "amqp",
            feature = "kafka",
            feature = "mqtt",
            feature = "nats",
            feature = "redis"
        )),
        allow(dead_code)
    )]
    pub(crate) fn facts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let message = &*self.message;
        let text = |text: &Option<String>| text.clone();
        [
            ("postrider-attempt", Some(self.attempt.to_string())),
            ("postrider-created-at", Some(message.created_at.to_string())),
            ("postrider-correlation-id", message.correlation_id.map(|id| id.to_string())),
            ("postrider-ordering-key", text(&message.ordering_key)),
            ("postrider-event-type", text(&message.event_type)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// What a node allows its sinks to touch.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Deliver to loopback, private and other internal addresses too.
    pub allow_internal: bool,
    /// Internal networks that deliveries may go to.
    pub allow_nets: Vec<ipnet::IpNet>,
    /// Where `file:NAME` secrets are read from; None refuses them.
    pub secrets_dir: Option<PathBuf>,
    /// Below which file sinks write; None refuses them.
    pub file_root: Option<PathBuf>,
    /// What sinks may keep open when no attempt uses it.
    pub kept: Arc<Kept>,
    /// The connections that endpoints share.
    pub links: Arc<Links>,
    /// Finds the addresses of receivers.
    pub resolver: Arc<dyn Resolve>,
    /// Makes the sinks.
    pub connector: Arc<dyn ConnectSink>,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            allow_internal: false,
            allow_nets: Vec::new(),
            secrets_dir: None,
            file_root: None,
            kept: Arc::default(),
            links: Arc::default(),
            resolver: Arc::new(SystemResolver),
            connector: Arc::new(ByProtocol),
        }
    }
}

/// Makes the sink of an endpoint. Another one than [`ByProtocol`] measures or tests an engine without receivers.
pub trait ConnectSink: Send + Sync + std::fmt::Debug {
    /// Sends nothing to the receiver yet, but opens what the sink holds.
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered>;
}

/// The sink of the endpoint's protocol.
#[derive(Debug)]
pub struct ByProtocol;

impl ConnectSink for ByProtocol {
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        // SQL may store what only the program can refuse. An operator can mend the config, so messages wait.
        let config = endpoint.config.typed().map_err(|invalid| Failure::retryable(invalid.to_string()))?;
        config.connect(endpoint, environment)
    }
}

/// What a receiver could repeat of an endpoint's secrets, as they are sent. A reference that leads nowhere has none.
pub(crate) fn secrets_of(endpoint: &Endpoint, environment: &Environment) -> Result<Vec<String>, Shortage> {
    let shown = Value::Object(endpoint.protocol.redacted(&endpoint.config));
    let secrets = secret::Secrets::new(environment);
    let (mut found, mut shortage) = (Vec::new(), None);
    let whole = Value::Object(endpoint.config.clone().into_map());
    hidden(&whole, &shown, &mut |text| match secrets.reveal(text) {
        Ok(secret) => found.push(secret),
        Err(Undelivered::Failed(_)) => {}
        Err(Undelivered::Short(short)) => shortage = Some(short),
    });
    if let Some(shortage) = shortage {
        return Err(shortage);
    }
    if let Ok(config) = endpoint.config.typed() {
        let made: Vec<String> = found.iter().flat_map(|secret| config.texts_made_of(secret)).collect();
        found.extend(made);
    }
    // A secret that holds another one goes first.
    found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    Ok(found)
}

/// Calls `tell` with every text of `whole` that `shown` hides or refers to.
fn hidden(whole: &Value, shown: &Value, tell: &mut impl FnMut(&str)) {
    match (whole, shown) {
        (Value::String(text), shown) if whole != shown || Reference::is_one(text) => tell(text),
        (Value::Object(whole), shown) => {
            whole.iter().for_each(|(key, value)| hidden(value, shown.get(key).unwrap_or(&Value::Null), tell));
        }
        (Value::Array(whole), shown) => {
            let shown = |at| shown.get(at).unwrap_or(&Value::Null);
            whole.iter().enumerate().for_each(|(at, value)| hidden(value, shown(at), tell));
        }
        _ => {}
    }
}

/// As the environment's connector makes it.
pub fn connect(endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
    environment.connector.connect(endpoint, environment)
}

/// Another node may be able to deliver, so messages wait.
#[cfg(not(all(feature = "amqp", feature = "kafka", feature = "mqtt", feature = "nats", feature = "redis")))]
pub(crate) fn not_built(protocol: &str) -> Undelivered {
    Failure::retryable(format!("this node was built without {protocol}; build it with --features {protocol}"))
        .into()
}
