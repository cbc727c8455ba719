//! Writes messages as JSON Lines below the node's `--file-root`. An fsync is the acknowledgement.

use std::sync::Arc;

use async_trait::async_trait;

use crate::endpoint::Endpoint;
use crate::sink::{Delivery, Environment, Sink, Undelivered};
use crate::verdict::{Failure, Receipt};

pub(super) use config::FILE;

use config::FileConfig;
use place::FilePlace;
use writer::FileWriter;

mod config;
mod line;
mod open;
mod place;
mod writer;

struct FileSink {
    endpoint: Arc<str>,
    writer: Arc<FileWriter>,
    rotate_size: Option<u64>,
}

impl FileSink {
    fn connect(
        config: &FileConfig,
        endpoint: &Endpoint,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let root = environment.file_root.as_ref().ok_or_else(|| {
            Failure::permanent("this node writes no files; --file-root says below which directory it may")
        })?;
        Ok(Self {
            endpoint: Arc::clone(&endpoint.name),
            writer: FileWriter::of(FilePlace::new(root, config.path.clone())?, &environment.kept),
            rotate_size: config.rotate_size,
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
