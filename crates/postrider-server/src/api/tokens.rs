//! Tokens: make, list, revoke.

use axum::http::StatusCode;
use axum::http::Uri;
use axum::response::NoContent;
use postrider::store::{IssuedToken, NewToken, TokenRecord, token_prefix};

use super::answers::{Clash, Common, Named, WithBody};
use super::extract::{FromBody, JsonBody, Operator, TokenPrefix};
use super::page::{Page, Params};
use super::problem::Problem;
use super::{Reply, to_response};
use crate::fields::{self, BadDocument, JsonFields};

/// Make a token. This answer is the only one that holds it. With the first one, every request needs one.
#[utoipa::path(post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens", request_body = NewToken,
    responses((status = 201, description = "The token", body = IssuedToken), Common, WithBody, Clash))]
pub(super) async fn create(operate: Operator, JsonBody(new): JsonBody<NewToken>) -> Reply {
    Ok(to_response(StatusCode::CREATED, &operate.create_token(new).await?))
}

impl FromBody for NewToken {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let mut body = JsonFields::read(body)?;
        fields::known(body.keys(), &["name", "scope"])?;
        let name = fields::text(&mut body, "name")?;
        Ok(Self { name, scope: fields::text(&mut body, "scope")?.parse()? })
    }
}

/// List tokens, oldest first, by how they begin.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, description = "All of them", body = Page<TokenRecord>), Common))]
pub(super) async fn list(operate: Operator) -> Result<Page<TokenRecord>, Problem> {
    Ok(Page { items: operate.tokens().await?, next: None })
}

/// Revoke a token. Every node refuses it within a second. The last one only with `last=true`: without any, everybody who
/// reaches a node on loopback may do everything.
#[utoipa::path(delete, path = "/v1/tokens/{prefix}", operation_id = "revoke_token", tag = "tokens",
    params(("prefix" = String, Path), ("last" = Option<bool>, Query, description = "Also if it is the last one")),
    responses((status = 204, description = "The token is revoked"), Common, Named, Clash))]
pub(super) async fn revoke(
    operate: Operator,
    TokenPrefix(prefix): TokenPrefix,
    uri: Uri,
) -> Result<NoContent, Problem> {
    let last = Params::parse(&uri, &["last"])?.value("last", "must be true or false")?;
    operate.revoke_token(token_prefix(&prefix), last.unwrap_or(false)).await?;
    Ok(NoContent)
}
