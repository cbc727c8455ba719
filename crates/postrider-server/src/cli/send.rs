//! `postrider send`: one message.

use std::io::{IsTerminal, Read};

use bytes::Bytes;
use jiff::Timestamp;
use postrider::message::JSON;
use postrider::{Invalid, NewMessage};
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;
use crate::{send_values, view};

#[derive(clap::Args)]
pub(crate) struct SendArgs {
    /// Name of the endpoint it goes to
    endpoint: String,

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

pub(super) async fn run(arguments: SendArgs, place: &Place, output: Output) -> Result<(), Failure> {
    let message = message(arguments, Timestamp::now())?;
    let endpoint = message.endpoint.clone();
    let sent = place.open_tool().await?.send(message).await?;
    output.document(
        || json!({ "id": sent.id, "duplicate": sent.duplicate }).to_string(),
        || {
            if sent.duplicate {
                format!("message {} has this idempotency key already; nothing was sent", sent.id)
            } else {
                format!("message {} is queued for {endpoint}", sent.id)
            }
        },
    );
    Ok(())
}

fn message(arguments: SendArgs, now: Timestamp) -> Result<NewMessage, Failure> {
    let mut message = NewMessage::new(arguments.endpoint, payload(arguments.payload.as_deref())?);
    message.content_type = arguments.content_type;
    if view::is_json(&message.content_type)
        && let Err(error) = serde_json::from_slice::<&serde_json::value::RawValue>(&message.payload)
    {
        return Err(Failure::from(Invalid::new("payload", format!("is not JSON: {error}")))
            .hint("quote it for the shell, or say what it is with --content-type text/plain"));
    }
    message.event_type = arguments.event_type;
    arguments.options.apply(&mut message, now)?;
    Ok(message)
}

impl OptionArgs {
    pub(super) fn apply(self, message: &mut NewMessage, now: Timestamp) -> Result<(), Failure> {
        for header in self.headers {
            let (name, value) = header
                .split_once('=')
                .ok_or_else(|| Failure::usage(format!("--header {header}: must be written as NAME=VALUE")))?;
            message.headers.insert(name.to_owned(), value.to_owned());
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

pub(super) fn payload(given: Option<&str>) -> Result<Bytes, Failure> {
    let unreadable = |what: &str, error| Failure::failed(format!("cannot read {what}: {error}"));
    match given {
        None if std::io::stdin().is_terminal() => {
            Err(Failure::usage("there is no payload: give it, @FILE, or - to type it"))
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
