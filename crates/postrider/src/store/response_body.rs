//! What a receiver answered, as JSON: as text, or in base64 where it is not text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a receiver answered, when that was kept.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub(crate) struct ResponseBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    response_body: Option<String>,
    /// Where it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_body_base64: Option<String>,
}

pub(crate) fn serialize<S: Serializer>(body: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = body.as_deref().and_then(|body| std::str::from_utf8(body).ok()).map(str::to_owned);
    let encoded = body.as_ref().filter(|_| text.is_none()).map(|body| STANDARD.encode(body));
    ResponseBody { response_body: text, response_body_base64: encoded }.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let body = ResponseBody::deserialize(deserializer)?;
    let decoded = body.response_body_base64.and_then(|text| STANDARD.decode(text).ok());
    Ok(decoded.map(Bytes::from).or(body.response_body.map(Bytes::from)))
}
