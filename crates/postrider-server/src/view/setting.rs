//! A setting as JSON: a number or one of its choices.

use postrider::settings::{Kind, Setting, Settings};
use serde_json::Value;

pub(crate) fn setting(setting: &Setting, settings: &Settings) -> Value {
    let text = settings.value(setting.name).unwrap_or_default();
    match setting.kind {
        Kind::Whole { .. } => text.parse::<u64>().map_or(Value::Null, Value::from),
        Kind::Choice(_) => Value::String(text),
    }
}
