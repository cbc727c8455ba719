//! Adds messages to Redis Streams. The reply to XADD, the id of the entry, is the acknowledgement.

pub(super) use config::REDIS;

mod config;
#[cfg(feature = "redis")]
mod answer;
#[cfg(feature = "redis")]
mod open;
#[cfg(feature = "redis")]
mod sink;
