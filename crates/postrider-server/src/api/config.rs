//! The settings of the store, as a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use postrider::settings::{Kind, Settings, TABLE};
use postrider::{Invalid, StoreError};
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::answers::{self, Clash, Common};
use super::fields::Fields;
use super::problem::Problem;
use super::{Api, body, to_response};
use crate::view;

/// Every setting by its name: numbers and choices.
struct Config;

impl PartialSchema for Config {
    fn schema() -> RefOr<Schema> {
        let config = TABLE.iter().fold(ObjectBuilder::new(), |config, setting| {
            let value = ObjectBuilder::new().description(Some(setting.meaning));
            let value = match &setting.kind {
                Kind::Whole { min, max } => {
                    value.schema_type(Type::Integer).minimum(Some(*min)).maximum(Some(*max))
                }
                Kind::Choice(choices) => {
                    value.schema_type(Type::String).enum_values(Some(choices.iter().copied()))
                }
            };
            config.property(setting.name, value)
        });
        config.additional_properties(Some(AdditionalProperties::FreeForm(false))).into()
    }
}

impl ToSchema for Config {}

/// All settings with what they say.
#[utoipa::path(get, path = "/v1/config", operation_id = "show_config", tag = "system",
    responses((status = 200, description = "All settings", body = Config), Common))]
pub(super) async fn show(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    Ok(to_response(StatusCode::OK, &shown(&api.operate.settings().await?)))
}

/// Change settings, all or none; those that are not named stay.
#[utoipa::path(put, path = "/v1/config", operation_id = "change_config", tag = "system", request_body = Config,
    responses((status = 200, description = "All settings", body = Config), Common, answers::Body, Clash))]
pub(super) async fn change(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let changes = changes(Fields::read(&body)?).map_err(StoreError::from)?;
    api.operate.configure(changes).await?;
    show(State(api)).await
}

fn changes(body: BTreeMap<String, Value>) -> Result<Vec<(String, String)>, Invalid> {
    let text = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        Value::Number(number) => Ok((name, number.to_string())),
        _ => Err(Invalid::new(name, "must be a number or a string")),
    };
    body.into_iter().map(text).collect()
}

fn shown(settings: &Settings) -> Map<String, Value> {
    TABLE.iter().map(|setting| (setting.name.to_owned(), view::setting(setting, settings))).collect()
}
