//! Short answers as JSON: what came of something that was asked for.

use postrider::Sent;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What became of a batch, line by line.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct SentBatch {
    pub(crate) items: Vec<Sent>,
}

/// What became of an event.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Published {
    /// How many it made: one for every subscription that wants it.
    pub(crate) messages: u64,
}

/// How many messages were put back.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Redriven {
    pub(crate) redriven: u64,
}

/// How many dead heads were let go.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Released {
    pub(crate) released: u64,
}

/// One message, sent again.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Replayed {
    pub(crate) id: i64,
    pub(crate) replay_of: i64,
}

/// How far it has come.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Swept {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redriven: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) discarded: Option<u64>,
    /// How many were selected when it began.
    pub(crate) total: u64,
    /// The `cursor` of the next request; null when all is done.
    #[schema(required)]
    pub(crate) next: Option<String>,
}
