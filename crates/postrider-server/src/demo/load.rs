//! The sender of the demo: follows the plan, in batches where several are due at once.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use postrider::{MessageId, NewMessage, Operate};
use serde_json::json;

use super::plan::{DemoPlan, PERISHABLE_TTL, Planned, PlannedKind};
use super::tally::DemoTally;
use crate::failure::CommandError;

/// What is due within one tick is sent in one transaction.
const TICK: Duration = Duration::from_millis(20);
const BATCH_MAX: usize = 1000;

pub(super) struct SentMessage {
    pub(super) id: MessageId,
    pub(super) planned: Planned,
}

pub(super) async fn send(
    plan: &DemoPlan,
    store: &dyn Operate,
    tally: &DemoTally,
    began: Instant,
) -> Result<Vec<SentMessage>, CommandError> {
    let mut sent = Vec::with_capacity(plan.messages.len());
    let mut rest = plan.messages.as_slice();
    while let Some(next) = rest.first() {
        tokio::time::sleep_until((began + next.at).into()).await;
        let due = began.elapsed() + TICK;
        let count = rest.iter().take(BATCH_MAX).take_while(|planned| planned.at <= due).count().max(1);
        let (now, later) = rest.split_at(count);
        let batch = now.iter().map(|planned| message(planned, Timestamp::now())).collect();
        let ids = store.send_batch(batch).await?;
        tally.sent(ids.len());
        sent.extend(
            ids.into_iter()
                .zip(now)
                .map(|(one, planned)| SentMessage { id: one.id, planned: planned.clone() }),
        );
        rest = later;
    }
    Ok(sent)
}

fn message(planned: &Planned, now: Timestamp) -> NewMessage {
    let payload = json!({
        "number": planned.number,
        "kind": planned.kind.as_str(),
        "key": planned.key.as_ref().map(|(key, _)| key),
        "place": planned.key.as_ref().map(|(_, place)| place),
        "sent_us": now.as_microsecond(),
    });
    let mut message = NewMessage::new(planned.endpoint, payload.to_string());
    message.ordering_key = planned.key.as_ref().map(|(key, _)| key.clone());
    message.event_type = Some(format!("demo.{}", planned.kind.as_str()));
    if planned.kind == PlannedKind::Perishable {
        message.expires_at = Some(now + PERISHABLE_TTL);
    }
    message
}
