//! A whole store as one stream: what `export` writes and `import` reads.
//!
//! JSON Lines: a header, the rows of each section in turn, and a last line with their number and a checksum, so
//! that a stream which was cut or changed is noticed. What is in it is said once, in [`sections`]; a store that
//! exports reads these columns, one that imports writes them.

use std::io;

use serde::Serialize;

use crate::error::StoreError;

pub(crate) use feed::{Feed, Next};
pub(crate) use sections::{Kind, SECTIONS, Section};
pub(crate) use stream::{Header, LastIds, Outgoing};
pub(crate) use value::Value;

use stream::Incoming;

mod sections;
mod value;
mod stream;
mod feed;

/// What went through a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// The store's name, which it keeps.
    pub store: String,
    pub rows: Rows,
}

/// How many of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    pub settings: u64,
    pub endpoints: u64,
    pub event_types: u64,
    pub subscriptions: u64,
    pub nodes: u64,
    /// Queued, in every state.
    pub messages: u64,
    pub claims: u64,
    pub reservations: u64,
    pub dead_letters: u64,
    pub archived: u64,
    pub attempts: u64,
    pub replays: u64,
    pub replayed: u64,
    pub events: u64,
    pub tokens: u64,
}

/// Why a store was not moved. Whatever the reason, no half of it is anywhere.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Cut, or changed on its way.
    #[error("the export is damaged: {0}")]
    Damaged(String),
    /// Not ours, or of another version.
    #[error("{0}")]
    Foreign(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}
