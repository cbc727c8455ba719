//! What events, filters, patterns, templates and schemas make of each other: one table for every way in.

use serde::Deserialize;
use serde_json::value::RawValue;

/// JSON is kept as it is written: digits, doubled keys and all.
type Text = Box<RawValue>;

#[derive(Deserialize)]
pub(crate) struct Cases {
    pub(crate) patterns: Vec<PatternCase>,
    pub(crate) refused_patterns: Vec<String>,
    pub(crate) filters: Vec<FilterCase>,
    pub(crate) templates: Vec<TemplateCase>,
    pub(crate) schemas: Vec<SchemaCase>,
    pub(crate) refused_schemas: Vec<RefusedSchema>,
}

#[derive(Deserialize)]
pub(crate) struct PatternCase {
    pub(crate) pattern: String,
    pub(crate) among: Vec<String>,
    pub(crate) fits: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct FilterCase {
    pub(crate) filter: Text,
    pub(crate) payload: Text,
    pub(crate) passes: bool,
}

#[derive(Deserialize)]
pub(crate) struct TemplateCase {
    pub(crate) template: Text,
    pub(crate) payload: Text,
    pub(crate) sends: Text,
}

#[derive(Deserialize)]
pub(crate) struct SchemaCase {
    pub(crate) schema: Text,
    pub(crate) payload: Text,
    pub(crate) says: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct RefusedSchema {
    pub(crate) schema: Text,
    pub(crate) says: String,
}

pub(crate) fn cases() -> Cases {
    serde_json::from_str(include_str!("../events/cases.json")).expect("the cases are JSON")
}
