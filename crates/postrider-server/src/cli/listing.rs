//! `postrider message list`: messages by filter, whatever has become of them.

use clap::Args;
use jiff::Timestamp;
use postrider::store::{ListedMessage, MessageFilter, MessagePage};
use postrider::{Invalid, MessageId, Operate, State};
use serde_json::json;

use crate::failure::CommandError;
use crate::output::Output;
use crate::send_values;
use crate::view;

const LIST_DEFAULT: u16 = 100;
const LIST_MAX: i64 = 10_000;
/// What is asked of the store at a time.
const PAGE_MAX: usize = 1000;

#[derive(Args)]
pub(crate) struct ListMessagesArgs {
    /// In this state: pending, processing, completed, expired, cancelled or dead
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// To this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,

    /// Of this ordering key
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,

    /// Of this event type
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,

    /// With this correlation id
    #[arg(long, value_name = "UUID")]
    correlation_id: Option<String>,

    /// Created from then on: 2030-01-31T08:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    created_after: Option<String>,

    /// Created before: 2030-01-31T08:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    created_before: Option<String>,

    /// Only ids below this one: the `next` of the list before
    #[arg(long, value_name = "ID")]
    before: Option<i64>,

    /// At most this many
    #[arg(long, value_name = "N", default_value_t = LIST_DEFAULT, value_parser = clap::value_parser!(u16).range(1..=LIST_MAX))]
    limit: u16,
}

pub(super) async fn run(
    store: &dyn Operate,
    arguments: ListMessagesArgs,
    output: Output,
) -> Result<(), CommandError> {
    let now = Timestamp::now();
    let limit = usize::from(arguments.limit);
    let MessagePage { items, next } = gather(store, arguments.filter(now)?, limit).await?;
    output.document(
        || json!({ "items": items, "next": next }).to_string(),
        || listed(&items, next, now, output),
    )
}

/// A page may end early where few match, so pages are asked for until there are enough.
async fn gather(
    store: &dyn Operate,
    mut filter: MessageFilter,
    limit: usize,
) -> Result<MessagePage, CommandError> {
    let mut items = Vec::new();
    loop {
        filter.limit = (limit - items.len()).min(PAGE_MAX);
        let page = store.messages(filter.clone()).await?;
        items.extend(page.items);
        if items.len() >= limit || page.next.is_none() {
            return Ok(MessagePage { items, next: page.next });
        }
        filter.before = page.next;
    }
}

impl ListMessagesArgs {
    fn filter(self, now: Timestamp) -> Result<MessageFilter, CommandError> {
        let time = |field: &str, text: Option<String>| {
            text.map(|text| send_values::timestamp_or_ago(field, &text, now)).transpose()
        };
        let correlation_id = |text: String| send_values::correlation_id("correlation_id", &text);
        Ok(MessageFilter {
            state: self.state.as_deref().map(state).transpose()?,
            endpoint: self.endpoint,
            ordering_key: self.ordering_key,
            event_type: self.event_type,
            correlation_id: self.correlation_id.map(correlation_id).transpose()?,
            created_after: time("created_after", self.created_after)?,
            created_before: time("created_before", self.created_before)?,
            before: self.before.map(MessageId),
            limit: 0,
        })
    }
}

fn state(text: &str) -> Result<State, Invalid> {
    let known = State::ALL.map(State::as_str).join(", ");
    State::from_name(text).ok_or_else(|| Invalid::new("state", format!("must be one of {known}")))
}

fn listed(messages: &[ListedMessage], next: Option<MessageId>, now: Timestamp, output: Output) -> String {
    if messages.is_empty() {
        return "no messages".to_owned();
    }
    let row = |message: &ListedMessage| {
        vec![
            message.id.to_string(),
            message.endpoint.clone(),
            message.state.to_string(),
            view::age(message.created_at, now),
            message.attempt_count.to_string(),
            message.event_type.clone().unwrap_or("-".to_owned()),
            message.ordering_key.clone().unwrap_or("-".to_owned()),
            message.last_error.clone().unwrap_or_default(),
        ]
    };
    let header = ["id", "endpoint", "state", "age", "attempts", "event type", "ordering key", "last error"];
    let table = output.table(&header, messages.iter().map(row).collect());
    match next {
        Some(next) => format!("{table}\nthere may be more: --before {next}"),
        None => table,
    }
}
