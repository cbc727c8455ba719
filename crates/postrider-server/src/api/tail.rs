//! What happens on this node, as it happens: server-sent events. A reader that is too slow is told how much it missed;
//! it never slows the engine.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode, Uri};
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use postrider::State as MessageState;
use postrider::engine::{EngineEvent, EngineEventKind};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::answers::{Common, Crowded, Named};
use super::long::LongAnswer;
use super::page::Params;
use super::token_cache::Pass;
use super::{Api, Reply, node};
use crate::send_values;

/// Proxies close what is silent for longer.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// What happens on this node from now on, as server-sent events: `attempt`, `lost`, `circuit`, and `skipped` when
/// the reader was too slow.
#[utoipa::path(get, path = "/v1/tail", operation_id = "tail", tag = "system",
    params(
        ("endpoint" = Option<String>, Query),
        ("state" = Option<MessageState>, Query, description = "What the message became"),
        ("event_type" = Option<String>, Query),
    ),
    responses((status = 200, description = "Events until the node stops", body = String, content_type = "text/event-stream"), Common, Named, Crowded))]
pub(super) async fn tail(State(api): State<Arc<Api>>, pass: Option<Extension<Pass>>, uri: Uri) -> Reply {
    let mut params = Params::parse(&uri, &["endpoint", "state", "event_type"])?;
    let filter = TailFilter {
        endpoint: params.text("endpoint"),
        state: params.read("state", send_values::state)?,
        event_type: params.text("event_type"),
    };
    if let Some(name) = &filter.endpoint {
        api.operate.endpoint(name).await?;
    }
    let events = api.node.events().ok_or_else(node::stopping)?;
    let place = api.long_answers.begin(pass.map(|Extension(pass)| pass))?;
    let tail = Tail { events, filter, place, told_at: Instant::now() };
    // A reader of this line misses nothing from now on.
    let hello = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b": listening\n\n"))]);
    let happenings = stream::unfold(tail, async |mut tail| Some((Ok(tail.next().await?), tail)));
    let mut response = Response::new(Body::from_stream(futures_util::StreamExt::chain(hello, happenings)));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // It ends with its answer, so that it does not keep a place that a request could have.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(response)
}

struct TailFilter {
    endpoint: Option<String>,
    state: Option<MessageState>,
    event_type: Option<String>,
}

struct Tail {
    events: Receiver<EngineEvent>,
    filter: TailFilter,
    place: LongAnswer,
    told_at: Instant,
}

impl Tail {
    /// None when the node stops, or its reader would not be let in any more.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let told = tokio::select! {
                biased;
                () = self.place.over() => return None,
                told = tokio::time::timeout_at(self.told_at + SILENCE_MAX, self.events.recv()) => told,
            };
            let line = match told {
                Ok(Ok(event)) => self.filter.lets_through(&event).then(|| shown(&event)),
                Ok(Err(RecvError::Lagged(skipped))) => {
                    Some(written("skipped", &json!({ "skipped": skipped })))
                }
                Ok(Err(RecvError::Closed)) => return None,
                Err(_elapsed) => Some(Bytes::from_static(b": nothing\n\n")),
            };
            if line.is_some() {
                self.told_at = Instant::now();
                return line;
            }
        }
    }
}

impl TailFilter {
    fn lets_through(&self, event: &EngineEvent) -> bool {
        let (state, event_type) = match &event.kind {
            EngineEventKind::Attempted { state, event_type, .. } => (Some(*state), event_type.as_deref()),
            EngineEventKind::Lost { state, .. } => (Some(*state), None),
            EngineEventKind::Circuit { .. } => (None, None),
        };
        self.endpoint.as_deref().is_none_or(|name| name == &*event.endpoint_name)
            && (self.state.is_none() || self.state == state)
            && (self.event_type.is_none() || self.event_type.as_deref() == event_type)
    }
}

fn shown(event: &EngineEvent) -> Bytes {
    let (kind, detail) = match &event.kind {
        EngineEventKind::Attempted {
            message,
            attempt,
            event_type,
            state,
            class,
            error,
            response_status,
            duration,
            age,
        } => (
            "attempt",
            json!({
                "message_id": message, "attempt": attempt, "state": state, "event_type": event_type, "class": class,
                "error": error, "response_status": response_status, "duration_seconds": duration.as_secs_f64(),
                "age_seconds": age.as_secs_f64(),
            }),
        ),
        EngineEventKind::Lost { message, state } => {
            ("lost", json!({ "message_id": message, "state": state }))
        }
        EngineEventKind::Circuit { from, to } => {
            ("circuit", json!({ "from": from.as_str(), "to": to.as_str() }))
        }
    };
    let mut data = json!({ "at": event.at, "endpoint": event.endpoint_name });
    if let (Value::Object(data), Value::Object(detail)) = (&mut data, detail) {
        data.extend(detail);
    }
    written(kind, &data)
}

/// Written JSON has no line breaks.
fn written(kind: &str, data: &Value) -> Bytes {
    format!("event: {kind}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use postrider::MessageId;
    use postrider::endpoint::EndpointId;
    use tokio::sync::broadcast;
    use tokio_util::sync::CancellationToken;

    use super::super::long::LongAnswers;
    use super::*;

    fn tail_of(events: Receiver<EngineEvent>, stop: CancellationToken) -> Tail {
        let filter = TailFilter { endpoint: None, state: None, event_type: None };
        let place = LongAnswers::new(None, stop).begin(None).unwrap_or_else(|_| panic!("a place"));
        Tail { events, filter, place, told_at: Instant::now() }
    }

    fn lost(message: i64) -> EngineEvent {
        EngineEvent {
            at: jiff::Timestamp::UNIX_EPOCH,
            endpoint: EndpointId(1),
            endpoint_name: "shop".into(),
            kind: EngineEventKind::Lost { message: MessageId(message), state: MessageState::Pending },
        }
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_missed() {
        let (sender, events) = broadcast::channel(2);
        let mut tail = tail_of(events, CancellationToken::new());
        for message in 1..=5 {
            sender.send(lost(message)).expect("somebody listens");
        }
        let mut next =
            async || String::from_utf8(tail.next().await.expect("an event").to_vec()).expect("text");
        assert_eq!(next().await, "event: skipped\ndata: {\"skipped\":3}\n\n");
        assert!(next().await.contains("\"message_id\":4"));
        assert!(next().await.contains("\"message_id\":5"));
    }

    #[tokio::test]
    async fn a_tail_ends_with_its_node() {
        let (_sender, events) = broadcast::channel::<EngineEvent>(2);
        let stop = CancellationToken::new();
        let mut tail = tail_of(events, stop.clone());
        stop.cancel();
        assert_eq!(tail.next().await, None);
    }
}
