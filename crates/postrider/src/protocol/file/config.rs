//! Keys and config of the file protocol.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::FileSink;
use crate::endpoint::Endpoint;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{ASCII_CONTROL, CONTROL, Must, Rule};
use crate::protocol::{ProtocolConfig, ProtocolDefinition, TIMEOUT_SECONDS_MAX, config, headers};
use crate::sink::{Environment, Sink, Undelivered};

const PATH_BYTES_MAX: usize = 1024;

pub(crate) const FILE: ProtocolDefinition = ProtocolDefinition {
    name: "file",
    keys: KEYS,
    relations: &[],
    // Written as JSON strings, which can hold anything.
    headers: &headers::ANYTHING,
    endpoint_headers: &[],
    read: |map| Ok(Arc::new(config::read::<FileConfig>(KEYS, map)?)),
};

const KEYS: &[ConfigKey] = &[
    ConfigKey::new("path", ValueKind::Text { bytes_max: PATH_BYTES_MAX, rules: PATH }).required(),
    // A smaller limit would make a new file for almost every message.
    ConfigKey::new("rotate_size", ValueKind::Whole { min: 1024, max: 1 << 40 }),
    ConfigKey::new("timeout", ValueKind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("10"),
];

const NO_PATH: &str = "must be a path of a file relative to the node's --file-root, without '.' or '..'";
const PATH: &[Rule] = &[
    Rule::new(Must::BePathBelow, NO_PATH),
    Rule::new(Must::NotEndWith(&["/"]), NO_PATH),
    Rule::new(Must::NotHave(&[ASCII_CONTROL, CONTROL]), NO_PATH),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileConfig {
    pub(super) path: PathBuf,
    pub(super) rotate_size: Option<u64>,
    #[serde(deserialize_with = "config::seconds")]
    timeout: Duration,
}

impl ProtocolConfig for FileConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(FileSink::connect(self, endpoint, environment)?))
    }
}
