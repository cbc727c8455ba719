//! Fields of a JSON object, taken one by one so that what is wrong is named.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use postrider::{Invalid, Json};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Why a document is not what is asked for.
#[derive(Debug)]
pub(crate) enum BadDocument {
    Json(serde_json::Error),
    Value(Invalid),
}

impl From<serde_json::Error> for BadDocument {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

impl From<Invalid> for BadDocument {
    fn from(invalid: Invalid) -> Self {
        Self::Value(invalid)
    }
}

/// The fields of an object, of which none may be given twice.
pub(crate) struct JsonFields<T>(pub(crate) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonFields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor(PhantomData))
    }
}

impl JsonFields<Value> {
    /// Nor anything within them.
    pub(crate) fn read(body: &[u8]) -> Result<BTreeMap<String, Value>, BadDocument> {
        if Json::check_depth(body).is_err() {
            let given = JsonFields::raw(body)?;
            given.iter().try_for_each(|(field, value)| not_too_deep(field, value.get()))?;
        }
        none_twice("", body)?;
        let Self(fields) = serde_json::from_slice(body)?;
        Ok(fields)
    }
}

impl<'de> JsonFields<&'de RawValue> {
    /// For fields that are read, or kept, as they stand there.
    pub(crate) fn raw(body: &'de [u8]) -> serde_json::Result<BTreeMap<String, &'de RawValue>> {
        let Self(fields) = serde_json::from_slice(body)?;
        Ok(fields)
    }
}

struct FieldsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FieldsVisitor<T> {
    type Value = JsonFields<T>;

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
        Ok(JsonFields(fields))
    }
}

/// Asked first, because the parser would give up with other words.
pub(crate) fn not_too_deep(field: &str, json: &str) -> Result<(), Invalid> {
    Json::check_depth(json.as_bytes()).map_err(|rule| Invalid::new(field, rule))
}

/// No object within it has a key twice; what has is named by its path, which begins with `name`.
pub(crate) fn none_twice(name: &str, json: &[u8]) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    NoneTwice(&FieldPath::Whole(name)).deserialize(&mut reader)?;
    reader.end()
}

/// The path to a field. It becomes text only when an error names it.
enum FieldPath<'a> {
    Whole(&'a str),
    Field(&'a FieldPath<'a>, &'a str),
    Item(&'a FieldPath<'a>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(name) | Self::Field(Self::Whole(""), name) => f.write_str(name),
            Self::Field(within, name) => write!(f, "{within}.{name}"),
            Self::Item(within, at) => write!(f, "{within}[{at}]"),
        }
    }
}

struct NoneTwice<'a>(&'a FieldPath<'a>);

impl<'de> DeserializeSeed<'de> for NoneTwice<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NoneTwice<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(field) = map.next_key::<String>()? {
            let place = FieldPath::Field(self.0, &field);
            map.next_value_seed(NoneTwice(&place))?;
            if seen.contains(&field) {
                return Err(A::Error::custom(format_args!("field `{place}` is given twice")));
            }
            seen.insert(field);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut at = 0;
        while list.next_element_seed(NoneTwice(&FieldPath::Item(self.0, at)))?.is_some() {
            at += 1;
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

pub(crate) fn string(field: &str, value: Value) -> Result<String, Invalid> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Invalid::new(field, "must be a string")),
    }
}

/// A field that has to be given, and is text.
pub(crate) fn text(fields: &mut BTreeMap<String, Value>, field: &str) -> Result<String, Invalid> {
    string(field, required(field, fields.remove(field))?)
}

pub(crate) fn object(field: &str, value: Value) -> Result<Map<String, Value>, Invalid> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(Invalid::new(field, "must be an object")),
    }
}

pub(crate) fn flag(field: &str, value: Value) -> Result<bool, Invalid> {
    value.as_bool().ok_or_else(|| Invalid::new(field, "must be true or false"))
}

pub(crate) fn whole(field: &str, value: Value) -> Result<i64, Invalid> {
    value.as_i64().ok_or_else(|| Invalid::new(field, "must be a whole number"))
}

/// A field that may be missing, or null.
pub(crate) fn optional<T>(
    fields: &mut BTreeMap<String, Value>,
    field: &str,
    read: impl FnOnce(&str, Value) -> Result<T, Invalid>,
) -> Result<Option<T>, Invalid> {
    fields.remove(field).filter(|value| !value.is_null()).map(|value| read(field, value)).transpose()
}

/// What is written as text and means something else.
pub(crate) fn text_of<T>(
    read: impl FnOnce(&str, &str) -> Result<T, Invalid>,
) -> impl FnOnce(&str, Value) -> Result<T, Invalid> {
    move |field, value| read(field, &string(field, value)?)
}

pub(crate) fn required<T>(field: &str, value: Option<T>) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "is required"))
}

/// Unknown fields are named before anything else is looked at.
pub(crate) fn known<'a>(mut fields: impl Iterator<Item = &'a String>, known: &[&str]) -> Result<(), Invalid> {
    match fields.find(|field| !known.contains(&field.as_str())) {
        Some(field) => Err(Invalid::unknown_key("", field, known)),
        None => Ok(()),
    }
}

/// JSON with all digits of its numbers; null is as good as nothing.
pub(crate) fn json(field: &str, value: Option<&RawValue>) -> Result<Option<Json>, Invalid> {
    match value.map(|value| Json::parse(value.get().as_bytes())) {
        None | Some(Ok(Json::Null)) => Ok(None),
        Some(Ok(json)) => Ok(Some(json)),
        Some(Err(rule)) => Err(Invalid::new(field, rule)),
    }
}

pub(crate) fn raw_string(field: &str, value: Option<&RawValue>) -> Result<Option<String>, Invalid> {
    let text = value.map_or("null", RawValue::get);
    serde_json::from_str(text).map_err(|_| Invalid::new(field, "must be a string"))
}
