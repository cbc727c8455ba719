//! `postrider tail`: what happens on a node, as it happens.

use std::time::Duration;

use clap::Args;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use postrider::StoreError;
use serde_json::{Map, Value, json};

use super::event_stream::{EventStream, ServerEvent, TooLong};
use crate::failure::CommandError;
use crate::output::Output;
use crate::remote::Remote;

pub(super) const HELP: &str = "\
One line an event on a terminal, one JSON object a line elsewhere. Ctrl-C ends it. When the node goes away, it waits
for it to come back; what happens in between is not told. Without --url it asks http://127.0.0.1:7171.

Examples:
  postrider tail --endpoint shop
  postrider tail --state dead --url https://postrider.example.org | jq .error";

/// A node says something at least every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// A node that restarts is back soon, and asking costs little.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct TailArgs {
    /// Only of this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,

    /// Only what became pending (to be tried again), completed, expired or dead
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// Only of this event type
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
}

pub(super) async fn run(arguments: TailArgs, remote: Remote, output: Output) -> Result<(), CommandError> {
    tokio::select! {
        ended = follow(arguments, &remote, output) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Why a connection to the node is not read any more.
enum TailEnd {
    /// The reader of our output is gone.
    Unread,
    /// It may come back.
    NodeGone,
}

async fn follow(arguments: TailArgs, remote: &Remote, output: Output) -> Result<(), CommandError> {
    let given = [
        ("endpoint", &arguments.endpoint),
        ("state", &arguments.state),
        ("event_type", &arguments.event_type),
    ];
    let query: Vec<(&str, &str)> =
        given.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    let mut body = remote.get("/v1/tail", &query).await?;
    say(output, &format!("listening to {remote}"));
    loop {
        match read(body, output).await? {
            TailEnd::Unread => return Ok(()),
            TailEnd::NodeGone => say(output, &format!("{remote} went away; waiting for it")),
        }
        body = again(remote, &query).await?;
        say(output, &format!("listening to {remote} again"));
    }
}

/// Only what waiting does not change is a failure.
async fn again(remote: &Remote, query: &[(&str, &str)]) -> Result<Incoming, CommandError> {
    loop {
        match remote.get("/v1/tail", query).await {
            Err(StoreError::Unreachable(_) | StoreError::Unavailable(_)) => {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            answer => return Ok(answer?),
        }
    }
}

/// Beside the events, on standard error.
fn say(output: Output, text: &str) {
    match output.json {
        true => eprintln!("{}", json!({ "message": text })),
        false => eprintln!("{text}"),
    }
}

async fn read(mut body: Incoming, output: Output) -> Result<TailEnd, CommandError> {
    let mut stream = EventStream::default();
    loop {
        let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE_MAX, body.frame()).await else {
            return Ok(TailEnd::NodeGone);
        };
        let Ok(bytes) = frame.into_data() else { continue };
        let events = stream
            .take(&bytes)
            .map_err(|TooLong| CommandError::failed("what comes back is not the tail of a node"))?;
        for event in events {
            let line = if output.is_for_people() { line(&event) } else { json_line(&event) };
            if !output.try_line(&line)? {
                return Ok(TailEnd::Unread);
            }
        }
    }
}

fn fields(event: &ServerEvent) -> Map<String, Value> {
    serde_json::from_str(&event.data).unwrap_or_default()
}

fn json_line(event: &ServerEvent) -> String {
    let mut line = Map::new();
    line.insert("event".to_owned(), Value::from(event.kind.as_str()));
    line.extend(fields(event));
    Value::Object(line).to_string()
}

fn line(event: &ServerEvent) -> String {
    let fields = fields(event);
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let told = match event.kind.as_str() {
        "attempt" => {
            let took = fields.get("duration_seconds").and_then(Value::as_f64).unwrap_or_default() * 1000.0;
            let became = match text("state").as_str() {
                "pending" => "failed, retrying".to_owned(),
                state => state.to_owned(),
            };
            let parts = [became, format!("{took:.0} ms"), text("response_status"), text("error")];
            let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            format!("message {} attempt {}: {}", text("message_id"), text("attempt"), parts.join(", "))
        }
        "lost" => format!("message {} was lost with its node; now {}", text("message_id"), text("state")),
        "circuit" => format!("circuit {} -> {}", text("from"), text("to")),
        "skipped" => return format!("{} events came too fast and are not shown", text("skipped")),
        kind => format!("{kind} {}", event.data),
    };
    let at = text("at")
        .parse()
        .map_or_else(|_| text("at"), |at: jiff::Timestamp| at.strftime("%H:%M:%S%.3f").to_string());
    format!("{at}  {:<16} {told}", text("endpoint"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, data: Value) -> ServerEvent {
        ServerEvent { kind: kind.to_owned(), data: data.to_string() }
    }

    #[test]
    fn a_person_reads_one_line_an_event() {
        let at = "2026-01-15T12:00:01.5Z";
        let attempt = |state: &str, status: Option<u16>, error: Option<&str>| {
            json!({ "at": at, "endpoint": "shop", "message_id": 7, "attempt": 2, "state": state, "error": error,
                "response_status": status, "duration_seconds": 0.0123 })
        };
        let lines = [
            line(&event("attempt", attempt("completed", Some(200), None))),
            line(&event("attempt", attempt("pending", Some(503), Some("[RETRYABLE] busy")))),
            line(&event("lost", json!({ "at": at, "endpoint": "shop", "message_id": 7, "state": "dead" }))),
            line(&event("circuit", json!({ "at": at, "endpoint": "shop", "from": "closed", "to": "open" }))),
            line(&event("skipped", json!({ "skipped": 3 }))),
        ];
        let expected = "\
12:00:01.500  shop             message 7 attempt 2: completed, 12 ms, 200
12:00:01.500  shop             message 7 attempt 2: failed, retrying, 12 ms, 503, [RETRYABLE] busy
12:00:01.500  shop             message 7 was lost with its node; now dead
12:00:01.500  shop             circuit closed -> open
3 events came too fast and are not shown";
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn a_program_reads_what_the_node_said_with_its_kind() {
        let told = event("circuit", json!({ "endpoint": "shop", "from": "closed", "to": "open" }));
        assert_eq!(json_line(&told), r#"{"event":"circuit","endpoint":"shop","from":"closed","to":"open"}"#);
    }
}
