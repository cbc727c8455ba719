//! Tokens in the store.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::{PostgresStore, Shared};
use crate::store::tokens::Minted;
use crate::store::{
    IssuedToken, Keyring, NewToken, Result, Scope, TOKENS_MAX, TokenKey, TokenRecord, Tokens,
};

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

pub(super) async fn create(shared: &Shared, new: NewToken) -> Result<IssuedToken> {
    new.check()?;
    let minted = Minted::new();
    let create = "SELECT postrider._create_token($1, $2, $3, $4, $5)";
    let (scope, digest, most) = (new.scope.as_str(), &minted.digest[..], TOKENS_MAX as i64);
    let row = shared.pool.query_one(create, &[&minted.prefix, &new.name, &scope, &digest, &most]).await?;
    Ok(minted.issued(new, row.get(0)))
}

pub(super) async fn list(shared: &Shared) -> Result<Vec<TokenRecord>> {
    let list = "SELECT prefix, name, scope, created_at FROM postrider._tokens ORDER BY created_at, prefix";
    let rows = shared.prompt.query(list, &[]).await?;
    let token = |row: &Row| TokenRecord {
        prefix: row.get(0),
        name: row.get(1),
        scope: scope(row.get(2)),
        created_at: row.get(3),
    };
    Ok(rows.iter().map(token).collect())
}

pub(super) async fn keys(shared: &Shared) -> Result<Vec<TokenKey>> {
    // Asked for by a node's API, whoever else waits for a connection.
    let rows = shared.own.query("SELECT prefix, scope, digest FROM postrider._tokens", &[]).await?;
    Ok(rows.iter().filter_map(|row| TokenKey::new(row.get(0), scope(row.get(1)), row.get(2))).collect())
}

/// The table has a CHECK; what it did not let in may do least.
fn scope(text: &str) -> Scope {
    text.parse().unwrap_or(Scope::Monitor)
}
