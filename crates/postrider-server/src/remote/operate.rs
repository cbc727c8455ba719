//! What people and their programs need, asked of a node.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use postrider::endpoint::EndpointChange;
use postrider::engine::TestDeliveryReport;
use postrider::settings::Settings;
use postrider::store::{
    DeadLetter, DlqFilter, DlqSummary, EndpointHealth, EventRecord, ListedDeadLetter, Redrive, Result,
    StoreStatus, Story, Sweep, SweepAction, Sweeps,
};
use postrider::{Endpoint, MessageId, NewEndpoint, NewMessage, Operate, Sent, StoreError};
use serde_json::{Value, json};

use super::Remote;
use super::asking::{NodeRequest, segment};
use crate::cursor;
use crate::view::{DeadLetterView, EndpointView, MessageView, Page, Redriven, Released};

/// How many dead letters are listed unless said.
const LETTERS_DEFAULT: usize = 100;

impl Remote {
    /// Sends one message outside the queue. An attempt may take longer than other requests.
    pub(crate) async fn test_endpoint(
        &self,
        name: &str,
        content_type: String,
        payload: Bytes,
    ) -> Result<TestDeliveryReport> {
        let path = format!("{}/test", endpoint_path(name)?);
        self.answer(NodeRequest::post(path).body(content_type, payload).patiently()).await
    }
}

/// Endpoints as the node shows them, with what only the node knows.
impl Remote {
    pub(crate) async fn endpoint_view(&self, name: &str) -> Result<EndpointView> {
        self.answer(NodeRequest::get(endpoint_path(name)?)).await
    }

    pub(crate) async fn endpoint_views(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<EndpointView>> {
        self.list(|| NodeRequest::get("/v1/endpoints"), after.map(cursor::written), limit).await
    }
}

#[async_trait]
impl Operate for Remote {
    async fn send(&self, message: NewMessage) -> Result<Sent> {
        self.send_one(message).await
    }

    async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.send_many(&messages).await
    }

    /// A node answers once it is on disk: later than it might, and never too early.
    async fn send_fast(&self, message: NewMessage) -> Result<Sent> {
        self.send_one(message).await
    }

    async fn send_batch_fast(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.send_many(&messages).await
    }

    async fn create_endpoint(&self, endpoint: NewEndpoint) -> Result<Endpoint> {
        self.endpoint_of(NodeRequest::post("/v1/endpoints").json(&endpoint)).await
    }

    async fn alter_endpoint(&self, name: &str, change: EndpointChange) -> Result<Endpoint> {
        self.endpoint_of(NodeRequest::new(Method::PATCH, endpoint_path(name)?).json(&change)).await
    }

    async fn drop_endpoint(&self, name: &str, force: bool) -> Result<()> {
        self.done(NodeRequest::delete(endpoint_path(name)?).query("force", Some(force)).patiently()).await
    }

    async fn endpoint(&self, name: &str) -> Result<Endpoint> {
        self.understood(self.endpoint_view(name).await?)
    }

    async fn endpoint_health(&self, name: &str) -> Result<EndpointHealth> {
        Ok(self.endpoint_view(name).await?.health().unwrap_or_default())
    }

    async fn endpoints(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
        let views = self.endpoint_views(after, limit).await?;
        views.into_iter().map(|view| self.understood(view)).collect()
    }

    async fn set_endpoint_enabled(&self, name: &str, enabled: bool) -> Result<()> {
        self.switch(name, if enabled { "enable" } else { "disable" }).await
    }

    async fn set_endpoint_paused(&self, name: &str, paused: bool) -> Result<()> {
        self.switch(name, if paused { "pause" } else { "resume" }).await
    }

    async fn reset_circuit(&self, name: &str) -> Result<()> {
        self.switch(name, "reset").await
    }

    async fn pause(&self, reason: &str) -> Result<()> {
        self.done(NodeRequest::post("/v1/pause").json(&json!({ "reason": reason }))).await
    }

    async fn resume(&self) -> Result<()> {
        self.done(NodeRequest::post("/v1/resume")).await
    }

    async fn cancel(&self, id: MessageId) -> Result<()> {
        self.done(NodeRequest::delete(format!("/v1/messages/{id}"))).await
    }

    async fn reschedule(&self, id: MessageId, at: Timestamp) -> Result<()> {
        self.done(NodeRequest::post(format!("/v1/messages/{id}:reschedule")).json(&json!({ "at": at }))).await
    }

    async fn erase(&self, id: MessageId) -> Result<()> {
        self.done(NodeRequest::post(format!("/v1/messages/{id}:erase"))).await
    }

    async fn release_key(&self, key: &str, endpoint: Option<&str>) -> Result<u64> {
        let asked = NodeRequest::post("/v1/keys:release").json(&json!({ "key": key, "endpoint": endpoint }));
        Ok(self.answer::<Released>(asked).await?.released)
    }

