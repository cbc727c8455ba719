//! Dead letters: look, put back, discard; and the keys that they hold.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::store::{DeadLetter, DlqFilter, DlqStatus, Redrive};
use postrider::verdict::Class;
use postrider::{MessageId, StoreError};
use utoipa::ToSchema;

use super::answers::{self, Clash, Common, Full, Named};
use super::authority::Viewer;
use super::fields::Fields;
use super::messages::path_text;
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::KeyRelease;
use super::{Api, body, fields, no_content, to_response, unknown_route, wrong_method};
use crate::send_values;
use crate::view::{DeadLetterView, DlqSummaryView, ListedDeadLetterView, Redriven, Released, schemas};

#[rustfmt::skip]
const FILTERS: [&str; 13] = [
    "endpoint", "status", "reason", "class", "error", "event_type", "ordering_key", "correlation_id", "message_id",
    "from", "until", "limit", "cursor",
];
const STATUSES: [DlqStatus; 3] = [DlqStatus::Failed, DlqStatus::Redriven, DlqStatus::Discarded];

/// List dead letters, oldest first, whatever has become of them unless `status` says.
#[utoipa::path(get, path = "/v1/dlq", operation_id = "list_dead_letters", tag = "dead letters",
    params(
        ("endpoint" = Option<String>, Query, description = "As it is shown: a dropped one too, and `(events)` for those of events"),
        ("status" = inline(Option<StatusChoice>), Query),
        ("reason" = inline(Option<ReasonChoice>), Query, description = "Why it died"),
        ("class" = inline(Option<ClassChoice>), Query, description = "Of its last error"),
        ("error" = Option<String>, Query, description = "Its last error has this text in it"),
        ("event_type" = Option<String>, Query),
        ("ordering_key" = Option<String>, Query),
        ("correlation_id" = Option<Uuid>, Query),
        ("message_id" = Option<i64>, Query),
        ("from" = Option<Timestamp>, Query, description = "Died from then on"),
        ("until" = Option<Timestamp>, Query, description = "Died before"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses((status = 200, description = "A page", body = Page<ListedDeadLetterView>), Common, Named))]
pub(super) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response<Body>, Problem> {
    let mut filter = filter(&uri)?;
    let limit = filter.limit;
    filter.limit += 1;
    let letters = api.operate.dlq(filter).await?;
    let page = Page::of(letters, limit, |last| last.id, |letter| ListedDeadLetterView::of(&letter));
    Ok(page.into_response())
}

fn filter(uri: &Uri) -> Result<DlqFilter, Problem> {
    let mut params = Params::parse(uri, &FILTERS)?;
    Ok(DlqFilter {
        id: None,
        message: params.value("message_id", "must be a whole number")?.map(MessageId),
        endpoint: params.text("endpoint"),
        status: status(&mut params)?,
        reason: reason(&mut params)?,
        class: class(&mut params)?,
        error: params.text("error"),
        event_type: params.text("event_type"),
        ordering_key: params.text("ordering_key"),
        correlation_id: params.value("correlation_id", "must be a UUID")?,
        from: params.time("from")?,
        until: params.time("until")?,
        after: params.cursor()?,
        limit: params.limit()?,
    })
}

fn reason(params: &mut Params) -> Result<Option<String>, Problem> {
    let reason = |name: String| send_values::dead_reason("reason", &name).map_err(StoreError::from);
    Ok(params.text("reason").map(reason).transpose()?)
}

fn class(params: &mut Params) -> Result<Option<Class>, Problem> {
    let class = |name: String| send_values::class("class", &name).map_err(StoreError::from);
    Ok(params.text("class").map(class).transpose()?)
}

fn status(params: &mut Params) -> Result<Option<DlqStatus>, Problem> {
    let Some(name) = params.text("status") else { return Ok(None) };
    let found = STATUSES.into_iter().find(|status| status.as_str() == name);
    found.map(Some).ok_or_else(|| Problem::invalid("status", "must be one of failed, redriven, discarded"))
}

/// How many dead letters each endpoint has.
#[utoipa::path(get, path = "/v1/dlq/summary", operation_id = "summarize_dead_letters", tag = "dead letters",
    responses((status = 200, description = "One item for each endpoint that has any", body = Page<DlqSummaryView>), Common))]
