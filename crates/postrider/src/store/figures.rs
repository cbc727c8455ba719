//! What a store counts of itself, under the names that metrics have.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Result;

/// Endpoints that have figures of their own: the oldest ones, so that a series stays with its endpoint however busy
/// the others get.
pub const ENDPOINTS_MAX: usize = 100;
/// Under this name all others are summed. No endpoint can be called that.
pub const OTHERS: &str = "(others)";

#[async_trait]
pub trait Figures: Send + Sync {
    /// Costs the same at any size: nothing is counted that was not counted before.
    async fn figures(&self) -> Result<Vec<Figure>>;
}

/// Something that the store counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Figure {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Figure {
    pub fn new(name: &str, labels: &[(&str, &str)], value: f64) -> Self {
        let label = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { name: name.to_owned(), labels: labels.iter().map(label).collect(), value }
    }
}
