//! A setting as JSON: a number or one of its choices.

use postrider::settings::{Setting, SettingKind, Settings};
use serde_json::Value;

pub(crate) fn setting(setting: &Setting, settings: &Settings) -> Value {
    let text = settings.value(setting.name).unwrap_or_default();
    match setting.kind {
        SettingKind::Whole { .. } => text.parse::<u64>().map_or(Value::Null, Value::from),
        SettingKind::Choice(_) => Value::String(text),
    }
}
