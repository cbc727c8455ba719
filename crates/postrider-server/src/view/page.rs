//! A page of a list.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cursor;

/// A page of a list.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Page<T: ToSchema> {
    pub(crate) items: Vec<T>,
    /// The `cursor` of the next page; null on the last one.
    #[schema(required)]
    pub(crate) next: Option<String>,
}

impl<T: ToSchema> Page<T> {
    /// `items` has one more than `limit` when there is a next page.
    pub(crate) fn of<P: Display>(mut items: Vec<T>, limit: usize, position: impl FnOnce(&T) -> P) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| cursor::written(position(last)));
        Self { items, next }
    }
}
