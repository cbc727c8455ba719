//! Publishes messages to NATS. The acknowledgement is the one of the JetStream stream that stored the message. Without
//! JetStream no subscriber confirms anything: a message then counts as delivered when the server has read it.
//!
//! The client is our own, because that of the NATS project opens its sockets itself (past the gate), cannot be kept from
//! reconnecting, and sends what is in its queue afterwards, though the deliveries were given up long before.

pub(super) use config::NATS;

mod config;
mod nkey;
#[cfg(feature = "nats")]
mod wire;
#[cfg(feature = "nats")]
mod exchange;
#[cfg(feature = "nats")]
mod connection;
#[cfg(feature = "nats")]
mod open;
#[cfg(feature = "nats")]
mod answer;
#[cfg(feature = "nats")]
mod sink;
