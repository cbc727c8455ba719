//! A payload as JSON: as it is where it is JSON, else in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use postrider::message::is_json;
use serde_json::value::RawValue;

/// A payload as JSON where it is JSON, and in base64 where that is not all of its bytes: it is no JSON, has blanks
/// around it, or is the word `null`, which says here that there is none.
pub(super) fn shown(payload: Option<&Bytes>, content_type: &str) -> (Option<Box<RawValue>>, Option<String>) {
    let Some(payload) = payload else { return (serde_json::from_str("null").ok(), None) };
    let json: Option<Box<RawValue>> =
        is_json(content_type).then(|| serde_json::from_slice(payload).ok()).flatten();
    let whole = json.as_ref().is_some_and(|json| json.get().as_bytes() == payload && json.get() != "null");
    let encoded = (!whole).then(|| STANDARD.encode(payload));
    (json, encoded)
}

/// The bytes that were [`shown`].
pub(super) fn read(payload: Option<Box<RawValue>>, encoded: Option<&str>) -> Option<Bytes> {
    let json = || payload.map(|json| Bytes::from(String::from(Box::<str>::from(json))));
    encoded.and_then(|text| STANDARD.decode(text).ok()).map(Bytes::from).or_else(json)
}

/// A payload on one line, as far as it can be read.
pub(crate) fn payload_text(payload: Option<&Bytes>) -> Option<String> {
    let text = |payload: &Bytes| match std::str::from_utf8(payload) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("({} bytes that are not text)", payload.len()),
    };
    payload.map(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_was_shown_is_read_byte_for_byte() {
        let payloads: [&[u8]; 9] = [
            b"{\"a\": [1,  2]}",
            b"{}\n",
            b" 1.50",
            b"null",
            b"\"\xc3\xa9\"",
            b"{oops",
            b"",
            b"\xff\x00",
            b"7",
        ];
        for payload in payloads.map(Bytes::from_static) {
            for content_type in ["application/json", "text/plain"] {
                let (json, encoded) = shown(Some(&payload), content_type);
                assert_eq!(read(json, encoded.as_deref()), Some(payload.clone()), "{payload:?}");
            }
        }
        let (json, encoded) = shown(None, "application/json");
        let null = json.map(|json| json.get().to_owned());
        assert_eq!((null.as_deref(), encoded), (Some("null"), None), "what is not kept");
    }

    #[test]
    fn json_is_told_by_its_content_type() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"] {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["text/plain", "application/jsonlines", ""] {
            assert!(!is_json(no), "{no}");
        }
    }
}
