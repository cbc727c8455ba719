//! Messages and nodes, asked of a node.

use async_trait::async_trait;
use postrider::MessageId;
use postrider::message::NodeId;
use postrider::store::{ListedMessage, Listing, MessageFilter, MessagePage, NodeRecord, Result};

use super::Remote;
use super::asking::NodeRequest;
use crate::api::PAGE_MAX;
use crate::cursor;
use crate::view::Page;

#[async_trait]
impl Listing for Remote {
    async fn messages(&self, filter: MessageFilter) -> Result<MessagePage> {
        let asked = NodeRequest::get("/v1/messages")
            .query("state", filter.state)
            .query("endpoint", filter.endpoint)
            .query("ordering_key", filter.ordering_key)
            .query("event_type", filter.event_type)
            .query("correlation_id", filter.correlation_id)
            .query("created_after", filter.created_after)
            .query("created_before", filter.created_before)
            .query("limit", (filter.limit > 0).then_some(filter.limit.min(PAGE_MAX)))
            .query("cursor", filter.before.map(cursor::written));
        let page: Page<ListedMessage> = self.answer(asked).await?;
        let next = page.next.and_then(|next| cursor::read(&next)).map(MessageId);
        Ok(MessagePage { items: page.items, next })
    }

    async fn nodes(&self, before: Option<NodeId>, limit: usize) -> Result<Vec<NodeRecord>> {
        self.list(|| NodeRequest::get("/v1/nodes"), before.map(|id| cursor::written(id.0)), limit).await
    }
}
