//! The supported part of JSON Schema. A schema with other keywords is refused when its event type is created.

use std::collections::BTreeMap;

use crate::error::Invalid;
use crate::json::{Json, Number};

const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
const ENFORCED: [&str; 13] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
];
const COUNT_MAX: u64 = 9_007_199_254_740_991;

pub fn check_schema(field: &str, schema: &Json) -> Result<(), Invalid> {
    let members = match schema {
        Json::Flag(_) => return Ok(()),
        Json::Object(members) => members,
        _ => return Err(Invalid::new(field, "must be an object or a boolean")),
    };
    members
        .iter()
        .try_for_each(|(keyword, value)| check_keyword(&format!("{field}.{keyword}"), keyword, value))
}

fn check_keyword(field: &str, keyword: &str, value: &Json) -> Result<(), Invalid> {
    let must = |holds: bool, rule: &str| if holds { Ok(()) } else { Err(Invalid::new(field, rule)) };
    match keyword {
        "type" => must(
            types(value)
                .iter()
                .all(|kind| matches!(kind, Json::Text(kind) if TYPES.contains(&kind.as_str()))),
            "must be \"null\", \"boolean\", \"object\", \"array\", \"number\", \"string\" or \"integer\", or a list of them",
        ),
        "enum" => must(matches!(value, Json::List(_)), "must be a list"),
        "const" | "title" | "description" | "$schema" | "$id" | "$comment" | "default" | "examples" => Ok(()),
        "required" => must(
            matches!(value, Json::List(names) if names.iter().all(|name| matches!(name, Json::Text(_)))),
            "must be a list of strings",
        ),
        "properties" => match value {
            Json::Object(properties) => properties
                .iter()
                .try_for_each(|(name, schema)| check_schema(&format!("{field}.{name}"), schema)),
            _ => must(false, "must be an object"),
        },
        "additionalProperties" | "items" => check_schema(field, value),
        "minimum" | "maximum" => must(matches!(value, Json::Number(_)), "must be a number"),
        "minLength" | "maxLength" | "minItems" | "maxItems" => must(
            matches!(value, Json::Number(count) if count.is_whole() && *count <= Number::from(COUNT_MAX)),
            &format!("must be a whole number from 0 to {COUNT_MAX}"),
        ),
        _ => Err(Invalid::new(field, format!("unknown field; expected one of: {}", ENFORCED.join(", ")))),
    }
}

fn types(value: &Json) -> &[Json] {
    match value {
        Json::List(kinds) => kinds,
        one => std::slice::from_ref(one),
    }
}

/// Where and why a value violates a checked schema; None if it does not.
pub fn broken_schema(path: &str, value: &Json, schema: &Json) -> Option<Invalid> {
    let schema = match schema {
        Json::Object(schema) => schema,
        Json::Flag(false) => return Some(Invalid::new(path, "is not allowed here")),
        _ => return None,
    };
    let broken = |rule: String| Some(Invalid::new(path, rule));
    if let Some(kinds) = schema.get("type").map(types)
        && !kinds.iter().any(|kind| is_of_type(value, kind))
    {
        let names: Vec<&str> = kinds.iter().filter_map(text).collect();
        return broken(format!("must be of type {}", names.join(" or ")));
    }
    if let Some(allowed @ Json::List(values)) = schema.get("enum")
        && !values.contains(value)
    {
        return broken(format!("must be one of {allowed}"));
    }
    if let Some(constant) = schema.get("const")
        && constant != value
    {
        return broken(format!("must be {constant}"));
    }
    match value {
        Json::Number(number) => broken_number(number, schema).and_then(broken),
        Json::Text(text) => {
            let count = text.chars().count();
            broken_count(count, schema, ("minLength", "maxLength"), "characters").and_then(broken)
        }
        Json::List(items) => broken_count(items.len(), schema, ("minItems", "maxItems"), "items")
            .and_then(broken)
            .or_else(|| broken_item(path, items, schema)),
        Json::Object(members) => broken_member(path, members, schema),
        Json::Null | Json::Flag(_) => None,
    }
}

fn is_of_type(value: &Json, kind: &Json) -> bool {
    let is_integer = matches!(value, Json::Number(number) if number.is_integer());
    text(kind).is_some_and(|kind| kind == value.kind() || (kind == "integer" && is_integer))
}

fn text(value: &Json) -> Option<&str> {
    match value {
        Json::Text(text) => Some(text),
        _ => None,
    }
}

fn broken_number(number: &Number, schema: &BTreeMap<String, Json>) -> Option<String> {
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(Json::Number(least)), _) if number < least => Some(format!("must be at least {least}")),
        (_, Some(Json::Number(most))) if number > most => Some(format!("must be at most {most}")),
        _ => None,
    }
}

fn broken_count(
    count: usize,
    schema: &BTreeMap<String, Json>,
    (least, most): (&str, &str),
    of: &str,
) -> Option<String> {
    let count = Number::from(count as u64);
    match (schema.get(least), schema.get(most)) {
        (Some(Json::Number(least)), _) if count < *least => Some(format!("must have at least {least} {of}")),
        (_, Some(Json::Number(most))) if count > *most => Some(format!("must have at most {most} {of}")),
        _ => None,
    }
}

fn broken_item(path: &str, items: &[Json], schema: &BTreeMap<String, Json>) -> Option<Invalid> {
    let schema = schema.get("items")?;
    items.iter().enumerate().find_map(|(at, item)| broken_schema(&format!("{path}[{at}]"), item, schema))
}

fn broken_member(
    path: &str,
    members: &BTreeMap<String, Json>,
    schema: &BTreeMap<String, Json>,
) -> Option<Invalid> {
    let required = schema.get("required").map_or(&[][..], types).iter().filter_map(text);
    if let Some(missing) = required.into_iter().find(|name| !members.contains_key(*name)) {
        return Some(Invalid::new(format!("{path}.{missing}"), "is required"));
    }
    let named = |key: &str| match schema.get("properties") {
        Some(Json::Object(properties)) => properties.get(key),
        _ => None,
    };
    members.iter().find_map(|(key, value)| {
        let schema = named(key).or_else(|| schema.get("additionalProperties"))?;
        broken_schema(&format!("{path}.{key}"), value, schema)
    })
}
