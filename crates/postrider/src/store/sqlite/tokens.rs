//! Tokens in the store.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::job::Commit;
use super::row::{at, micros_of};
use super::writer::Write;
use super::{SqliteStore, events, storage_error};
use crate::store::tokens::{Minted, is_last, too_many, unknown};
use crate::store::{
    IssuedToken, Keyring, NewToken, Result, Scope, TOKENS_MAX, TokenKey, TokenRecord, Tokens,
};

#[async_trait]
impl Tokens for SqliteStore {
    async fn create_token(&self, token: NewToken) -> Result<IssuedToken> {
        token.check()?;
        let (new, minted) = (token.clone(), Minted::new());
        let stored = minted.clone();
        let created_at = self.write(Commit::Durable, move |write| create(write, &new, &stored)).await?;
        Ok(minted.issued(token, created_at))
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        self.read(|conn| list(conn).map_err(storage_error)).await
    }

    async fn revoke_token(&self, prefix: &str, even_last: bool) -> Result<()> {
        let prefix = prefix.to_owned();
        self.write(Commit::Durable, move |write| revoke(write, &prefix, even_last)).await
    }
}

#[async_trait]
impl Keyring for SqliteStore {
    async fn keys(&self) -> Result<Vec<TokenKey>> {
        self.read(|conn| keys(conn).map_err(storage_error)).await
    }
}

pub(super) fn create(write: &mut Write<'_>, new: &NewToken, minted: &Minted) -> Result<Timestamp> {
    let count: usize = write
        .conn
        .query_row("SELECT count(*) FROM _postrider_tokens", [], |row| row.get(0))
        .map_err(storage_error)?;
    if count >= TOKENS_MAX {
        return Err(too_many());
    }
    write
        .conn
        .execute(
            "INSERT INTO _postrider_tokens (prefix, name, scope, digest, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![minted.prefix, new.name, new.scope.as_str(), minted.digest, micros_of(write.now)],
        )
        .map_err(storage_error)?;
    let detail = json!({ "name": new.name, "scope": new.scope });
    events::log(write, "token.created", Some(&minted.prefix), &detail)?;
    Ok(write.now)
}

pub(super) fn revoke(write: &mut Write<'_>, prefix: &str, even_last: bool) -> Result<()> {
    if !even_last && is_only(write.conn, prefix).map_err(storage_error)? {
        return Err(is_last(prefix));
    }
    let name: Option<String> = write
        .conn
        .query_row("DELETE FROM _postrider_tokens WHERE prefix = ?1 RETURNING name", [prefix], |row| {
            row.get(0)
        })
        .optional()
        .map_err(storage_error)?;
    let name = name.ok_or_else(|| unknown(prefix))?;
    events::log(write, "token.revoked", Some(prefix), &json!({ "name": name }))
}

fn is_only(conn: &Connection, prefix: &str) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) = 1 AND max(prefix) = ?1 FROM _postrider_tokens", [prefix], |row| {
        row.get::<_, Option<bool>>(0).map(|is| is == Some(true))
    })
}

pub(super) fn list(conn: &Connection) -> rusqlite::Result<Vec<TokenRecord>> {
    conn.prepare_cached(
        "SELECT prefix, name, scope, created_at FROM _postrider_tokens ORDER BY created_at, prefix",
    )?
    .query_map([], |row| {
        Ok(TokenRecord {
            prefix: row.get(0)?,
            name: row.get(1)?,
            scope: scope(row.get_ref(2)?.as_str()?),
            created_at: at(row.get(3)?),
        })
    })?
    .collect()
}

pub(super) fn keys(conn: &Connection) -> rusqlite::Result<Vec<TokenKey>> {
    let keys = conn
        .prepare_cached("SELECT prefix, scope, digest FROM _postrider_tokens")?
        .query_map([], |row| {
            Ok(TokenKey::new(row.get(0)?, scope(row.get_ref(1)?.as_str()?), row.get_ref(2)?.as_bytes()?))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(keys.into_iter().flatten().collect())
}

/// The table has a CHECK; what it did not let in may do least.
fn scope(text: &str) -> Scope {
    text.parse().unwrap_or(Scope::Monitor)
}
