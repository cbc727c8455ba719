//! What people and their programs ask of the file.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::job::CommitMode;
use super::{SqliteStore, config_cache, dlq, endpoints, events, inspect, redrive, results, settings, settle};
use crate::endpoint::{Endpoint, EndpointChange, NewEndpoint};
use crate::message::{MessageId, NewMessage, Sent};
use crate::outcome_log::log_cancelled;
use crate::settings::Settings;
use crate::store::{
    DeadLetter, DlqFilter, DlqSummary, EndpointHealth, EventRecord, Operate, Redrive, Result, Store,
    StoreStatus, Story,
};

#[async_trait]
impl Operate for SqliteStore {
    async fn send(&self, message: NewMessage) -> Result<Sent> {
        self.send_one(CommitMode::Durable, message).await
    }

    async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.send_all(CommitMode::Durable, messages).await
    }

    async fn send_fast(&self, message: NewMessage) -> Result<Sent> {
        self.send_one(CommitMode::Fast, message).await
    }

    async fn send_batch_fast(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.send_all(CommitMode::Fast, messages).await
    }

    async fn create_endpoint(&self, endpoint: NewEndpoint) -> Result<Endpoint> {
        self.write(CommitMode::Durable, move |write| endpoints::create(write, endpoint.clone())).await
    }

    async fn alter_endpoint(&self, name: &str, change: EndpointChange) -> Result<Endpoint> {
        let name = name.to_owned();
        self.write(CommitMode::Durable, move |write| endpoints::alter(write, &name, change.clone())).await
    }

    async fn drop_endpoint(&self, name: &str, force: bool) -> Result<()> {
        loop {
            let name = name.to_owned();
            if self.write(CommitMode::Durable, move |write| endpoints::drop(write, &name, force)).await? {
                return Ok(());
            }
        }
    }

    async fn endpoint(&self, name: &str) -> Result<Endpoint> {
        let name = name.to_owned();
        self.read(move |conn| endpoints::load_by_name(conn, &name)).await
    }

    async fn endpoint_health(&self, name: &str) -> Result<EndpointHealth> {
        let name = name.to_owned();
        self.read(move |conn| {
            let endpoint = endpoints::load_by_name(conn, &name)?;
            results::health(conn, endpoint.id)
        })
        .await
    }

    async fn endpoints(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
        let after = after.map(str::to_owned);
        self.read(move |conn| endpoints::list(conn, after.as_deref(), limit)).await
    }

    async fn set_endpoint_enabled(&self, name: &str, enabled: bool) -> Result<()> {
        let name = name.to_owned();
        self.write(CommitMode::Durable, move |write| endpoints::set_enabled(write, &name, enabled)).await
    }

    async fn set_endpoint_paused(&self, name: &str, paused: bool) -> Result<()> {
        let name = name.to_owned();
        self.write(CommitMode::Durable, move |write| endpoints::set_paused(write, &name, paused)).await
    }

    async fn reset_circuit(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(CommitMode::Durable, move |write| endpoints::reset_circuit(write, &name)).await
    }

    async fn pause(&self, reason: &str) -> Result<()> {
        let reason = reason.to_owned();
        self.write(CommitMode::Durable, move |write| settings::pause(write, &reason)).await
    }

    async fn resume(&self) -> Result<()> {
        self.write(CommitMode::Durable, settings::resume).await
    }

    async fn cancel(&self, id: MessageId) -> Result<()> {
        self.write(CommitMode::Durable, move |write| settle::cancel(write, id)).await?;
        log_cancelled(id);
        Ok(())
    }

    async fn reschedule(&self, id: MessageId, at: Timestamp) -> Result<()> {
        self.write(CommitMode::Durable, move |write| settle::reschedule(write, id, at)).await
    }

    async fn erase(&self, id: MessageId) -> Result<()> {
        self.write(CommitMode::Durable, move |write| settle::erase(write, id)).await
    }

    async fn release_key(&self, key: &str, endpoint: Option<&str>) -> Result<u64> {
        let (key, endpoint) = (key.to_owned(), endpoint.map(str::to_owned));
        self.write(CommitMode::Durable, move |write| dlq::release_key(write, &key, endpoint.as_deref())).await
    }

    async fn story(&self, id: MessageId) -> Result<Story> {
        let now = self.now();
        self.read(move |conn| inspect::story(conn, now, id)).await
    }

    async fn dlq(&self, filter: DlqFilter) -> Result<Vec<DeadLetter>> {
        self.read(move |conn| dlq::list(conn, &filter)).await
    }

    async fn redrive(&self, selection: Redrive) -> Result<u64> {
        let plan = Arc::new(self.read(move |conn| redrive::LettersToRedrive::new(conn, selection)).await?);
        let mut progress = redrive::RedriveCursor::default();
        while !plan.is_done(progress) {
            let plan = plan.clone();
            progress =
                self.write(CommitMode::Durable, move |write| redrive::step(write, &plan, progress)).await?;
        }
        Ok(progress.redriven)
    }

    async fn discard(&self, dlq_id: i64) -> Result<()> {
        self.write(CommitMode::Durable, move |write| dlq::discard(write, dlq_id)).await
    }

    async fn dlq_summary(&self) -> Result<Vec<DlqSummary>> {
        self.read(dlq::summary).await
    }

    async fn settings(&self) -> Result<Settings> {
        self.read(config_cache::load_settings).await
    }

    async fn configure(&self, changes: Vec<(String, String)>) -> Result<()> {
        self.write(CommitMode::Durable, move |write| settings::configure(write, &changes)).await
    }

    async fn events(&self, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>> {
        self.read(move |conn| events::list(conn, before, limit)).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        let (name, now) = (self.name.clone(), self.clock.now());
        self.read(move |conn| inspect::status(conn, &name, now)).await
    }
}
