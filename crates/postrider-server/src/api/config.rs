//! The settings of the store, as a map.

use std::borrow::Cow;

use axum::Json;
use postrider::Invalid;
use postrider::settings::{SettingKind, TABLE};
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::answers::{Clash, Common, WithBody};
use super::extract::{FromBody, JsonBody, Operator};
use super::problem::Problem;
use crate::fields::{BadDocument, JsonFields};
use crate::view;

/// Every setting by its name: numbers and choices.
struct SettingsSchema;

impl PartialSchema for SettingsSchema {
    fn schema() -> RefOr<Schema> {
        let config = TABLE.iter().fold(ObjectBuilder::new(), |config, setting| {
            let value = ObjectBuilder::new().description(Some(setting.meaning));
            let value = match &setting.kind {
                SettingKind::Whole { min, max } => {
                    value.schema_type(Type::Integer).minimum(Some(*min)).maximum(Some(*max))
                }
                SettingKind::Choice(choices) => {
                    value.schema_type(Type::String).enum_values(Some(choices.iter().copied()))
                }
            };
            config.property(setting.name, value)
        });
        config.additional_properties(Some(AdditionalProperties::FreeForm(false))).into()
    }
}

impl ToSchema for SettingsSchema {
    fn name() -> Cow<'static, str> {
        "Config".into()
    }
}

/// All settings with what they say.
#[utoipa::path(get, path = "/v1/config", operation_id = "show_config", tag = "system",
    responses((status = 200, description = "All settings", body = SettingsSchema), Common))]
pub(super) async fn show(operate: Operator) -> Result<Json<Map<String, Value>>, Problem> {
    let settings = operate.settings().await?;
    let shown = TABLE.iter().map(|setting| (setting.name.to_owned(), view::setting(setting, &settings)));
    Ok(Json(shown.collect()))
}

/// Change settings, all or none; those that are not named stay.
#[utoipa::path(put, path = "/v1/config", operation_id = "change_config", tag = "system", request_body = SettingsSchema,
    responses((status = 200, description = "All settings", body = SettingsSchema), Common, WithBody, Clash))]
pub(super) async fn change(
    operate: Operator,
    JsonBody(SettingChanges(changes)): JsonBody<SettingChanges>,
) -> Result<Json<Map<String, Value>>, Problem> {
    operate.configure(changes).await?;
    show(operate).await
}

pub(super) struct SettingChanges(Vec<(String, String)>);

impl FromBody for SettingChanges {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let text = |(name, value): (String, Value)| match value {
            Value::String(text) => Ok((name, text)),
            Value::Number(number) => Ok((name, number.to_string())),
            _ => Err(Invalid::new(name, "must be a number or a string")),
        };
        let changes: Result<_, Invalid> = JsonFields::read(body)?.into_iter().map(text).collect();
        Ok(Self(changes?))
    }
}
