//! Publishes messages to an exchange of an AMQP 0-9-1 broker. The broker's confirmation of a message that it could route is
//! the acknowledgement.
//!
//! The client is our own. It takes our stream, so the gate and TLS are ours; a publication that was given up before it
//! was written is never written; and every channel carries one publication at a time, so that what the broker says of a channel is
//! about that message: returned, refused, confirmed.

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
mod lanes;
#[cfg(feature = "amqp")]
mod frames;
#[cfg(feature = "amqp")]
mod answer;
