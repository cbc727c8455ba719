//! `postrider message …`: one message by its id, or a list of them.

use clap::Subcommand;
use jiff::Timestamp;
use postrider::store::{AttemptRecord, Story};
use postrider::{MessageId, Operate, State};
use serde_json::json;

use super::listing;
use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::{send_values, view};

pub(super) const HELP: &str = "\
Examples:
  postrider message list --state pending --endpoint shop
  postrider message show 12                  where it is, and why it is not delivered yet
  postrider message cancel 12                only while it is pending
  postrider message reschedule 12 +10m       next try in ten minutes
  postrider message erase 12                 its payload and headers go, its record stays";

#[derive(Subcommand)]
pub(crate) enum MessageCommand {
    /// List messages, newest first, whatever has become of them
    List(listing::ListMessagesArgs),
    /// Tell its whole story: state, attempts, and why it is not delivered yet
    Show {
        /// Of the message
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Take it back; only while it is pending
    Cancel {
        /// Of the message
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Try it at another time; only while it is pending
    Reschedule {
        /// Of the message
        #[arg(value_parser = super::id)]
        id: i64,
        /// 2030-01-31T08:00:00Z, or +5m from now
        at: String,
    },
    /// Remove its payload and headers wherever it is; a pending one is cancelled
    Erase {
        /// Of the message
        #[arg(value_parser = super::id)]
        id: i64,
    },
}

pub(super) async fn run(
    command: MessageCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let store = &*place.open_tool().await?;
    match command {
        MessageCommand::List(arguments) => listing::run(store, arguments, output).await,
        MessageCommand::Show { id } => show(store, MessageId(id), place, output).await,
        MessageCommand::Cancel { id } => {
            store.cancel(MessageId(id)).await?;
            done(id, "cancelled", output)
        }
        MessageCommand::Reschedule { id, at } => {
            let at = send_values::timestamp_or_delay("at", &at, Timestamp::now())?;
            store.reschedule(MessageId(id), at).await?;
            output.document(
                || json!({ "message": id, "done": "rescheduled", "due_at": at }).to_string(),
                || format!("message {id} is tried next at {at}"),
            )
        }
        MessageCommand::Erase { id } => {
            store.erase(MessageId(id)).await?;
            done(id, "erased", output)
        }
    }
}

fn done(id: i64, what: &str, output: Output) -> Result<(), CommandError> {
    output
        .document(|| json!({ "message": id, "done": what }).to_string(), || format!("message {id} is {what}"))
}

async fn show(
    store: &dyn Operate,
    id: MessageId,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let story = store.story(id).await?;
    let payload = || view::payload_text(story.payload.as_ref()).unwrap_or_else(|| place.no_payload());
    output.document(|| view::story(&story), || told(&story, payload(), Timestamp::now(), output))
}

fn told(story: &Story, payload: String, now: Timestamp, output: Output) -> String {
    let mut lines = vec![format!("message {} to {} is {}", story.id, story.endpoint, story.state)];
    let mut put = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| format!("  {name:<16}{value}")));
    };
    put("why", story.reason.clone());
    // Once that time is past, why says what it waits for.
    put("due at", story.due_at.filter(|at| *at > now).map(|at| at.to_string()));
    // It was overcome: the last attempt had none.
    let last_error = if story.state == State::Completed { "earlier error" } else { "last error" };
    put(last_error, story.last_error.clone());
    put("dead letter", story.dlq_id.map(|id| id.to_string()));
    put("replay of", story.replay_of.map(|id| id.to_string()));
    put("replayed as", ids(&story.replayed_as));
    put("created at", Some(story.created_at.to_string()));
    put("scheduled at", story.scheduled_at.map(|at| at.to_string()));
    put("expires at", story.expires_at.map(|at| at.to_string()));
    put("finished at", story.finished_at.map(|at| at.to_string()));
    put("priority", (story.priority > 0).then(|| story.priority.to_string()));
    put("event type", story.event_type.clone());
    put("ordering key", story.ordering_key.clone());
    put("idempotency key", story.idempotency_key.clone());
    put("correlation id", story.correlation_id.map(|id| id.to_string()));
    put("options", (!story.options.is_empty()).then(|| json!(story.options).to_string()));
    for (name, value) in &story.headers {
        put("header", Some(format!("{name}: {value}")));
    }
    put("content type", Some(story.content_type.clone()));
    put("payload", Some(payload));
    put("attempts", Some(attempts(story)));
    if !story.attempts.is_empty() {
        let header = ["attempt", "started at", "took", "outcome", "response", "error"];
        lines.push(output.table(&header, story.attempts.iter().map(attempt).collect()));
    }
    lines.join("\n")
}

/// Who sees a list that is too short wants to know why.
fn attempts(story: &Story) -> String {
    let (all, logged) = (story.attempt_count, story.attempts.len());
    match logged {
        1.. if (logged as u64) < u64::from(all) => {
            format!("{all}, of which {logged} logged (setting attempt_log)")
        }
        _ => all.to_string(),
    }
}

fn ids(ids: &[MessageId]) -> Option<String> {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    (!ids.is_empty()).then(|| ids.join(", "))
}

fn attempt(record: &AttemptRecord) -> Vec<String> {
    vec![
        record.number.to_string(),
        record.started_at.to_string(),
        format!("{} ms", record.duration.as_millis()),
        record.outcome.as_str().to_owned(),
        record.response_status.map_or("-".to_owned(), |status| status.to_string()),
        record.error.clone().unwrap_or_default(),
    ]
}
