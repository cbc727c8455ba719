//! What sinks need to know of JSON without building a value of it.

use serde::de::IgnoredAny;

/// `application/json`, `text/json`, `application/vnd.x+json`, whatever the parameters.
fn is_json_type(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let subtype = media_type.split_once('/').map_or("", |(_, subtype)| subtype);
    subtype.eq_ignore_ascii_case("json")
        || subtype.len() > 5 && subtype[subtype.len() - 5..].eq_ignore_ascii_case("+json")
}

/// The payload as text that can stand inside another JSON document, byte for byte.
pub(crate) fn embeddable<'a>(content_type: &str, payload: &'a [u8]) -> Option<&'a str> {
    if !is_json_type(content_type) {
        return None;
    }
    // The parser skips over strings without looking at their encoding, so that is checked first.
    let text = std::str::from_utf8(payload).ok()?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    Some(text)
}

/// `,"key":` and the text as a JSON string.
pub(crate) fn push_field(out: &mut Vec<u8>, key: &str, text: &str) {
    push_key(out, key);
    push_string(out, text);
}

pub(crate) fn push_key(out: &mut Vec<u8>, key: &str) {
    out.push(if out.is_empty() { b'{' } else { b',' });
    push_string(out, key);
    out.push(b':');
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string can always be written to memory");
}
