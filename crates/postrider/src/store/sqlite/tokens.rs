//! Tokens in the store.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::json;

use super::job::CommitMode;
use super::query::Query;
use super::row::{at, micros_of, named};
use super::writer::Write;
use super::{SqliteStore, events};
use crate::store::tokens::{Minted, is_last, too_many, unknown, usable};
use crate::store::{IssuedToken, Keyring, NewToken, Result, TOKENS_MAX, TokenKey, TokenRecord, Tokens};

#[async_trait]
impl Tokens for SqliteStore {
    async fn create_token(&self, token: NewToken) -> Result<IssuedToken> {
        token.check()?;
        let (new, minted) = (token.clone(), Minted::new());
        let stored = minted.clone();
        let created_at = self.write(CommitMode::Durable, move |write| create(write, &new, &stored)).await?;
        Ok(minted.issued(token, created_at))
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        self.read(list).await
    }

    async fn revoke_token(&self, prefix: &str, even_last: bool) -> Result<()> {
        let prefix = prefix.to_owned();
        self.write(CommitMode::Durable, move |write| revoke(write, &prefix, even_last)).await
    }
}

#[async_trait]
impl Keyring for SqliteStore {
    async fn keys(&self) -> Result<Vec<TokenKey>> {
        self.read(keys).await
    }
}

pub(super) fn create(write: &mut Write<'_>, new: &NewToken, minted: &Minted) -> Result<Timestamp> {
    let count: usize = write.conn.value("SELECT count(*) FROM _postrider_tokens", [])?;
    if count >= TOKENS_MAX {
        return Err(too_many());
    }
    write.conn.run(
        "INSERT INTO _postrider_tokens (prefix, name, scope, digest, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![minted.prefix, new.name, new.scope.as_str(), minted.digest, micros_of(write.now)],
    )?;
    let detail = json!({ "name": new.name, "scope": new.scope });
    events::log(write, "token.created", Some(&minted.prefix), &detail)?;
    Ok(write.now)
}

pub(super) fn revoke(write: &mut Write<'_>, prefix: &str, even_last: bool) -> Result<()> {
    if !even_last && is_only(write.conn, prefix)? {
        return Err(is_last(prefix));
    }
    let name: Option<String> = write.conn.find(
        "DELETE FROM _postrider_tokens WHERE prefix = ?1 RETURNING name",
        [prefix],
        |row| row.get(0),
    )?;
    let name = name.ok_or_else(|| unknown(prefix))?;
    events::log(write, "token.revoked", Some(prefix), &json!({ "name": name }))
}

fn is_only(conn: &Connection, prefix: &str) -> Result<bool> {
    conn.row("SELECT count(*) = 1 AND max(prefix) = ?1 FROM _postrider_tokens", [prefix], |row| {
        row.get::<_, Option<bool>>(0).map(|is| is == Some(true))
    })
}

pub(super) fn list(conn: &Connection) -> Result<Vec<TokenRecord>> {
    conn.rows(
        "SELECT prefix, name, scope, created_at FROM _postrider_tokens ORDER BY created_at, prefix",
        [],
        |row| {
            Ok(TokenRecord {
                prefix: row.get(0)?,
                name: row.get(1)?,
                scope: named(row, 2)?,
                created_at: at(row.get(3)?),
            })
        },
    )
}

pub(super) fn keys(conn: &Connection) -> Result<Vec<TokenKey>> {
    let keys = conn.rows("SELECT prefix, scope, digest FROM _postrider_tokens", [], |row| {
        let (prefix, digest) = (row.get::<_, String>(0)?, row.get_ref(2)?.as_bytes()?);
        let scope = named(row, 1).ok();
        Ok((prefix.clone(), scope.and_then(|scope| TokenKey::new(prefix, scope, digest))))
    })?;
    usable(keys)
}
