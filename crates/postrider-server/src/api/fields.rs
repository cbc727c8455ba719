//! Fields of a JSON body, taken one by one so that what is wrong is named.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use postrider::{Invalid, Json};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::problem::Problem;

/// The fields of an object, of which none may be given twice.
pub(super) struct Fields<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Fields<T> {
    pub(super) fn read(body: &'de [u8]) -> Result<BTreeMap<String, T>, Problem> {
        let Self(fields) = serde_json::from_slice(body).map_err(|error| Problem::bad_json(&error))?;
        Ok(fields)
    }
}

struct FieldsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FieldsVisitor<T> {
    type Value = Fields<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((field, value)) = map.next_entry::<String, T>()? {
            if fields.contains_key(&field) {
                return Err(A::Error::custom(format_args!("field `{field}` is given twice")));
            }
            fields.insert(field, value);
        }
        Ok(Fields(fields))
    }
}

pub(super) fn string(field: &str, value: Value) -> Result<String, Invalid> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Invalid::new(field, "must be a string")),
    }
}

pub(super) fn object(field: &str, value: Value) -> Result<Map<String, Value>, Invalid> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(Invalid::new(field, "must be an object")),
    }
}

pub(super) fn flag(field: &str, value: Value) -> Result<bool, Invalid> {
    value.as_bool().ok_or_else(|| Invalid::new(field, "must be true or false"))
}

pub(super) fn whole(field: &str, value: Value) -> Result<i64, Invalid> {
    value.as_i64().ok_or_else(|| Invalid::new(field, "must be a whole number"))
}

/// A field that may be missing, or null.
pub(super) fn optional<T>(
    fields: &mut BTreeMap<String, Value>,
    field: &str,
    read: impl FnOnce(&str, Value) -> Result<T, Invalid>,
) -> Result<Option<T>, Invalid> {
    fields.remove(field).filter(|value| !value.is_null()).map(|value| read(field, value)).transpose()
}

/// What is written as text and means something else.
pub(super) fn text_of<T>(
    read: impl FnOnce(&str, &str) -> Result<T, Invalid>,
) -> impl FnOnce(&str, Value) -> Result<T, Invalid> {
    move |field, value| read(field, &string(field, value)?)
}

pub(super) fn required<T>(field: &str, value: Option<T>) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "is required"))
}

/// Unknown fields are named before anything else is looked at.
pub(super) fn known<'a>(mut fields: impl Iterator<Item = &'a String>, known: &[&str]) -> Result<(), Invalid> {
    match fields.find(|field| !known.contains(&field.as_str())) {
        Some(field) => Err(Invalid::unknown_key("", field, known)),
        None => Ok(()),
    }
}

/// JSON with all digits of its numbers; null is as good as nothing.
pub(super) fn json(field: &str, value: Option<&RawValue>) -> Result<Option<Json>, Invalid> {
    match value.map(|value| Json::parse(value.get().as_bytes())) {
        None | Some(Ok(Json::Null)) => Ok(None),
        Some(Ok(json)) => Ok(Some(json)),
        Some(Err(rule)) => Err(Invalid::new(field, rule)),
    }
}

pub(super) fn raw_string(field: &str, value: Option<&RawValue>) -> Result<Option<String>, Invalid> {
    let text = value.map_or("null", RawValue::get);
    serde_json::from_str(text).map_err(|_| Invalid::new(field, "must be a string"))
}
