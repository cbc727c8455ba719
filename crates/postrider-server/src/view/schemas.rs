//! Why messages die, for the API's description.

use postrider::store::DEAD_REASONS;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

pub(crate) fn dead_reason() -> Schema {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(DEAD_REASONS)).into()
}

pub(crate) fn dead_reason_or_null() -> Schema {
    let or_null = SchemaType::from_iter([Type::String, Type::Null]);
    let choices = DEAD_REASONS.into_iter().map(Some).chain([None]);
    ObjectBuilder::new().schema_type(or_null).enum_values(Some(choices)).into()
}
