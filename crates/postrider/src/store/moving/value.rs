//! One field of a row, and its form in the stream.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;
use uuid::Uuid;

use super::ColumnKind;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MovedValue {
    Null,
    Whole(i64),
    Flag(bool),
    Text(String),
    Json(Json),
    Bytes(Vec<u8>),
    Time(Timestamp),
    Uuid(Uuid),
    Ids(Vec<i64>),
}

impl MovedValue {
    /// None when it is not of this kind.
    pub(super) fn from_json(kind: ColumnKind, value: Json) -> Option<Self> {
        match (kind, value) {
            (_, Json::Null) => Some(Self::Null),
            (ColumnKind::Whole, value) => value.as_i64().map(Self::Whole),
            (ColumnKind::Flag, value) => value.as_bool().map(Self::Flag),
            (ColumnKind::Text | ColumnKind::Note, Json::String(text)) => Some(Self::Text(text)),
            (ColumnKind::Json | ColumnKind::Notes, value) => Some(Self::Json(value)),
            (ColumnKind::Bytes, value) => bytes_from_json(value).map(Self::Bytes),
            (ColumnKind::Time, value) => value.as_str()?.parse().ok().map(Self::Time),
            (ColumnKind::Uuid, value) => value.as_str()?.parse().ok().map(Self::Uuid),
            (ColumnKind::Ids, value) => {
                value.as_array()?.iter().map(Json::as_i64).collect::<Option<_>>().map(Self::Ids)
            }
            (ColumnKind::Text | ColumnKind::Note, _) => None,
        }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Text(text) => text.len(),
                Self::Bytes(bytes) => bytes.len(),
                // Rare and small.
                Self::Json(_) | Self::Ids(_) => 256,
                Self::Null | Self::Whole(_) | Self::Flag(_) | Self::Time(_) | Self::Uuid(_) => 0,
            }
    }
}

impl Serialize for MovedValue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Whole(number) => number.serialize(to),
            Self::Flag(flag) => flag.serialize(to),
            Self::Text(text) => text.serialize(to),
            Self::Json(value) => value.serialize(to),
            Self::Bytes(bytes) => serialize_bytes(bytes, to),
            Self::Time(at) => at.serialize(to),
            Self::Uuid(id) => id.serialize(to),
            Self::Ids(ids) => ids.serialize(to),
        }
    }
}

/// As text where people can read it. Control characters would be escaped, which takes six times the space.
fn serialize_bytes<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    let readable = |text: &&str| !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'));
    let mut map = to.serialize_map(Some(1))?;
    match std::str::from_utf8(bytes).ok().filter(readable) {
        Some(text) => map.serialize_entry("text", text)?,
        None => map.serialize_entry("base64", &BASE64_STANDARD.encode(bytes))?,
    }
    map.end()
}

fn bytes_from_json(value: Json) -> Option<Vec<u8>> {
    let Json::Object(fields) = value else { return None };
    let mut fields = fields.into_iter();
    match (fields.next(), fields.next()) {
        (Some((form, Json::String(text))), None) if form == "text" => Some(text.into_bytes()),
        (Some((form, Json::String(text))), None) if form == "base64" => BASE64_STANDARD.decode(text).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn every_byte_comes_back_as_text_or_base64() {
        let texts: [&[u8]; 3] = [b"", b"{\"a\": \"\xc3\xa4\"}", b"two\r\n\tlines"];
        let others: [&[u8]; 4] = [b"\0", b"a\0b", b"\xff\xfe", b"\x1b[1m"];
        for (form, cases) in [("text", &texts[..]), ("base64", &others[..])] {
            for bytes in cases {
                let json = to_value(MovedValue::Bytes(bytes.to_vec())).unwrap();
                assert!(json.get(form).is_some(), "{json}");
                assert_eq!(
                    MovedValue::from_json(ColumnKind::Bytes, json),
                    Some(MovedValue::Bytes(bytes.to_vec()))
                );
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        let json = to_value(MovedValue::Bytes(all.clone())).unwrap();
        assert_eq!(MovedValue::from_json(ColumnKind::Bytes, json), Some(MovedValue::Bytes(all)));
    }

    #[test]
    fn a_value_of_another_kind_is_not_taken() {
        for (kind, value) in [
            (ColumnKind::Whole, json!("1")),
            (ColumnKind::Whole, json!(1.5)),
            (ColumnKind::Flag, json!(1)),
            (ColumnKind::Text, json!(1)),
            (ColumnKind::Note, json!({})),
            (ColumnKind::Bytes, json!("plain")),
            (ColumnKind::Bytes, json!({"base64": "*"})),
            (ColumnKind::Bytes, json!({"text": "a", "base64": ""})),
            (ColumnKind::Time, json!("yesterday")),
            (ColumnKind::Uuid, json!("7")),
            (ColumnKind::Ids, json!(["1"])),
        ] {
            assert_eq!(MovedValue::from_json(kind, value.clone()), None, "{kind:?} {value}");
        }
    }
}
