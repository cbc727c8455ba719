//! One wide log line for what became of each message. Lines are written by a thread of their own, so that a slow log
//! never slows delivery; a line that nobody wants is never made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::trace::TraceId;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::message::{Message, MessageId, State};
use crate::outcome::OUTCOME;
use crate::store::{Expired, Unreadable};
use crate::trace;
use crate::verdict::{Class, Verdict};

/// Lines that wait to be written; what comes on top is counted and left out.
const LINES_MAX: usize = 4096;
/// How long a clean stop waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Never payload, headers or keys: those belong to whoever sent the message.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) message: MessageId,
    pub(super) endpoint: Arc<str>,
    pub(super) state: State,
    pub(super) attempt: u32,
    pub(super) class: Option<Class>,
    pub(super) error: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) duration: Option<Duration>,
    pub(super) age: Option<Duration>,
    pub(super) about: About,
}

impl Line {
    /// Of one that the store expired.
    pub(super) fn expired(expired: Expired, endpoint: Arc<str>) -> Self {
        Self::of_store(expired.id, endpoint, State::Expired, expired.attempts)
    }

    /// Of one that the store set aside.
    pub(super) fn unreadable(unreadable: Unreadable, endpoint: Arc<str>) -> Self {
        Self {
            class: Some(Class::Permanent),
            error: Some(unreadable.error),
            ..Self::of_store(unreadable.id, endpoint, State::Dead, unreadable.attempts)
        }
    }

    fn of_store(message: MessageId, endpoint: Arc<str>, state: State, attempt: u32) -> Self {
        Self {
            message,
            endpoint,
            state,
            attempt,
            class: None,
            error: None,
            status: None,
            duration: None,
            age: None,
            about: About::default(),
        }
    }
}

/// What a line tells of the message itself.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    created_at: Option<Timestamp>,
    correlation_id: Option<Uuid>,
    pub(super) event_type: Option<String>,
    trace_id: Option<TraceId>,
}

impl About {
    pub(super) fn of(message: &Message) -> Self {
        Self {
            created_at: Some(message.created_at),
            correlation_id: message.correlation_id,
            event_type: message.event_type.clone(),
            trace_id: trace::context_of(&message.headers).map(|context| context.trace_id()),
        }
    }
}

/// Does anybody read the line that this verdict makes?
pub(super) fn is_wanted(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Complete | Verdict::Expire => is_enabled(State::Completed),
        Verdict::Dead { .. } => is_enabled(State::Dead),
        Verdict::Retry { .. } | Verdict::Spare { .. } => is_enabled(State::Pending),
    }
}

/// Asks an atomic, most of the time.
pub(super) fn is_enabled(state: State) -> bool {
    match state {
        State::Dead => tracing::enabled!(target: OUTCOME, tracing::Level::WARN),
        State::Completed | State::Expired | State::Cancelled => {
            tracing::enabled!(target: OUTCOME, tracing::Level::INFO)
        }
        State::Pending | State::Processing => tracing::enabled!(target: OUTCOME, tracing::Level::DEBUG),
    }
}

#[derive(Clone)]
pub(super) struct Journal {
    lines: SyncSender<Line>,
    missed: Arc<AtomicU64>,
}

/// Tells when the last line is written.
pub(super) struct Written(oneshot::Receiver<()>);

impl Journal {
    pub(super) fn open() -> (Self, Written) {
        let (lines, received) = sync_channel(LINES_MAX);
        let (last, written) = oneshot::channel();
        let missed = Arc::new(AtomicU64::new(0));
        let counted = missed.clone();
        let thread = std::thread::Builder::new().name("postrider-journal".to_owned());
        if let Err(error) = thread.spawn(move || write_all(&received, &counted, last)) {
            tracing::warn!(%error, "outcomes of messages are not logged");
        }
        (Self { lines, missed }, Written(written))
    }

    pub(super) fn put(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.missed.fetch_add(1, Relaxed);
        }
    }
}

impl Written {
    /// Once nobody can put more.
    pub(super) async fn wait(self) {
        let _ = tokio::time::timeout(LAST_LINES, self.0).await;
    }
}

fn write_all(lines: &Receiver<Line>, missed: &AtomicU64, last: oneshot::Sender<()>) {
    for line in lines {
        write(&line);
        let missed = missed.swap(0, Relaxed);
        if missed > 0 {
            tracing::warn!(target: OUTCOME, missed, "The log is slower than delivery: outcomes are missing in it");
        }
    }
    drop(last);
}

fn write(line: &Line) {
    let Line { message, endpoint, state, attempt, error, status, duration, age, about, .. } = line;
    let (message_id, endpoint, state) = (message.0, &**endpoint, state.as_str());
    let class = line.class.map(Class::as_str);
    let duration_seconds = duration.map(|duration| duration.as_secs_f64());
    let age_seconds = age.map(|age| age.as_secs_f64());
    let created_at = about.created_at.map(tracing::field::display);
    let correlation_id = about.correlation_id.map(tracing::field::display);
    let trace_id = about.trace_id.map(tracing::field::display);
    let event_type = about.event_type.as_deref();
    // The level of an event has to be known when it is compiled.
    macro_rules! write_at {
        ($level:ident, $sentence:literal) => {
            tracing::$level!(
                target: OUTCOME, message_id, endpoint, state, attempt, class, error, status, duration_seconds,
                age_seconds, created_at, correlation_id, event_type, trace_id, $sentence
            )
        };
    }
    match line.state {
        State::Completed => write_at!(info, "A message was delivered"),
        State::Dead => write_at!(warn, "A message is dead; it is in the DLQ"),
        State::Expired => write_at!(info, "A message expired"),
        State::Cancelled => write_at!(info, "A message was cancelled"),
        State::Pending | State::Processing => write_at!(debug, "An attempt failed; it is tried again"),
    }
}
