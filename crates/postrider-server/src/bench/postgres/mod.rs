//! The same questions for PostgreSQL, and those that only a server can be asked.

mod delivery;
mod footprint;
mod latency;
mod send;
mod server;

pub(super) use delivery::{open_transaction, two_nodes, wal};
pub(super) use footprint::idle;
pub(super) use latency::{after_idle, calm};
pub(super) use send::{batch, deep, single};
pub(super) use server::{Server, connect_to, failed, is_durable};
