//! JSON values with the semantics of PostgreSQL's jsonb: numbers are decimals of any length and equal if their values are;
//! of a repeated key the last one counts. Filters, templates and schemas of events use it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::Invalid;

pub use number::Number;

mod number;
mod reader;

/// How deep lists and objects may be nested. SQL has the same limit.
pub(crate) const DEPTH_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Flag(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// The error is a rule for [`Invalid`]: `is not JSON: …`.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let raw: &RawValue = serde_json::from_slice(text).map_err(not_json)?;
        reader::read(raw.get())
    }

    /// Checks without building a value. Accepts any number and any escape.
    pub fn check(text: &[u8]) -> Result<(), String> {
        Self::check_depth(text)?;
        // The parser does not check the encoding of strings.
        let text = std::str::from_utf8(text).map_err(|error| format!("is not JSON: {error}"))?;
        serde_json::from_str::<IgnoredAny>(text).map(drop).map_err(not_json)
    }

    /// Checks only the depth. Called before other parsers, whose error for deep JSON would differ.
    pub fn check_depth(text: &[u8]) -> Result<(), String> {
        let opens = |byte: &&u8| matches!(byte, b'[' | b'{');
        // Enough for most texts, and quick.
        if text.iter().filter(opens).count() <= DEPTH_MAX {
            return Ok(());
        }
        let (mut depth, mut quoted) = (0_usize, false);
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'\\' if quoted => drop(bytes.next()),
                b'"' => quoted = !quoted,
                b'[' | b'{' if !quoted => depth += 1,
                b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > DEPTH_MAX {
                return Err(too_deep());
            }
        }
        Ok(())
    }

    /// For a value that was built, not parsed.
    pub(crate) fn check_levels(&self) -> Result<(), String> {
        if self.fits_in(DEPTH_MAX) { Ok(()) } else { Err(too_deep()) }
    }

    fn fits_in(&self, levels: usize) -> bool {
        let below = |value: &Self| value.fits_in(levels - 1);
        match self {
            Self::Null | Self::Flag(_) | Self::Number(_) | Self::Text(_) => true,
            Self::List(items) => levels > 0 && items.iter().all(below),
            Self::Object(members) => levels > 0 && members.values().all(below),
        }
    }

    /// The type name of JSON Schema.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "boolean",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// PostgreSQL cannot store U+0000 in a text.
    pub fn has_nul(&self) -> bool {
        match self {
            Self::Null | Self::Flag(_) | Self::Number(_) => false,
            Self::Text(text) => text.contains('\0'),
            Self::List(items) => items.iter().any(Self::has_nul),
            Self::Object(members) => members.iter().any(|(key, value)| key.contains('\0') || value.has_nul()),
        }
    }
}

/// [`Json::check_levels`] for an object of serde_json.
pub(crate) fn check_object(field: &str, object: &Map<String, Value>) -> Result<(), Invalid> {
    match object.values().all(|value| fits_in(DEPTH_MAX - 1, value)) {
        true => Ok(()),
        false => Err(Invalid::new(field, too_deep())),
    }
}

fn fits_in(levels: usize, value: &Value) -> bool {
    let below = |value: &Value| fits_in(levels - 1, value);
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        Value::Array(items) => levels > 0 && items.iter().all(below),
        Value::Object(members) => levels > 0 && members.values().all(below),
    }
}

fn too_deep() -> String {
    format!("is more than {DEPTH_MAX} levels deep")
}

fn not_json(error: serde_json::Error) -> String {
    format!("is not JSON: {error}")
}

/// The text form of jsonb: with spaces, short keys first.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => quoted(text, f),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { ", " })?;
                    item.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(key, _)| (key.len(), *key));
                f.write_str("{")?;
                for (at, (key, value)) in members.into_iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { ", " })?;
                    quoted(key, f)?;
                    write!(f, ": {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&serde_json::to_string(text).expect("text becomes JSON"))
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Flag(flag),
            Value::Number(number) => Self::Number(number.into()),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(members) => {
                Self::Object(members.into_iter().map(|(key, value)| (key, value.into())).collect())
            }
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = RawValue::from_string(self.to_string()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        reader::read(raw.get()).map_err(D::Error::custom)
    }
}