    async fn story(&self, id: MessageId) -> Result<Story> {
        Ok(self.answer::<MessageView>(NodeRequest::get(format!("/v1/messages/{id}"))).await?.into())
    }

    /// A list has no payloads, headers and single errors; one letter by its id has.
    async fn dlq(&self, filter: DlqFilter) -> Result<Vec<DeadLetter>> {
        if let Some(id) = filter.id {
            return self.letter(id, &filter).await;
        }
        let limit = if filter.limit == 0 { LETTERS_DEFAULT } else { filter.limit };
        let asked = || {
            NodeRequest::get("/v1/dlq")
                .query("endpoint", filter.endpoint.as_ref())
                .query("status", filter.status.map(|status| status.as_str()))
                .query("reason", filter.reason.as_ref())
                .query("class", filter.class.map(|class| class.as_str()))
                .query("error", filter.error.as_ref())
                .query("event_type", filter.event_type.as_ref())
                .query("ordering_key", filter.ordering_key.as_ref())
                .query("correlation_id", filter.correlation_id)
                .query("message_id", filter.message)
                .query("from", filter.from)
                .query("until", filter.until)
        };
        let from = filter.after.map(cursor::written);
        let listed: Vec<ListedDeadLetter> = self.list(asked, from, limit).await?;
        Ok(listed.into_iter().map(DeadLetter::from).collect())
    }

    async fn redrive(&self, selection: Redrive) -> Result<u64> {
        let filter = match selection {
            Redrive::One(id) => {
                let asked = NodeRequest::post(format!("/v1/dlq/{id}:redrive"));
                return Ok(self.answer::<Redriven>(asked).await?.redriven);
            }
            Redrive::Endpoint(name) => DlqFilter { endpoint: Some(name), ..DlqFilter::default() },
            Redrive::All => DlqFilter::default(),
            Redrive::Matching(filter) => filter,
        };
        let mut sweep = Sweep { total: 0, done: 0, next: None };
        loop {
            sweep = self.sweep(SweepAction::Redrive, filter.clone(), sweep.next).await?;
            if sweep.next.is_none() {
                return Ok(sweep.done);
            }
        }
    }

    async fn discard(&self, dlq_id: i64) -> Result<()> {
        self.done(NodeRequest::post(format!("/v1/dlq/{dlq_id}:discard"))).await
    }

    async fn dlq_summary(&self) -> Result<Vec<DlqSummary>> {
        Ok(self.answer::<Page<DlqSummary>>(NodeRequest::get("/v1/dlq/summary")).await?.items)
    }

    async fn settings(&self) -> Result<Settings> {
        let values: BTreeMap<String, Value> = self.answer(NodeRequest::get("/v1/config")).await?;
        let mut settings = Settings::default();
        for (name, value) in values {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            // Of a newer version, when it is not known.
            let _ = settings.apply(&name, &text);
        }
        Ok(settings)
    }

    async fn configure(&self, changes: Vec<(String, String)>) -> Result<()> {
        let changes: BTreeMap<String, String> = changes.into_iter().collect();
        let asked = NodeRequest::new(Method::PUT, "/v1/config").json(&changes);
        self.answer::<BTreeMap<String, Value>>(asked).await.map(drop)
    }

    async fn events(&self, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>> {
        self.list(|| NodeRequest::get("/v1/event-log"), before.map(cursor::written), limit).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        self.answer(NodeRequest::get("/v1/status")).await
    }
}

impl Remote {
    async fn endpoint_of(&self, asked: NodeRequest) -> Result<Endpoint> {
        let view = self.answer(asked).await?;
        self.understood(view)
    }

    fn understood(&self, view: EndpointView) -> Result<Endpoint> {
        view.try_into().map_err(|invalid| {
            StoreError::Unusable(format!("{self} runs another version of Postrider: an endpoint's {invalid}"))
        })
    }

    async fn switch(&self, name: &str, to: &str) -> Result<()> {
        let asked = NodeRequest::post(format!("{}/{to}", endpoint_path(name)?));
        self.answer::<EndpointView>(asked).await.map(drop)
    }

    /// Empty when there is none, or when it is not one that the rest of the filter selects.
    async fn letter(&self, id: i64, filter: &DlqFilter) -> Result<Vec<DeadLetter>> {
        let only_id = DlqFilter { id: Some(id), limit: filter.limit, ..DlqFilter::default() };
        if *filter != only_id {
            let rule = "cannot be given beside other filters when a node is asked";
            return Err(postrider::Invalid::new("id", rule).into());
        }
        match self.answer::<DeadLetterView>(NodeRequest::get(format!("/v1/dlq/{id}"))).await {
            Ok(view) => Ok(vec![view.into()]),
            Err(StoreError::Unknown { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn endpoint_path(name: &str) -> Result<String> {
    Ok(format!("/v1/endpoints/{}", segment("endpoint", name)?))
}
