//! What the API and `--json` show where it is not the store's record itself: secrets are hidden, payloads are written as
//! JSON.

use jiff::Timestamp;
use postrider::Endpoint;
use postrider::store::{DeadLetter, Story};
use serde_json::{Value, json};

pub(crate) use done::{Published, Redriven, Released, Replayed, SentBatch, Swept};
pub(crate) use endpoint::EndpointView;
pub(crate) use message::{DeadLetterView, MessageView};
pub(crate) use page::Page;
pub(crate) use payload::payload_text;
pub(crate) use problem::ProblemView;
pub(crate) use setting::setting;

mod done;
mod endpoint;
mod message;
mod page;
mod payload;
mod problem;
pub(crate) mod schemas;
mod setting;

/// Never shows a secret.
pub(crate) fn endpoint(endpoint: &Endpoint) -> Value {
    json!(EndpointView::of(endpoint))
}

pub(crate) fn story(story: &Story) -> String {
    serde_json::to_string(&MessageView::from(story.clone())).expect("a story becomes JSON")
}

pub(crate) fn dead_letter(letter: &DeadLetter) -> String {
    serde_json::to_string(&DeadLetterView::from(letter.clone())).expect("a dead letter becomes JSON")
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