pub(super) async fn summary(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    let items = api.operate.dlq_summary().await?.into_iter().map(DlqSummaryView::from).collect();
    Ok(Page { items, next: None }.into_response())
}

/// Show a dead letter with its payload and its last errors.
#[utoipa::path(get, path = "/v1/dlq/{id}", operation_id = "show_dead_letter", tag = "dead letters",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The dead letter", body = DeadLetterView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let letter = found(&api, &path_text(id)).await?;
    Ok(to_response(StatusCode::OK, &viewer.dead_letter(letter)))
}

async fn found(api: &Api, id: &str) -> Result<DeadLetter, StoreError> {
    let filter = DlqFilter { id: Some(letter_id(id)?), limit: 1, ..DlqFilter::default() };
    api.operate.dlq(filter).await?.pop().ok_or_else(|| unknown(id))
}

fn letter_id(text: &str) -> Result<i64, StoreError> {
    text.parse().map_err(|_| unknown(text))
}

fn unknown(id: &str) -> StoreError {
    StoreError::Unknown { what: "dead letter", name: id.to_owned() }
}

/// `POST /v1/dlq/{id}:…`: the router knows whole segments only.
pub(super) async fn act(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let text = path_text(id);
    match text.split_once(':') {
        Some((id, "redrive")) => redrive(&api, id).await,
        Some((id, "discard")) => discard(&api, id).await,
        Some(_) => Err(unknown_route(request.uri().clone()).await),
        None => Err(wrong_method(request.method().clone(), request.uri().clone()).await),
    }
}

/// Put a dead letter back into the queue, with a fresh budget of attempts.
#[utoipa::path(post, path = "/v1/dlq/{id}:redrive", operation_id = "redrive_dead_letter", tag = "dead letters",
    params(("id" = i64, Path)),
    responses((status = 200, description = "It is queued again", body = Redriven), Common, Named, Clash, Full))]
async fn redrive(api: &Api, id: &str) -> Result<Response<Body>, Problem> {
    let redriven = api.operate.redrive(Redrive::One(letter_id(id)?)).await?;
    Ok(to_response(StatusCode::OK, &Redriven { redriven }))
}

/// Give a dead letter up for good. A key that waits for it goes on.
#[utoipa::path(post, path = "/v1/dlq/{id}:discard", operation_id = "discard_dead_letter", tag = "dead letters",
    params(("id" = i64, Path)),
    responses((status = 204, description = "It is discarded"), Common, Named, Clash))]
async fn discard(api: &Api, id: &str) -> Result<Response<Body>, Problem> {
    api.operate.discard(letter_id(id)?).await?;
    Ok(no_content())
}

/// Let an ordering key go on that waits for its dead head (`on_dead: hold`). The dead letters stay.
#[utoipa::path(post, path = "/v1/keys:release", operation_id = "release_key", tag = "dead letters",
    request_body = KeyRelease,
    responses((status = 200, description = "How many heads were let go", body = Released), Common, Named, answers::Body))]
pub(super) async fn release_key(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let mut body = Fields::read(&body::read(&parts.headers, body, body::SMALL_MAX).await?)?;
    let key = fields::known(body.keys(), &["key", "endpoint"])
        .and_then(|()| fields::string("key", fields::required("key", body.remove("key"))?))
        .map_err(StoreError::from)?;
    let given = body.remove("endpoint").filter(|value| !value.is_null());
    let endpoint =
        given.map(|value| fields::string("endpoint", value)).transpose().map_err(StoreError::from)?;
    let released = api.operate.release_key(&key, endpoint.as_deref()).await?;
    Ok(to_response(StatusCode::OK, &Released { released }))
}

/// Stands for the statuses in the description of a parameter.
struct StatusChoice;

impl utoipa::PartialSchema for StatusChoice {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        schemas::dlq_status().into()
    }
}

impl ToSchema for StatusChoice {}

/// The same of the reasons.
struct ReasonChoice;

impl utoipa::PartialSchema for ReasonChoice {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        schemas::dead_reason().into()
    }
}

impl ToSchema for ReasonChoice {}

/// The same of the classes.
struct ClassChoice;

impl utoipa::PartialSchema for ClassChoice {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        schemas::known_class().into()
    }
}

impl ToSchema for ClassChoice {}
