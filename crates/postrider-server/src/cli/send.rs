//! `postrider send`: one message; `--batch` sends many.

use std::io::{IsTerminal, Read};

use bytes::Bytes;
use jiff::Timestamp;
use postrider::message::{JSON, is_json};
use postrider::{Invalid, Json, NewMessage};
use serde::de::IgnoredAny;
use serde_json::json;

use super::batch;
use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::send_values;

pub(super) const HELP: &str = "\
Each line of a batch is a JSON document as in POST /v1/messages:batch:
  {\"endpoint\": \"shop\", \"payload\": {\"order\": 1}, \"options\": {\"ordering_key\": \"customer-7\"}}
It is read as it comes and sent in transactions of up to 1000 lines. At a line that is refused it stops: all lines
before it are sent, and --skip continues after them.

Examples:
  postrider send shop '{\"order\": 1}'
  postrider send --batch orders.ndjson
  produce-orders | postrider send --batch - --json";

/// What is said of one message; each line of a batch says it itself.
const OF_ONE: [&str; 12] = [
    "endpoint",
    "payload",
    "content_type",
    "event_type",
    "headers",
    "priority",
    "scheduled_at",
    "expires_at",
    "idempotency_key",
    "correlation_id",
    "ordering_key",
    "options",
];

#[derive(clap::Args)]
pub(crate) struct SendArgs {
    /// Name of the endpoint it goes to
    #[arg(required_unless_present = "batch")]
    endpoint: Option<String>,

    /// The payload itself, @FILE to read it from a file, or - for stdin (also when it is left out)
    payload: Option<String>,

    /// What the payload is
    #[arg(long, value_name = "TYPE", default_value = JSON)]
    content_type: String,

    #[command(flatten)]
    options: OptionArgs,

    /// What kind of event it is; goes along to the receiver
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,

    /// Send many instead: a file with one message a line, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_ONE)]
    batch: Option<String>,

    /// Skip this many lines of the batch that were sent already
    #[arg(long, value_name = "N", requires = "batch", conflicts_with = "endpoint", default_value_t = 0)]
    skip: u64,
}

/// What can be said of every message that is made.
#[derive(clap::Args)]
pub(super) struct OptionArgs {
    /// Header the receiver gets with it; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,

    /// 0 to 10, higher goes first
    #[arg(long, value_name = "N", default_value = "0")]
    priority: String,

    /// No attempt before this time: 2030-01-31T08:00:00Z, or +5m from now
    #[arg(long, value_name = "TIME")]
    scheduled_at: Option<String>,

    /// No attempt after this time: 2030-01-31T08:00:00Z, or +5m from now
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,

    /// Sending the same key and payload again gives the message that is already queued
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// UUID that goes along to the receiver
    #[arg(long, value_name = "UUID")]
    correlation_id: Option<String>,

    /// Messages of one key are delivered one after the other, in the order they were sent
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,

    /// Overrides for this message as a JSON object, such as {"max_attempts":3}
    #[arg(long, value_name = "JSON")]
    options: Option<String>,
}

pub(super) async fn run(
    arguments: SendArgs,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let operate = place.open_tool().await?;
    if let Some(from) = &arguments.batch {
        return batch::run(from, arguments.skip, operate, output).await;
    }
    let message = message(arguments, Timestamp::now())?;
    let endpoint = message.endpoint.clone();
    let sent = operate.send(message).await?;
    output.document(
        || json!({ "id": sent.id, "duplicate": sent.duplicate }).to_string(),
        || {
            if sent.duplicate {
                format!("message {} has this idempotency key already; nothing was sent", sent.id)
            } else {
                format!("message {} is queued for {endpoint}", sent.id)
            }
        },
    )
}

fn message(arguments: SendArgs, now: Timestamp) -> Result<NewMessage, CommandError> {
    let endpoint = arguments.endpoint.expect("required without --batch");
    let mut message = NewMessage::new(endpoint, payload(arguments.payload.as_deref())?);
    message.content_type = arguments.content_type;
    if is_json(&message.content_type)
        && let Err(rule) = Json::check(&message.payload)
    {
        return Err(not_json(&message.payload, rule));
    }
    message.event_type = arguments.event_type;
    arguments.options.apply(&mut message, now)?;
    Ok(message)
}

fn not_json(payload: &[u8], rule: String) -> CommandError {
    let refused = |rule: String| CommandError::from(Invalid::new("payload", rule));
    if payload.is_empty() {
        return refused("is empty, which is not JSON".to_owned()).hint(
            "give it behind the endpoint, or say with --content-type text/plain that nothing is meant",
        );
    }
    let failure = refused(rule);
    if str::from_utf8(payload).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok()) {
        return failure; // It is JSON, and too deep.
    }
    let documents = serde_json::Deserializer::from_slice(payload).into_iter::<IgnoredAny>();
    match documents.take(2).filter(Result::is_ok).count() {
        2 => {
            failure.hint("it is several documents: --batch sends many messages, see `postrider send --help`")
        }
        _ => failure.hint("quote it for the shell, or say what it is with --content-type text/plain"),
    }
}

impl OptionArgs {
    pub(super) fn apply(self, message: &mut NewMessage, now: Timestamp) -> Result<(), CommandError> {
        for header in self.headers {
            let (name, value) = header.split_once('=').ok_or_else(|| {
                CommandError::usage(format!("--header {header}: must be written as NAME=VALUE"))
            })?;
            if message.headers.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(CommandError::usage(format!("--header {name} is given twice")));
            }
        }
        let time = |field: &str, text: Option<String>| {
            text.map(|text| send_values::timestamp_or_delay(field, &text, now)).transpose()
        };
        message.priority = send_values::priority("priority", &self.priority)?;
        message.scheduled_at = time("scheduled_at", self.scheduled_at)?;
        message.expires_at = time("expires_at", self.expires_at)?;
        message.idempotency_key = self.idempotency_key;
        message.correlation_id = self
            .correlation_id
            .map(|text| send_values::correlation_id("correlation_id", &text))
            .transpose()?;
        message.ordering_key = self.ordering_key;
        if let Some(options) = self.options {
            message.options = send_values::options("options", &options)?;
        }
        Ok(())
    }
}

pub(super) fn payload(given: Option<&str>) -> Result<Bytes, CommandError> {
    let unreadable = |what: &str, error| CommandError::failed(format!("cannot read {what}: {error}"));
    match given {
        None if std::io::stdin().is_terminal() => {
            Err(CommandError::usage("there is no payload: give it, @FILE, or - to type it"))
        }
        None | Some("-") => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(|error| unreadable("stdin", error))?;
            Ok(bytes.into())
        }
        Some(text) => match text.strip_prefix('@') {
            Some(path) => Ok(std::fs::read(path).map_err(|error| unreadable(path, error))?.into()),
            None => Ok(Bytes::copy_from_slice(text.as_bytes())),
        },
    }
}
