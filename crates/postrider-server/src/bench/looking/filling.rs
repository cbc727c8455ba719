//! A store as it looks after some weeks: half of all it ever saw is archived, some died, half is queued.

use jiff::{SignedDuration, Timestamp};
use postrider::{MessageId, NewMessage};
use uuid::Uuid;

use super::retiring;
use crate::bench::bed::{Bed, payload};
use crate::bench::lab::Lab;
use crate::failure::CommandError;
use crate::store_url::StoreUrl;

pub(super) const ENDPOINTS: u32 = 8;
/// Gets one message in [`SELDOM`].
pub(super) const RARE_ENDPOINT: &str = "rare";
pub(super) const COMMON_EVENT: &str = "order.created";
pub(super) const RARE_EVENT: &str = "order.lost";
const SELDOM: u32 = 50_000;
const KEYS: u32 = 5_000;
const BATCH: u32 = 1_000;

/// What is in the store, as far as questions need it.
pub(super) struct Filled {
    /// The first message that is queued; everything before it is archived or dead.
    pub(super) first_queued: MessageId,
    pub(super) last: MessageId,
}

pub(super) async fn fill(lab: &Lab, store: &StoreUrl) -> Result<Filled, CommandError> {
    let bed = Bed::open(store).await?;
    // Nothing is to be delivered meanwhile.
    for name in (0..ENDPOINTS).map(endpoint).chain([RARE_ENDPOINT.to_owned()]) {
        bed.create_paused(&name, lab.partner.url("/count")).await?;
    }
    lab.say("filling the archive");
    let last_archived = send(lab, &bed).await?;
    // Makes its month.
    bed.store.cancel(last_archived).await?;
    drop(bed);
    retiring::retire(store, last_archived).await?;
    lab.say("filling the queue");
    let bed = Bed::open(store).await?;
    let last = send(lab, &bed).await?;
    drop(bed);
    retiring::tidy(store).await?;
    Ok(Filled { first_queued: MessageId(last_archived.0 + 1), last })
}

pub(super) fn endpoint(number: u32) -> String {
    format!("busy-{number}")
}

pub(super) fn correlation(number: u32) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

/// The id of the last one.
async fn send(lab: &Lab, bed: &Bed) -> Result<MessageId, CommandError> {
    let count = lab.scale.deep_backlog;
    let mut last = MessageId(0);
    for from in (0..count).step_by(BATCH as usize) {
        let batch = (from..(from + BATCH).min(count)).map(message).collect();
        last = bed.store.send_batch(batch).await?.last().map_or(last, |sent| sent.id);
    }
    Ok(last)
}

fn message(number: u32) -> NewMessage {
    let to = if number % SELDOM == 1 { RARE_ENDPOINT.to_owned() } else { endpoint(number % ENDPOINTS) };
    let mut message = NewMessage::new(to, payload(number));
    message.priority = if number % 20 == 2 { 5 } else { 0 };
    message.correlation_id = number.is_multiple_of(5).then(|| correlation(number));
    message.ordering_key = (number % 20 == 3).then(|| format!("customer-{}", number % KEYS));
    message.scheduled_at = (number % 10 == 4).then(|| Timestamp::now() + SignedDuration::from_hours(1));
    message.event_type = match number {
        number if number % SELDOM == 6 => Some(RARE_EVENT.to_owned()),
        number if number.is_multiple_of(3) => Some(COMMON_EVENT.to_owned()),
        _ => None,
    };
    message
}
