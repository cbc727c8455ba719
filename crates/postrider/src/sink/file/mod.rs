//! Writes messages as JSON Lines below the node's `--file-root`. An fsync is the acknowledgement.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{Delivery, Environment, Sink, Undelivered};
use crate::endpoint::Endpoint;
use crate::verdict::{Failure, Receipt};

use place::Place;
use writer::Writer;

mod line;
mod open;
mod place;
mod writer;

pub(super) struct FileSink {
    endpoint: Arc<str>,
    writer: Arc<Writer>,
    rotate_size: Option<u64>,
}

impl FileSink {
    pub(super) fn connect(endpoint: &Endpoint, environment: &Environment) -> Result<Self, Undelivered> {
        let root = environment.file_root.as_ref().ok_or_else(|| {
            Failure::permanent("this node writes no files; --file-root says below which directory it may")
        })?;
        let path = endpoint.config.get("path").and_then(Value::as_str).unwrap_or_default();
        Ok(Self {
            endpoint: Arc::clone(&endpoint.name),
            writer: Writer::of(Place::new(root, PathBuf::from(path))?, &environment.kept),
            rotate_size: endpoint.config.get("rotate_size").and_then(Value::as_u64),
        })
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn deliver(&self, delivery: &Delivery) -> Result<Receipt, Undelivered> {
        let line = line::of(delivery, &self.endpoint);
        self.writer.write(line, self.rotate_size).await?;
        Ok(Receipt::default())
    }
}
