//! Tokens, made, listed and revoked through a node.

use async_trait::async_trait;
use postrider::store::{IssuedToken, NewToken, Result, TokenRecord, Tokens};

use super::Remote;
use super::asking::{NodeRequest, segment};
use crate::view::Page;

#[async_trait]
impl Tokens for Remote {
    async fn create_token(&self, token: NewToken) -> Result<IssuedToken> {
        self.answer(NodeRequest::post("/v1/tokens").json(&token)).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        Ok(self.answer::<Page<TokenRecord>>(NodeRequest::get("/v1/tokens")).await?.items)
    }

    async fn revoke_token(&self, prefix: &str, even_last: bool) -> Result<()> {
        let asked = NodeRequest::delete(format!("/v1/tokens/{}", segment("token", prefix)?));
        self.done(asked.query("last", even_last.then_some(true))).await
    }
}
