//! Sinks carry one message to one receiver and tell what it said.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::protocol::Protocol;
use crate::verdict::{Failure, Receipt};

pub use net::{Resolve, SystemResolver};

mod http;
mod file;
mod json;
mod net;
mod secret;

/// A connected destination. `deliver` returns Ok only when the receiver acknowledged. The caller puts
/// one deadline over the whole call and drops it when that passes.
#[async_trait]
pub trait Sink: Send + Sync {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Failure>;
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
}

/// What a node allows its sinks to touch.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Deliver to loopback, private and other internal addresses too.
    pub allow_internal: bool,
    /// Internal networks that are allowed all the same.
    pub allow_nets: Vec<ipnet::IpNet>,
    /// Where `file:NAME` secrets are read from; None refuses them.
    pub secrets_dir: Option<PathBuf>,
    /// Below which file sinks write; None refuses them.
    pub file_root: Option<PathBuf>,
}

/// Config to sink. Does no I/O to the receiver yet, except opening what the sink holds.
pub fn connect(endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Failure> {
    connect_with(endpoint, environment, Arc::new(SystemResolver))
}

/// As [`connect`], with names resolved by `resolver`.
pub fn connect_with(
    endpoint: &Endpoint,
    environment: &Environment,
    resolver: Arc<dyn Resolve>,
) -> Result<Arc<dyn Sink>, Failure> {
    let config = &endpoint.config;
    endpoint.protocol.check_config(config).map_err(|invalid| Failure::permanent(invalid.to_string()))?;
    Ok(match endpoint.protocol {
        Protocol::Http => Arc::new(http::HttpSink::connect(endpoint, environment, resolver)?),
        Protocol::File => Arc::new(file::FileSink::connect(endpoint, environment)?),
    })
}
