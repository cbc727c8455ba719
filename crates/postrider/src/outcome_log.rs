//! One wide log line for each message outcome; docs/operations.md lists the fields. A thread writes the lines, so that a
//! slow log never slows delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::trace::TraceId;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::message::{Message, MessageId, State};
use crate::trace;
use crate::verdict::Class;

/// The target of these lines, for log filters.
pub const OUTCOME: &str = "postrider::outcome";

/// Lines that wait to be written. Further lines are counted and dropped.
const LINES_MAX: usize = 4096;
/// How long a clean stop waits for the last lines.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Has no payload, headers or keys: those are the sender's data.
#[derive(Clone, Debug)]
pub(crate) struct OutcomeLine {
    pub(crate) message: MessageId,
    pub(crate) endpoint: Arc<str>,
    pub(crate) state: State,
    pub(crate) attempt: u32,
    pub(crate) class: Option<Class>,
    pub(crate) error: Option<String>,
    pub(crate) response_status: Option<u16>,
    pub(crate) duration: Option<Duration>,
    pub(crate) age: Option<Duration>,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) correlation_id: Option<Uuid>,
    pub(crate) event_type: Option<String>,
    pub(crate) trace_id: Option<TraceId>,
}

impl OutcomeLine {
    /// For a message of which only the id is known.
    pub(crate) fn new(message: MessageId, endpoint: Arc<str>, state: State, attempt: u32) -> Self {
        Self {
            message,
            endpoint,
            state,
            attempt,
            class: None,
            error: None,
            response_status: None,
            duration: None,
            age: None,
            created_at: None,
            correlation_id: None,
            event_type: None,
            trace_id: None,
        }
    }

    pub(crate) fn of_message(
        message: &Message,
        endpoint: Arc<str>,
        state: State,
        attempt: u32,
        now: Timestamp,
    ) -> Self {
        Self {
            age: Some(message.age(now)),
            created_at: Some(message.created_at),
            correlation_id: message.correlation_id,
            event_type: message.event_type.clone(),
            trace_id: trace::context_of(&message.headers).map(|context| context.trace_id()),
            ..Self::new(message.id, endpoint, state, attempt)
        }
    }
}

/// Is the log level of this state's lines enabled? Cheap: most of the time one atomic read.
pub(crate) fn is_enabled(state: State) -> bool {
    match state {
        State::Dead => tracing::enabled!(target: OUTCOME, tracing::Level::WARN),
        State::Completed | State::Expired | State::Cancelled => {
            tracing::enabled!(target: OUTCOME, tracing::Level::INFO)
        }
        State::Pending | State::Processing => tracing::enabled!(target: OUTCOME, tracing::Level::DEBUG),
    }
}

/// For stores: a person cancelled the message through this process.
pub(crate) fn log_cancelled(message: MessageId) {
    tracing::info!(target: OUTCOME, message_id = message.0, state = State::Cancelled.as_str(), "A message was cancelled");
}

#[derive(Clone)]
pub(crate) struct OutcomeLog {
    lines: SyncSender<OutcomeLine>,
    dropped: Arc<AtomicU64>,
}

/// Resolves when the last line is written.
pub(crate) struct OutcomeLogEnd(oneshot::Receiver<()>);

impl OutcomeLog {
    pub(crate) fn open() -> (Self, OutcomeLogEnd) {
        let (lines, received) = sync_channel(LINES_MAX);
        let (end_sender, end) = oneshot::channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        let thread = std::thread::Builder::new().name("outcome-log".to_owned());
        if let Err(error) = thread.spawn(move || write_all(&received, &counted, end_sender)) {
            tracing::warn!(%error, "could not start the log thread; message outcomes are not logged");
        }
        (Self { lines, dropped }, OutcomeLogEnd(end))
    }

    pub(crate) fn put(&self, line: OutcomeLine) {
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl OutcomeLogEnd {
    /// To be called after the last [`OutcomeLog`] was dropped.
    pub(crate) async fn wait(self) {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, self.0).await;
    }
}

fn write_all(lines: &Receiver<OutcomeLine>, dropped: &AtomicU64, end: oneshot::Sender<()>) {
    for line in lines {
        write(&line);
        let missed = dropped.swap(0, Relaxed);
        if missed > 0 {
            tracing::warn!(target: OUTCOME, missed, "The log is slower than delivery: outcomes are missing in it");
        }
    }
    drop(end);
}

fn write(line: &OutcomeLine) {
    let OutcomeLine { message, endpoint, state, attempt, error, response_status, duration, age, .. } = line;
    let (message_id, endpoint, state) = (message.0, &**endpoint, state.as_str());
    let class = line.class.map(Class::as_str);
    let duration_seconds = duration.map(|duration| duration.as_secs_f64());
    let age_seconds = age.map(|age| age.as_secs_f64());
    let created_at = line.created_at.map(tracing::field::display);
    let correlation_id = line.correlation_id.map(tracing::field::display);
    let trace_id = line.trace_id.map(tracing::field::display);
    let event_type = line.event_type.as_deref();
    // A macro, because tracing needs the level at compile time.
    macro_rules! write_at {
        ($level:ident, $sentence:literal) => {
            tracing::$level!(
                target: OUTCOME, message_id, endpoint, state, attempt, class, error, response_status, duration_seconds,
                age_seconds, created_at, correlation_id, event_type, trace_id, $sentence
            )
        };
    }
    match line.state {
        State::Completed => write_at!(info, "A message was delivered"),
        State::Dead => write_at!(warn, "A message is dead; it is in the DLQ"),
        State::Expired => write_at!(info, "A message expired"),
        State::Cancelled => write_at!(info, "A message was cancelled"),
        State::Pending | State::Processing => write_at!(debug, "An attempt failed; retrying"),
    }
}
