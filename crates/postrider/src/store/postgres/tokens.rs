//! Tokens in the store.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::row::named;
use super::{PostgresStore, SharedState};
use crate::store::tokens::{Minted, usable};
use crate::store::{IssuedToken, Keyring, NewToken, Result, TOKENS_MAX, TokenKey, TokenRecord, Tokens};

#[async_trait]
impl Tokens for PostgresStore {
    async fn create_token(&self, token: NewToken) -> Result<IssuedToken> {
        create(&self.shared, token).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        list(&self.shared).await
    }

    async fn revoke_token(&self, prefix: &str, even_last: bool) -> Result<()> {
        self.shared.pool.call("SELECT postrider._revoke_token($1, $2)", &[&prefix, &even_last]).await
    }
}

#[async_trait]
impl Keyring for PostgresStore {
    async fn keys(&self) -> Result<Vec<TokenKey>> {
        self.shared.in_time(keys(&self.shared)).await
    }
}

pub(super) async fn create(shared: &SharedState, new: NewToken) -> Result<IssuedToken> {
    new.check()?;
    let minted = Minted::new();
    let create = "SELECT postrider._create_token($1, $2, $3, $4, $5)";
    let (scope, digest, most) = (new.scope.as_str(), &minted.digest[..], TOKENS_MAX as i64);
    let row = shared.pool.query_one(create, &[&minted.prefix, &new.name, &scope, &digest, &most]).await?;
    Ok(minted.issued(new, row.get(0)))
}

pub(super) async fn list(shared: &SharedState) -> Result<Vec<TokenRecord>> {
    let list = "SELECT prefix, name, scope, created_at FROM postrider._tokens ORDER BY created_at, prefix";
    let rows = shared.prompt.query(list, &[]).await?;
    let token = |row: &Row| {
        Ok(TokenRecord {
            prefix: row.get(0),
            name: row.get(1),
            scope: named(row, 2)?,
            created_at: row.get(3),
        })
    };
    rows.iter().map(token).collect()
}

pub(super) async fn keys(shared: &SharedState) -> Result<Vec<TokenKey>> {
    // On the node's own connections: its API must not wait behind senders.
    let rows = shared.own.query("SELECT prefix, scope, digest FROM postrider._tokens", &[]).await?;
    let key = |row: &Row| {
        let scope = named(row, 1).ok();
        (row.get(0), scope.and_then(|scope| TokenKey::new(row.get(0), scope, row.get(2))))
    };
    usable(rows.iter().map(key).collect())
}
