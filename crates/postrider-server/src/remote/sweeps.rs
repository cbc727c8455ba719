//! Dead letters by filter, asked of a node: one request is as many steps as it has time for.

use async_trait::async_trait;
use postrider::Invalid;
use postrider::store::{DlqFilter, Result, Sweep, SweepAction, SweepCursor, Sweeps};
use serde_json::json;

use super::Remote;
use super::asking::NodeRequest;
use crate::cursor;
use crate::view::Swept;

#[async_trait]
impl Sweeps for Remote {
    async fn sweep(
        &self,
        action: SweepAction,
        filter: DlqFilter,
        from: Option<SweepCursor>,
    ) -> Result<Sweep> {
        check(&filter)?;
        let selection = json!({
            "all": (filter == DlqFilter::default()).then_some(true),
            "endpoint": filter.endpoint, "reason": filter.reason, "class": filter.class,
            "error": filter.error, "event_type": filter.event_type, "ordering_key": filter.ordering_key,
            "correlation_id": filter.correlation_id, "message_id": filter.message, "from": filter.from, "until": filter.until,
            "cursor": from.map(|from| cursor::written_json(&from)),
        });
        let swept: Swept =
            self.answer(NodeRequest::post(format!("/v1/dlq:{}", action.as_str())).json(&selection)).await?;
        let done = match action {
            SweepAction::Redrive => swept.redriven,
            SweepAction::Discard => swept.discarded,
        };
        let next = swept.next.as_deref().and_then(cursor::read_json);
        Ok(Sweep { total: swept.total, done: done.unwrap_or_default(), next })
    }
}

/// What the API has no words for must not be left out of a selection.
fn check(filter: &DlqFilter) -> Result<()> {
    let given = [
        ("id", filter.id.is_some()),
        ("status", filter.status.is_some()),
        ("after", filter.after.is_some()),
        ("limit", filter.limit != 0),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Invalid::new(field, "is for lists; all that is selected is taken").into()),
        None => Ok(()),
    }
}
