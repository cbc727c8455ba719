//! Dead letters by filter, a step at a time: whoever asks sees how far it has come, and may leave off between steps.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{DlqFilter, Result};
use crate::error::{Invalid, StoreError};

#[async_trait]
pub trait Sweeps: Send + Sync + 'static {
    /// One step over the `failed` letters that the filter selects, in the order in which their messages were sent.
    /// The first step fixes what is selected: a letter that comes later is not touched. Each step goes on from the
    /// answer of the one before; two who sweep the same letters share them.
    async fn sweep(&self, action: SweepAction, filter: DlqFilter, from: Option<SweepCursor>)
    -> Result<Sweep>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SweepAction {
    Redrive,
    Discard,
}

impl SweepAction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// How many were selected when it began.
    pub total: u64,
    /// How many were redriven or discarded so far. Others may have taken some of the rest.
    pub done: u64,
    /// Where the next step begins; None when all is done.
    pub next: Option<SweepCursor>,
}

/// Where a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCursor {
    /// The newest letter that there was.
    pub newest: i64,
    /// Messages up to this one are done.
    pub position: i64,
    pub total: u64,
    pub done: u64,
    /// Where it is logged.
    pub event: Option<i64>,
}

impl SweepCursor {
    pub(crate) fn begin(newest: i64, total: u64) -> Self {
        Self { newest, position: 0, total, done: 0, event: None }
    }

    /// After a step that looked at messages up to `position`; None when there were no more.
    pub(crate) fn after(self, position: Option<i64>, done: u64, event: Option<i64>) -> Sweep {
        let next = position.map(|position| Self { position, done, event, ..self });
        Sweep { total: self.total, done, next }
    }
}

/// A list has pages, a sweep has steps.
pub(crate) fn check_sweep(filter: &DlqFilter) -> Result<(), StoreError> {
    let given = [("after", filter.after.is_some()), ("limit", filter.limit != 0)];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Invalid::new(field, "is for lists; all that is selected is taken").into()),
        None => Ok(()),
    }
}
