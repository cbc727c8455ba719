//! Replays, asked of a node.

use async_trait::async_trait;
use postrider::MessageId;
use postrider::store::{NewReplay, Replay, ReplayPreview, Replays, Result};
use serde::Serialize;
use serde_json::json;

use super::Remote;
use super::asking::NodeRequest;
use crate::cursor;
use crate::view::Replayed;

#[derive(Serialize)]
struct WrittenReplay {
    #[serde(flatten)]
    replay: NewReplay,
    dry_run: bool,
}

impl WrittenReplay {
    fn asked(replay: NewReplay, dry_run: bool) -> NodeRequest {
        NodeRequest::post("/v1/replays").json(&Self { replay, dry_run }).patiently()
    }
}

#[async_trait]
impl Replays for Remote {
    async fn replay_message(&self, id: MessageId, to: Option<&str>) -> Result<MessageId> {
        let asked = NodeRequest::post("/v1/replays").json(&json!({ "message": id, "to": to }));
        Ok(MessageId(self.answer::<Replayed>(asked).await?.id))
    }

    async fn preview_replay(&self, replay: NewReplay) -> Result<ReplayPreview> {
        self.answer(WrittenReplay::asked(replay, true)).await
    }

    async fn start_replay(&self, replay: NewReplay) -> Result<Replay> {
        self.answer(WrittenReplay::asked(replay, false)).await
    }

    async fn replay(&self, id: i64) -> Result<Replay> {
        self.answer(NodeRequest::get(format!("/v1/replays/{id}"))).await
    }

    async fn replays(&self, before: Option<i64>, limit: usize) -> Result<Vec<Replay>> {
        self.list(|| NodeRequest::get("/v1/replays"), before.map(cursor::written), limit).await
    }

    async fn stop_replay(&self, id: i64) -> Result<Replay> {
        self.answer(NodeRequest::post(format!("/v1/replays/{id}:stop"))).await
    }

    async fn resume_replay(&self, id: i64) -> Result<Replay> {
        self.answer(NodeRequest::post(format!("/v1/replays/{id}:resume"))).await
    }
}
