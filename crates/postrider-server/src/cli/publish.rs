//! `postrider publish`: one event, to everybody who wants it.

use jiff::Timestamp;
use postrider::{NewEvent, NewMessage};
use serde_json::json;

use super::send::{OptionArgs, payload};
use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;

#[derive(clap::Args)]
pub(crate) struct PublishArgs {
    /// Name of the event type
    event_type: String,

    /// The event itself, which is JSON, @FILE to read it from a file, or - for stdin (also when it is left out)
    payload: Option<String>,

    #[command(flatten)]
    options: OptionArgs,
}

pub(super) async fn run(
    arguments: PublishArgs,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let event_type = arguments.event_type.clone();
    let messages = place.open_tool().await?.publish(event(arguments, Timestamp::now())?).await?;
    output.document(
        || json!({ "messages": messages }).to_string(),
        || match messages {
            0 => format!("{event_type} became no message: no subscription matches, or the same key was published before"),
            1 => format!("{event_type} became 1 message"),
            _ => format!("{event_type} became {messages} messages"),
        },
    )
}

fn event(arguments: PublishArgs, now: Timestamp) -> Result<NewEvent, CommandError> {
    let mut message = NewMessage::new("", payload(arguments.payload.as_deref())?);
    arguments.options.apply(&mut message, now)?;
    Ok(NewEvent::of_message(arguments.event_type, message))
}
