//! The receiver is a folder.

use std::path::PathBuf;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use postrider::endpoint::Endpoint;
use postrider::sink::Environment;
use serde_json::{Value, json};

use super::super::support::*;
use super::{Held, Receiver, conforms};

struct FileReceiver {
    root: tempfile::TempDir,
}

impl FileReceiver {
    pub(super) async fn new() -> Option<Self> {
        Some(Self { root: tempfile::tempdir().unwrap() })
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("out")
    }
}

#[async_trait]
impl Receiver for FileReceiver {
    fn endpoint(&self) -> Endpoint {
        endpoint("file", json!({"path": "out/orders.jsonl"}))
    }

    fn environment(&self) -> Environment {
        Environment { file_root: Some(self.root.path().to_owned()), ..Environment::default() }
    }

    async fn held(&self) -> Vec<Held> {
        let text = std::fs::read_to_string(self.directory().join("orders.jsonl")).unwrap_or_default();
        text.lines().map(held_line).collect()
    }

    /// A dangling link in place of the directory: nothing can be written below it.
    async fn stop(&mut self) {
        std::fs::rename(self.directory(), self.root.path().join("aside")).unwrap();
        std::os::unix::fs::symlink(self.root.path().join("nowhere"), self.directory()).unwrap();
    }

    async fn start(&mut self) {
        std::fs::remove_file(self.directory()).unwrap();
    }

    async fn refusing(&mut self) -> Endpoint {
        std::fs::create_dir_all(self.directory().join("orders.jsonl")).unwrap();
        self.endpoint()
    }
}

fn held_line(line: &str) -> Held {
    let value: Value = serde_json::from_str(line).unwrap();
    let payload = match value.get("payload_base64") {
        Some(encoded) => BASE64_STANDARD.decode(encoded.as_str().unwrap()).unwrap(),
        // The last field: what stands between its name and the closing brace is the payload.
        None => line.split_once("\"payload\":").unwrap().1.strip_suffix('}').unwrap().as_bytes().to_vec(),
    };
    Held {
        id: value["id"].as_str().unwrap().to_owned(),
        attempt: value["attempt"].as_u64().unwrap() as u32,
        content_type: value["content_type"].as_str().unwrap().to_owned(),
        payload: payload.into(),
    }
}

conforms!(file = FileReceiver);
