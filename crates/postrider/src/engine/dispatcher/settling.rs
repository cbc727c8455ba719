//! Settles ended claims, and reports what the store made of them.

use tokio::time::Instant;

use super::Dispatcher;
use crate::engine::ended_claim::EndedClaim;
use crate::error::StoreError;
use crate::message::MessageId;
use crate::store::{Effect, Settled, Settlement};

impl Dispatcher {
    pub(super) fn begin_settle(&mut self) {
        let batch = self.unsettled.take_batch();
        if batch.is_empty() {
            return;
        }
        let store = self.parts.store.clone();
        self.settling = Some(Box::pin(async move {
            let settlements = batch.iter().map(|ended| ended.settlement.clone()).collect();
            let settled = store.settle(settlements).await;
            (batch, settled)
        }));
    }

    pub(super) fn settle_answered(
        &mut self,
        batch: Vec<EndedClaim>,
        settled: Result<Vec<Settled>, StoreError>,
    ) {
        let settled = match settled {
            Ok(settled) => settled,
            Err(error) => {
                self.store_failed("settle", &error);
                return self.unsettled.put_back(batch);
            }
        };
        self.backoff.succeeded();
        for (ended, settled) in batch.into_iter().zip(settled) {
            // Also for a postponed one: while it is unsettled, its claim keeps it from being claimed again.
            self.probation_ended(settled.id);
            if settled.effect == Effect::Later {
                self.unsettled.postpone(ended, Instant::now());
                continue;
            }
            if let Some(due_at) = ended.due_at {
                self.due(settled.endpoint, due_at);
            }
            if let Some(unblocked) = settled.unblocked {
                self.wake(unblocked);
                // The successor may be a suspect.
                self.suspects.want();
            }
            ended.report(settled, &self.parts.events, &self.parts.outcome_log);
        }
    }

    /// If the message was a suspect, the next one may be tried.
    pub(super) fn probation_ended(&mut self, id: MessageId) {
        let was_kept_empty = self.probation.wants_the_node_empty();
        if self.probation.ended(id) {
            self.suspects.want();
            if was_kept_empty {
                self.update_direct_limits();
            }
        }
    }

    /// The last call of a node that stops.
    pub(super) async fn settle_the_rest(mut self) {
        let unsettled = self.unsettled.take_all();
        if unsettled.is_empty() {
            return;
        }
        let settlements: Vec<Settlement> = unsettled.into_iter().map(|ended| ended.settlement).collect();
        match self.parts.store.settle(settlements).await {
            Ok(settled) => {
                let messages = settled.iter().filter(|settled| settled.effect == Effect::Later).count();
                if messages > 0 {
                    tracing::warn!(
                        messages,
                        "could not settle the last attempts because of another session's open transaction; \
                         these messages will be sent again"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not settle the last attempts; these messages will be sent again after the restart");
            }
        }
    }
}
