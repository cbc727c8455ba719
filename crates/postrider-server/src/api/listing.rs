//! Messages, whatever has become of them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, Uri};
use postrider::store::MessageFilter;
use postrider::{MessageId, State as MessageState};

use super::Api;
use super::answers::{Common, Named};
use super::page::{Page, Params};
use super::problem::Problem;
use crate::cursor;
use crate::view::{ListedMessageView, schemas};

/// List messages, newest first. A page looks at a bounded number of messages, so where few match it may have fewer items
/// than asked for, or none: what counts is `next`.
#[utoipa::path(get, path = "/v1/messages", operation_id = "list_messages", tag = "messages",
    params(
        ("state" = inline(Option<StateChoice>), Query),
        ("endpoint" = Option<String>, Query),
        ("ordering_key" = Option<String>, Query),
        ("event_type" = Option<String>, Query),
        ("correlation_id" = Option<Uuid>, Query),
        ("created_after" = Option<Timestamp>, Query, description = "At this time or later"),
        ("created_before" = Option<Timestamp>, Query, description = "Before this time"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses((status = 200, description = "A page", body = Page<ListedMessageView>), Common, Named))]
pub(super) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response<Body>, Problem> {
    let page = api.operate.messages(filter(&uri)?).await?;
    let items = page.items.into_iter().map(ListedMessageView::from).collect();
    Ok(Page { items, next: page.next.map(cursor::written) }.into_response())
}

const KNOWN: [&str; 9] = [
    "state",
    "endpoint",
    "ordering_key",
    "event_type",
    "correlation_id",
    "created_after",
    "created_before",
    "limit",
    "cursor",
];

fn filter(uri: &Uri) -> Result<MessageFilter, Problem> {
    let mut params = Params::parse(uri, &KNOWN)?;
    Ok(MessageFilter {
        state: state(&mut params)?,
        endpoint: params.text("endpoint"),
        ordering_key: params.text("ordering_key"),
        event_type: params.text("event_type"),
        correlation_id: params.value("correlation_id", "must be a UUID")?,
        created_after: params.time("created_after")?,
        created_before: params.time("created_before")?,
        limit: params.limit()?,
        before: params.cursor()?.map(MessageId),
    })
}

pub(super) fn state(params: &mut Params) -> Result<Option<MessageState>, Problem> {
    let Some(name) = params.text("state") else { return Ok(None) };
    let known: Vec<&str> = MessageState::ALL.iter().map(|state| state.as_str()).collect();
    let found = MessageState::from_name(&name);
    found.map(Some).ok_or_else(|| Problem::invalid("state", format!("must be one of {}", known.join(", "))))
}

/// Stands for the states in the description of a parameter.
pub(super) struct StateChoice;

impl utoipa::PartialSchema for StateChoice {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        schemas::state().into()
    }
}

impl utoipa::ToSchema for StateChoice {}
