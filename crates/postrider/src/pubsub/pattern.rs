//! Names of event types, and patterns that match them: `*` matches everything, a trailing `.*` one or more segments.

use crate::error::Invalid;

const NAME_BYTES_MAX: usize = 128;

pub fn check_event_name(field: &str, name: &str) -> Result<(), Invalid> {
    if is_name(name) && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let rule = format!(
        "must be 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_' in segments with a '.' between them"
    );
    Err(Invalid::new(field, rule))
}

pub fn check_pattern(field: &str, pattern: &str) -> Result<(), Invalid> {
    let is_pattern = pattern == "*" || is_name(pattern.strip_suffix(".*").unwrap_or(pattern));
    if is_pattern && pattern.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Invalid::new(field, "must be the name of an event type, one that ends with '.*', or '*'"))
}

/// Subscribing to a whole name requires that the event type exists; a pattern may match later types.
pub fn is_whole_name(pattern: &str) -> bool {
    !pattern.ends_with('*')
}

/// All patterns that match an event type, to look them up in an index: its name, each prefix with `.*`, and `*`.
pub fn patterns_for(event_type: &str) -> Vec<String> {
    let beginnings = event_type.match_indices('.').map(|(at, _)| format!("{}.*", &event_type[..at]));
    ["*".to_owned(), event_type.to_owned()].into_iter().chain(beginnings).collect()
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    name.split('.').all(|segment| !segment.is_empty() && segment.bytes().all(is_letter))
}
