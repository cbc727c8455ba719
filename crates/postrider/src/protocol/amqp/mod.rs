//! Publishes messages to an exchange of an AMQP 0-9-1 broker. The broker's confirmation of a message that it could route is
//! the acknowledgement.
//!
//! The client is our own: it takes our stream, so the gate and TLS are ours; it never writes a publication that was given up
//! before; and it knows exactly which message the broker confirmed, returned or refused.

pub(super) use config::AMQP;

mod config;
#[cfg(feature = "amqp")]
mod sink;
#[cfg(feature = "amqp")]
mod publication;
#[cfg(feature = "amqp")]
mod sign_in;
#[cfg(feature = "amqp")]
mod connection;
#[cfg(feature = "amqp")]
mod order;
#[cfg(feature = "amqp")]
mod lanes;
#[cfg(feature = "amqp")]
mod shared_channel;
#[cfg(feature = "amqp")]
mod frames;
#[cfg(feature = "amqp")]
mod incoming;
#[cfg(feature = "amqp")]
mod wire;
#[cfg(feature = "amqp")]
mod answer;
