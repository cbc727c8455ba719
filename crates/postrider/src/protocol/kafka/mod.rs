//! Produces messages to Kafka. Delivered means acknowledged by all replicas that are in sync (acks=all).

pub(super) use config::KAFKA;

mod config;
#[cfg(feature = "kafka")]
mod answer;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod opener;
#[cfg(feature = "kafka")]
mod passage;
#[cfg(feature = "kafka")]
mod record;
#[cfg(feature = "kafka")]
mod sink;
#[cfg(feature = "kafka")]
mod socks;
#[cfg(feature = "kafka")]
mod tunnel;
