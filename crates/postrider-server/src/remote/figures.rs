//! What a store counts of itself, asked of a node.

use async_trait::async_trait;
use postrider::store::{Figure, Figures, Result};

use super::Remote;
use super::asking::NodeRequest;
use crate::view::Page;

#[async_trait]
impl Figures for Remote {
    async fn figures(&self) -> Result<Vec<Figure>> {
        Ok(self.answer::<Page<Figure>>(NodeRequest::get("/v1/figures")).await?.items)
    }
}
