//! JSON as PostgreSQL's jsonb knows it: numbers are decimals of any length, equal when their values are, and of a key
//! that is given twice the last one counts. The rules of events are about such values.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

pub use number::Number;

mod number;
mod reader;

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
    /// What is wrong with it is said as a rule: `is not JSON: …`.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let raw: &RawValue = serde_json::from_slice(text).map_err(not_json)?;
        reader::read(raw.get())
    }

    /// By the name that JSON Schema has for it.
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

    /// No text of PostgreSQL has one.
    pub fn has_nul(&self) -> bool {
        match self {
            Self::Null | Self::Flag(_) | Self::Number(_) => false,
            Self::Text(text) => text.contains('\0'),
            Self::List(items) => items.iter().any(Self::has_nul),
            Self::Object(members) => members.iter().any(|(key, value)| key.contains('\0') || value.has_nul()),
        }
    }
}

fn not_json(error: serde_json::Error) -> String {
    format!("is not JSON: {error}")
}

/// Written as jsonb is: with blanks, short keys first.
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
