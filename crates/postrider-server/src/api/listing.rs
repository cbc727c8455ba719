//! Messages, whatever has become of them.

use axum::http::Uri;
use postrider::store::{ListedMessage, MessageFilter};
use postrider::{MessageId, State};

use super::answers::{Common, Named};
use super::extract::Operator;
use super::page::{Page, Params};
use super::problem::Problem;
use crate::{cursor, send_values};

/// List messages, newest first. A page looks at a bounded number of messages, so where few match it may have fewer items
/// than asked for, or none: what counts is `next`.
#[utoipa::path(get, path = "/v1/messages", operation_id = "list_messages", tag = "messages",
    params(
        ("state" = Option<State>, Query),
        ("endpoint" = Option<String>, Query),
        ("ordering_key" = Option<String>, Query),
        ("event_type" = Option<String>, Query),
        ("correlation_id" = Option<Uuid>, Query),
        ("created_after" = Option<Timestamp>, Query, description = "At this time or later"),
        ("created_before" = Option<Timestamp>, Query, description = "Before this time"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses((status = 200, description = "A page", body = Page<ListedMessage>), Common, Named))]
pub(super) async fn list(operate: Operator, uri: Uri) -> Result<Page<ListedMessage>, Problem> {
    let page = operate.messages(filter(&uri)?).await?;
    Ok(Page { items: page.items, next: page.next.map(cursor::written) })
}

#[rustfmt::skip]
const KNOWN: [&str; 9] = [
    "state", "endpoint", "ordering_key", "event_type", "correlation_id", "created_after", "created_before", "limit", "cursor",
];

fn filter(uri: &Uri) -> Result<MessageFilter, Problem> {
    let mut params = Params::parse(uri, &KNOWN)?;
    Ok(MessageFilter {
        state: params.read("state", send_values::state)?,
        endpoint: params.text("endpoint"),
        ordering_key: params.text("ordering_key"),
        event_type: params.text("event_type"),
        correlation_id: params.value("correlation_id", "must be a UUID")?,
        created_after: params.read("created_after", send_values::timestamp)?,
        created_before: params.read("created_before", send_values::timestamp)?,
        limit: params.limit()?,
        before: params.cursor()?.map(MessageId),
    })
}
