//! Publish: check the event, find its subscriptions, and send their messages as one batch. Used by the writer and in
//! callers' transactions.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;

use super::job::{CommitMode, JobOrder};
use super::subscriptions::{self, Fitting};
use super::writer::Write;
use super::{SqliteStore, bulk, event_types, figures, send};
use crate::endpoint::{DisabledBy, Endpoint, EndpointId};
use crate::error::{Invalid, StoreError};
use crate::event::{
    EventType, NewEvent, NewEventType, NewSubscription, Subscribed, Subscription, key_of_subscription,
    longest_key, within,
};
use crate::json::Json;
use crate::message::NewMessage;
use crate::pubsub;
use crate::store::{PubSub, Result};

#[async_trait]
impl PubSub for SqliteStore {
    async fn create_event_type(&self, new: NewEventType) -> Result<EventType> {
        self.write(CommitMode::Durable, move |write| event_types::create(write, &new)).await
    }

    async fn drop_event_type(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(CommitMode::Durable, move |write| event_types::drop(write, &name)).await
    }

    async fn event_type(&self, name: &str) -> Result<EventType> {
        let name = name.to_owned();
        self.read(move |conn| event_types::by_name(conn, &name)).await
    }

    async fn event_types(&self, after: Option<&str>, limit: usize) -> Result<Vec<EventType>> {
        let after = after.map(str::to_owned);
        self.read(move |conn| event_types::list(conn, after.as_deref(), limit)).await
    }

    async fn subscribe(&self, new: NewSubscription) -> Result<Subscribed> {
        self.write(CommitMode::Durable, move |write| subscriptions::create(write, &new)).await
    }

    async fn unsubscribe(&self, id: i64) -> Result<()> {
        self.write(CommitMode::Durable, move |write| subscriptions::drop(write, id)).await
    }

    async fn subscription(&self, id: i64) -> Result<Subscription> {
        self.read(move |conn| subscriptions::by_id(conn, id)).await
    }

    async fn subscriptions(&self, after: Option<i64>, limit: usize) -> Result<Vec<Subscription>> {
        self.read(move |conn| subscriptions::list(conn, after, limit)).await
    }

    async fn set_subscription_enabled(&self, id: i64, enabled: bool) -> Result<()> {
        self.write(CommitMode::Durable, move |write| subscriptions::set_enabled(write, id, enabled)).await
    }

    async fn publish(&self, event: NewEvent) -> Result<u64> {
        publish_durably(self, ParsedEvents::of_one(event)?).await
    }

    async fn publish_batch(&self, events: Vec<NewEvent>) -> Result<u64> {
        publish_durably(self, ParsedEvents::of(events)?).await
    }

    async fn publish_skipped(&self) -> Result<u64> {
        self.read(|conn| figures::counted(conn, SKIPPED)).await
    }
}

/// Its name on `/metrics`.
const SKIPPED: &str = "publish_skipped";

/// Events with parsed payloads. Parsing takes time, so it is done outside of the transaction.
pub(super) struct ParsedEvents {
    single: bool,
    events: Vec<(NewEvent, Json)>,
}

impl ParsedEvents {
    pub(super) fn of_one(event: NewEvent) -> Result<Self> {
        Self::read(true, vec![event])
    }

    pub(super) fn of(events: Vec<NewEvent>) -> Result<Self> {
        Self::read(false, events)
    }

    fn read(single: bool, events: Vec<NewEvent>) -> Result<Self> {
        let read = |(at, event): (usize, NewEvent)| {
            let payload = event.read(&within(single, at))?;
            Ok((event, payload))
        };
        Ok(Self { single, events: events.into_iter().enumerate().map(read).collect::<Result<_>>()? })
    }

    /// The error, with the place of its event in the batch.
    fn of_event(&self, at: usize, error: StoreError) -> StoreError {
        match error {
            StoreError::Invalid(Invalid { field, rule }) => {
                Invalid::new(within(self.single, at) + &field, rule).into()
            }
            other => other,
        }
    }
}

async fn publish_durably(store: &SqliteStore, publication: ParsedEvents) -> Result<u64> {
    let order = JobOrder::of(publication.events.iter().map(|(event, _)| &event.ordering_key));
    store.write_in(order, CommitMode::Durable, move |write| publish(write, &publication)).await
}

/// All or nothing; how many messages it made.
pub(super) fn publish(write: &mut Write<'_>, publication: &ParsedEvents) -> Result<u64> {
    let (count, limit) = (publication.events.len() as u64, write.config.settings().max_batch_messages);
    if count > limit {
        let (field, setting) = ("events", "max_batch_messages");
        return Err(StoreError::TooLarge { field, bytes: count, limit, setting });
    }
    check(write, publication)?;
    let mut outgoing = Vec::new();
    let (mut widest, mut skipped) = (0, 0_usize);
    for at in 0..publication.events.len() {
        let before = outgoing.len();
        skipped += fan_out(write, publication, at, &mut outgoing)?;
        widest = widest.max((outgoing.len() - before) as u64);
    }
    let limit = write.config.settings().max_fanout;
    if widest > limit {
        let (field, setting) = ("event_type", "max_fanout");
        return Err(StoreError::TooLarge { field, bytes: widest, limit, setting });
    }
    make_room(write, publication, &outgoing)?;
    let made = send_all(write, &outgoing)?;
    if skipped > 0 {
        figures::count(write, SKIPPED, skipped)?;
    }
    Ok(made)
}

