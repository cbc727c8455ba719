//! Tokens: make, list, revoke.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::StoreError;
use postrider::store::{NewToken, token_prefix};

use super::answers::{self, Clash, Common, Named};
use super::fields::Fields;
use super::messages::path_text;
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::WantedToken;
use super::{Api, body, fields, no_content, to_response};
use crate::view::{IssuedTokenView, TokenView};

/// Make a token. This answer is the only one that holds it. With the first one, every request needs one.
#[utoipa::path(post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens", request_body = WantedToken,
    responses((status = 201, description = "The token", body = IssuedTokenView), Common, answers::Body, Clash))]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let mut body = Fields::read(&body::read(&parts.headers, body, body::SMALL_MAX).await?)?;
    fields::known(body.keys(), &["name", "scope"]).map_err(StoreError::from)?;
    let mut text = |field| fields::string(field, fields::required(field, body.remove(field))?);
    let name = text("name").map_err(StoreError::from)?;
    let scope = text("scope").and_then(|scope| scope.parse()).map_err(StoreError::from)?;
    let issued = api.operate.create_token(NewToken { name, scope }).await?;
    Ok(to_response(StatusCode::CREATED, &IssuedTokenView::from(issued)))
}

/// List tokens, oldest first, by how they begin.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, description = "All of them", body = Page<TokenView>), Common))]
pub(super) async fn list(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    let items = api.operate.tokens().await?.into_iter().map(TokenView::from).collect();
    Ok(Page { items, next: None }.into_response())
}

/// Revoke a token. Every node refuses it within a second. The last one only with `last=true`: without any, whoever
/// reaches a node on loopback may do everything.
#[utoipa::path(delete, path = "/v1/tokens/{prefix}", operation_id = "revoke_token", tag = "tokens",
    params(("prefix" = String, Path), ("last" = Option<bool>, Query, description = "Also if it is the last one")),
    responses((status = 204, description = "It opens nothing any more"), Common, Named, Clash))]
pub(super) async fn revoke(
    State(api): State<Arc<Api>>,
    prefix: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response<Body>, Problem> {
    let last = Params::parse(&uri, &["last"])?.value("last", "must be true or false")?;
    api.operate.revoke_token(token_prefix(&path_text(prefix)), last.unwrap_or(false)).await?;
    Ok(no_content())
}
