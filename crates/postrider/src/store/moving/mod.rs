//! A whole store as one stream: what `export` writes and `import` reads.
//!
//! JSON Lines: a header, the rows of each section in turn, and a last line with their number and a checksum, so
//! that a truncated or changed stream is noticed. [`sections`] lists what is in it; an export reads these columns, an
//! import writes them.

use std::io;

use serde::Serialize;

use crate::error::StoreError;

pub(crate) use feed::{Feed, Next};
pub(crate) use sections::{ColumnKind, SECTIONS, Section};
pub(crate) use stream::{LastIds, StreamHeader, StreamWriter};
pub(crate) use value::MovedValue;

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

/// Why a store was not moved. No part of it was imported.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Truncated or changed.
    #[error("the export is damaged: {0}")]
    Damaged(String),
    /// Another kind of file, or another version.
    #[error("{0}")]
    Foreign(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}
