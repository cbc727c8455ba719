//! What people see as JSON: one shape for the API, its description and `--json`.

use jiff::Timestamp;
use postrider::Endpoint;
use postrider::store::{DeadLetter, Story};
use serde_json::{Value, json};

pub(crate) use content::{ResponseBody, payload_text};
pub(crate) use dead_letter::{DeadLetterView, DlqSummaryView, ListedDeadLetterView};
pub(crate) use done::{Published, Redriven, Released, Replayed, Swept};
pub(crate) use endpoint::{EndpointView, HealthView};
pub(crate) use event::{EventTypeView, SubscriptionView};
pub(crate) use message::{ListedMessageView, MessageView};
pub(crate) use problem::ProblemView;
pub(crate) use replay::{ReplayPreviewView, ReplayView};
pub(crate) use setting::setting;
pub(crate) use system::{EventView, FigureView, IssuedTokenView, NodeView, StatusView, TokenView};

mod content;
mod done;
mod dead_letter;
mod endpoint;
mod event;
mod message;
mod problem;
mod replay;
pub(crate) mod schemas;
mod setting;
mod system;

/// Never shows a secret.
pub(crate) fn endpoint(endpoint: &Endpoint) -> Value {
    json!(EndpointView::of(endpoint))
}

/// A message's story. The payload is shown as JSON when it is JSON, byte for byte, else in base64.
pub(crate) fn story(story: &Story) -> String {
    serde_json::to_string(&MessageView::of(story)).expect("a story becomes JSON")
}

/// A dead letter in a list.
pub(crate) fn listed_dead_letter(letter: &DeadLetter) -> String {
    serde_json::to_string(&ListedDeadLetterView::of(letter)).expect("a dead letter becomes JSON")
}

/// A dead letter with what it held.
pub(crate) fn dead_letter(letter: &DeadLetter) -> String {
    serde_json::to_string(&DeadLetterView::of(letter)).expect("a dead letter becomes JSON")
}

/// How long ago, in one short word.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