/// How many messages it would make, ignoring the limits of the queue.
pub(super) fn size(write: &mut Write<'_>, publication: &ParsedEvents) -> Result<u64> {
    let mut outgoing = Vec::new();
    for at in 0..publication.events.len() {
        fan_out(write, publication, at, &mut outgoing)?;
    }
    Ok(new_ones(write, publication, &outgoing)?.values().sum())
}

/// The message for one subscription.
pub(super) struct OutgoingMessage {
    pub(super) message: NewMessage,
    pub(super) endpoint: Arc<Endpoint>,
    /// The place of its event.
    at: usize,
}

/// Checks the events themselves, even without subscriptions. What depends on the endpoint is checked for each message.
fn check(write: &Write<'_>, publication: &ParsedEvents) -> Result<()> {
    for (at, (event, payload)) in publication.events.iter().enumerate() {
        let schema = event_types::by_name(write.conn, &event.event_type)?.schema;
        let path = format!("{}payload", within(publication.single, at));
        if let Some(broken) = schema.and_then(|schema| pubsub::broken_schema(&path, payload, &schema)) {
            return Err(broken.into());
        }
    }
    for (at, (event, _)) in publication.events.iter().enumerate() {
        let mut message = event.message_to("");
        let check = |message: &NewMessage| {
            crate::send::check_itself(message, write.config.settings())
                .map_err(|error| publication.of_event(at, error))
        };
        check(&message)?;
        // The key with the longest subscription id appended.
        message.idempotency_key = event.idempotency_key.as_deref().map(longest_key);
        check(&message)?;
    }
    Ok(())
}

/// Adds the messages of one event. Returns how many were skipped because an operator disabled their endpoint; messages to
/// an endpoint that is gone are queued.
fn fan_out(
    write: &Write<'_>,
    publication: &ParsedEvents,
    at: usize,
    outgoing: &mut Vec<OutgoingMessage>,
) -> Result<usize> {
    let (event, payload) = &publication.events[at];
    let mut skipped = 0;
    let fitting = subscriptions::fitting(write.conn, &event.event_type)?;
    let wants = |one: &Fitting| one.filter.as_ref().is_none_or(|filter| pubsub::contains(payload, filter));
    for subscription in fitting.into_iter().filter(wants) {
        let Some(endpoint) = write.config.by_id(subscription.endpoint) else { continue };
        if endpoint.disabled == Some(DisabledBy::Operator) {
            skipped += 1;
            continue;
        }
        let mut message = event.message_to(&endpoint.name);
        message.idempotency_key =
            event.idempotency_key.as_deref().map(|key| key_of_subscription(key, subscription.id));
        if let Some(template) = &subscription.template {
            let filled = pubsub::filled(template, payload);
            filled
                .check_levels()
                .map_err(|rule| Invalid::new(within(publication.single, at) + "payload", rule))?;
            message.payload = filled.to_string().into();
        }
        outgoing.push(OutgoingMessage { message, endpoint: endpoint.clone(), at });
    }
    Ok(skipped)
}

/// Refuses, before anything is sent, when a message is invalid or the new ones do not all fit into the queue.
fn make_room(write: &mut Write<'_>, publication: &ParsedEvents, outgoing: &[OutgoingMessage]) -> Result<()> {
    let new = new_ones(write, publication, outgoing)?;
    send::room_for(write, new.values().sum())?;
    for (endpoint, more) in new {
        let endpoint = write.config.by_id(endpoint).expect("it was looked up by its name").clone();
        send::room_at(write, &endpoint, more)?;
    }
    Ok(())
}

/// Checks all messages. How many are new for each endpoint: not queued or reserved under their idempotency key.
fn new_ones(
    write: &mut Write<'_>,
    publication: &ParsedEvents,
    outgoing: &[OutgoingMessage],
) -> Result<BTreeMap<EndpointId, u64>> {
    let mut new: BTreeMap<EndpointId, u64> = BTreeMap::new();
    let mut keys = HashSet::new();
    for OutgoingMessage { message, endpoint, at } in outgoing {
        crate::send::check_all_but_payload(message, endpoint, write.config.settings())
            .map_err(|error| publication.of_event(*at, error))?;
        let is_first = message.idempotency_key.as_ref().is_none_or(|key| keys.insert((endpoint.id, key)));
        if is_first && send::holder_of_idempotency_key(write, message, endpoint)?.is_none() {
            *new.entry(endpoint.id).or_default() += 1;
        }
    }
    Ok(new)
}

/// Sends them in order; how many are new.
fn send_all(write: &mut Write<'_>, outgoing: &[OutgoingMessage]) -> Result<u64> {
    let (mut rest, mut made) = (outgoing, 0);
    while let Some(OutgoingMessage { message, endpoint, .. }) = rest.first() {
        if let Some(chunk) = bulk::waiting(write, rest) {
            bulk::queue(write, chunk)?;
            made += chunk.len() as u64;
            rest = &rest[chunk.len()..];
        } else {
            made += u64::from(!send::send_checked(write, message, endpoint)?.duplicate);
            rest = &rest[1..];
        }
    }
    Ok(made)
}
