//! Dead letters: look, put back, discard; and the keys that they hold.

use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, NoContent};
use postrider::store::{DlqFilter, DlqStatus, DlqSummary, ListedDeadLetter, Redrive};
use postrider::verdict::Class;
use postrider::{MessageId, StoreError};
use utoipa::ToSchema;

use super::Reply;
use super::answers::{Clash, Common, Full, Named, WithBody};
use super::authority::Viewer;
use super::extract::{Action, DeadLetterNumber, FromBody, JsonBody, Operator};
use super::page::{Page, Params};
use super::problem::Problem;
use crate::fields::{self, BadDocument, JsonFields};
use crate::send_values;
use crate::view::{DeadLetterView, Redriven, Released, schemas};

#[rustfmt::skip]
const FILTERS: [&str; 13] = [
    "endpoint", "status", "reason", "class", "error", "event_type", "ordering_key", "correlation_id", "message_id",
    "from", "until", "limit", "cursor",
];

/// List dead letters, oldest first, whatever has become of them unless `status` says.
#[utoipa::path(get, path = "/v1/dlq", operation_id = "list_dead_letters", tag = "dead letters",
    params(
        ("endpoint" = Option<String>, Query, description = "As it is shown: a dropped one too, and `(events)` for those of events"),
        ("status" = Option<DlqStatus>, Query),
        ("reason" = inline(Option<ReasonChoice>), Query, description = "Why it died"),
        ("class" = Option<Class>, Query, description = "Of its last error"),
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
    responses((status = 200, description = "A page", body = Page<ListedDeadLetter>), Common, Named))]
pub(super) async fn list(operate: Operator, uri: Uri) -> Result<Page<ListedDeadLetter>, Problem> {
    let mut filter = filter(&uri)?;
    let limit = filter.limit;
    filter.limit += 1;
    let letters = operate.dlq(filter).await?.into_iter().map(|letter| letter.listed).collect();
    Ok(Page::of(letters, limit, |last| last.id))
}

fn filter(uri: &Uri) -> Result<DlqFilter, Problem> {
    let mut params = Params::parse(uri, &FILTERS)?;
    Ok(DlqFilter {
        id: None,
        message: params.value("message_id", "must be a whole number")?.map(MessageId),
        endpoint: params.text("endpoint"),
        status: params.read("status", send_values::dlq_status)?,
        reason: params.read("reason", send_values::dead_reason)?,
        class: params.read("class", send_values::class)?,
        error: params.text("error"),
        event_type: params.text("event_type"),
        ordering_key: params.text("ordering_key"),
        correlation_id: params.value("correlation_id", "must be a UUID")?,
        from: params.read("from", send_values::timestamp)?,
        until: params.read("until", send_values::timestamp)?,
        after: params.cursor()?,
        limit: params.limit()?,
    })
}

/// How many dead letters each endpoint has.
#[utoipa::path(get, path = "/v1/dlq/summary", operation_id = "summarize_dead_letters", tag = "dead letters",
    responses((status = 200, description = "One item for each endpoint that has any", body = Page<DlqSummary>), Common))]
pub(super) async fn summary(operate: Operator) -> Result<Page<DlqSummary>, Problem> {
    Ok(Page { items: operate.dlq_summary().await?, next: None })
}

/// Show a dead letter with its payload and its last errors.
#[utoipa::path(get, path = "/v1/dlq/{id}", operation_id = "show_dead_letter", tag = "dead letters",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The dead letter", body = DeadLetterView), Common, Named))]
pub(super) async fn show(
    operate: Operator,
    viewer: Viewer,
    DeadLetterNumber(id): DeadLetterNumber,
) -> Result<Json<DeadLetterView>, Problem> {
    let filter = DlqFilter { id: Some(id), limit: 1, ..DlqFilter::default() };
    let unknown = || StoreError::Unknown { what: "dead letter", name: id.to_string() };
    let letter = operate.dlq(filter).await?.pop().ok_or_else(unknown)?;
    Ok(Json(viewer.dead_letter(letter)))
}

/// `POST /v1/dlq/{id}:…`
pub(super) async fn act(operate: Operator, action: Action) -> Reply {
    Ok(match action.name() {
        "redrive" => redrive(&operate, (&action).try_into()?).await?.into_response(),
        "discard" => discard(&operate, (&action).try_into()?).await?.into_response(),
        _ => return Err(action.unknown().await),
    })
}

/// Put a dead letter back into the queue, with a fresh budget of attempts.
#[utoipa::path(post, path = "/v1/dlq/{id}:redrive", operation_id = "redrive_dead_letter", tag = "dead letters",
    params(("id" = i64, Path)),
    responses((status = 200, description = "It is queued again", body = Redriven), Common, Named, Clash, Full))]
async fn redrive(operate: &Operator, id: DeadLetterNumber) -> Result<Json<Redriven>, Problem> {
    Ok(Json(Redriven { redriven: operate.redrive(Redrive::One(id.0)).await? }))
}

/// Give a dead letter up for good. A key that waits for it is released.
#[utoipa::path(post, path = "/v1/dlq/{id}:discard", operation_id = "discard_dead_letter", tag = "dead letters",
    params(("id" = i64, Path)),
    responses((status = 204, description = "It is discarded"), Common, Named, Clash))]
async fn discard(operate: &Operator, id: DeadLetterNumber) -> Result<NoContent, Problem> {
    operate.discard(id.0).await?;
    Ok(NoContent)
}

/// The ordering key to release.
#[derive(ToSchema)]
pub(super) struct KeyRelease {
    key: String,
    /// Without it the key is released everywhere.
    endpoint: Option<String>,
}

impl FromBody for KeyRelease {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let mut body = JsonFields::read(body)?;
        fields::known(body.keys(), &["key", "endpoint"])?;
        let key = fields::text(&mut body, "key")?;
        Ok(Self { key, endpoint: fields::optional(&mut body, "endpoint", fields::string)? })
    }
}

/// Release an ordering key that waits for its dead head (`on_dead: hold`). The dead letters stay.
#[utoipa::path(post, path = "/v1/keys:release", operation_id = "release_key", tag = "dead letters",
    request_body = KeyRelease,
    responses((status = 200, description = "How many heads were released", body = Released), Common, Named, WithBody))]
pub(super) async fn release_key(
    operate: Operator,
    JsonBody(release): JsonBody<KeyRelease>,
) -> Result<Json<Released>, Problem> {
    let released = operate.release_key(&release.key, release.endpoint.as_deref()).await?;
    Ok(Json(Released { released }))
}

/// The reasons, for the description of a parameter.
struct ReasonChoice;

impl utoipa::PartialSchema for ReasonChoice {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        schemas::dead_reason().into()
    }
}

impl ToSchema for ReasonChoice {}
