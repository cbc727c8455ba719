//! Publishes to MQTT brokers, version 5 or 3.1.1. The acknowledgement is PUBACK (QoS 1) or PUBCOMP (QoS 2); QoS 0 has none.
//!
//! The client is our own. It only publishes, so it is small, and it keeps what a general client does not promise: a
//! delivery that was given up is not written any more, nothing is sent again after a reconnect, and an answer
//! with a reason that no list has (mosquitto's 0x95 in a PUBACK) fails one message instead of the connection.

pub(super) use config::MQTT;

mod config;
#[cfg(feature = "mqtt")]
mod outgoing;
#[cfg(feature = "mqtt")]
mod incoming;
#[cfg(feature = "mqtt")]
mod answer;
#[cfg(feature = "mqtt")]
mod driver;
#[cfg(feature = "mqtt")]
mod opener;
#[cfg(feature = "mqtt")]
mod sink;
