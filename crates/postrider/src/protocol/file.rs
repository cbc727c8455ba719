//! Keys of the file protocol.

use std::path::{Component, Path};

use super::TIMEOUT_SECONDS_MAX;
use super::keys::{Key, Kind, Rule};

const PATH_BYTES_MAX: usize = 1024;

pub(super) const KEYS: &[Key] = &[
    Key::new("path", Kind::Text { bytes_max: PATH_BYTES_MAX, rule: Rule("path", path) }).required(),
    // Smaller files would be more names than contents.
    Key::new("rotate_size", Kind::Whole { min: 1024, max: 1 << 40 }),
    Key::new("timeout", Kind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("10"),
];

fn path(text: &str) -> Result<(), String> {
    let plain = Path::new(text).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || text.ends_with('/') || text.chars().any(char::is_control) {
        return Err(
            "must be a path of a file relative to the node's --file-root, without '.' or '..'".to_owned()
        );
    }
    Ok(())
}
