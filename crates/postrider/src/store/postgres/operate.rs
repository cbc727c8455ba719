//! [`Operate`]: each method is a call of a function in SQL, or of the file of its noun.

use async_trait::async_trait;
use jiff::Timestamp;

use super::send::SendCommit;
use super::{PostgresStore, dlq, endpoints, inspect, results, row, send};
use crate::endpoint::{Endpoint, EndpointChange, NewEndpoint};
use crate::message::{MessageId, NewMessage, Sent};
use crate::outcome_log::log_cancelled;
use crate::settings::Settings;
use crate::store::{
    DeadLetter, DlqFilter, DlqSummary, EndpointHealth, EventRecord, Operate, Redrive, Result, StoreStatus,
    Story,
};

#[async_trait]
impl Operate for PostgresStore {
    async fn send(&self, message: NewMessage) -> Result<Sent> {
        self.shared.refusals.noted(send::send(&self.shared, SendCommit::Durable, &message).await)
    }

    async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.shared.refusals.noted(send::send_batch(&self.shared, SendCommit::Durable, &messages).await)
    }

    async fn send_fast(&self, message: NewMessage) -> Result<Sent> {
        self.shared.refusals.noted(send::send(&self.shared, SendCommit::Fast, &message).await)
    }

    async fn send_batch_fast(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.shared.refusals.noted(send::send_batch(&self.shared, SendCommit::Fast, &messages).await)
    }

    async fn create_endpoint(&self, endpoint: NewEndpoint) -> Result<Endpoint> {
        endpoints::create(&self.shared, endpoint).await
    }

    async fn alter_endpoint(&self, name: &str, change: EndpointChange) -> Result<Endpoint> {
        endpoints::alter(&self.shared, name, change).await
    }

    async fn drop_endpoint(&self, name: &str, force: bool) -> Result<()> {
        endpoints::drop(&self.shared, name, force).await
    }

    async fn endpoint(&self, name: &str) -> Result<Endpoint> {
        endpoints::by_name(&self.shared, name).await
    }

    async fn endpoint_health(&self, name: &str) -> Result<EndpointHealth> {
        results::health(&self.shared, name).await
    }

    async fn endpoints(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
        endpoints::list(&self.shared, after, limit).await
    }

    async fn set_endpoint_enabled(&self, name: &str, enabled: bool) -> Result<()> {
        let sql = match enabled {
            true => "SELECT postrider.enable_endpoint($1)",
            false => "SELECT postrider.disable_endpoint($1)",
        };
        self.shared.pool.call(sql, &[&name]).await
    }

    async fn set_endpoint_paused(&self, name: &str, paused: bool) -> Result<()> {
        self.shared.pool.call("SELECT postrider._set_paused($1, $2)", &[&name, &paused]).await
    }

    async fn reset_circuit(&self, name: &str) -> Result<()> {
        self.shared.pool.call("SELECT postrider.reset_circuit_breaker($1)", &[&name]).await
    }

    async fn pause(&self, reason: &str) -> Result<()> {
        self.shared.pool.call("SELECT postrider.pause($1)", &[&reason]).await
    }

    async fn resume(&self) -> Result<()> {
        self.shared.pool.call("SELECT postrider.resume()", &[]).await
    }

    async fn cancel(&self, id: MessageId) -> Result<()> {
        self.shared.pool.call("SELECT postrider.cancel_message($1)", &[&id.0]).await?;
        log_cancelled(id);
        Ok(())
    }

    async fn reschedule(&self, id: MessageId, at: Timestamp) -> Result<()> {
        self.shared.pool.call("SELECT postrider.reschedule_message($1, $2)", &[&id.0, &at]).await?;
        self.shared.cursors.all_returned();
        Ok(())
    }

    async fn erase(&self, id: MessageId) -> Result<()> {
        self.shared.pool.call("SELECT postrider.erase_message($1)", &[&id.0]).await
    }

    async fn release_key(&self, key: &str, endpoint: Option<&str>) -> Result<u64> {
        let released =
            self.shared.pool.query_one("SELECT postrider.release_key($1, $2)", &[&key, &endpoint]).await?;
        self.shared.cursors.all_returned();
        Ok(row::big_count(&released, 0))
    }

    async fn story(&self, id: MessageId) -> Result<Story> {
        inspect::story(&self.shared, id).await
    }

    async fn dlq(&self, filter: DlqFilter) -> Result<Vec<DeadLetter>> {
        dlq::list(&self.shared, &filter).await
    }

    async fn redrive(&self, selection: Redrive) -> Result<u64> {
        let redriven = self.shared.refusals.noted(dlq::redrive(&self.shared, selection).await);
        self.shared.cursors.all_returned();
        redriven
    }

    async fn discard(&self, dlq_id: i64) -> Result<()> {
        self.shared.pool.call("SELECT postrider.discard_message($1)", &[&dlq_id]).await?;
        self.shared.cursors.all_returned();
        Ok(())
    }

    async fn dlq_summary(&self) -> Result<Vec<DlqSummary>> {
        dlq::summary(&self.shared).await
    }

    async fn settings(&self) -> Result<Settings> {
        endpoints::settings(&self.shared.prompt).await
    }

    async fn configure(&self, changes: Vec<(String, String)>) -> Result<()> {
        endpoints::configure(&self.shared, &changes).await
    }

    async fn events(&self, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>> {
        inspect::events(&self.shared, before, limit).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        inspect::status(&self.shared).await
    }

    fn in_the_way(&self) -> Vec<String> {
        self.shared.holders.sentences()
    }
}
