//! Migrations: forward only, each in one transaction.

use jiff::Timestamp;
use rand::RngExt;
use rusqlite::{Connection, TransactionBehavior};

use super::archive::Month;
use super::query::Query;
use super::row::micros_of;
use super::{export, surface};
use crate::error::StoreError;
use crate::store::Result;

const MIGRATIONS: &[&str] = &[
    include_str!("sql/0001_init.sql"),
    include_str!("sql/0002_any_language.sql"),
    include_str!("sql/0003_pubsub.sql"),
    include_str!("sql/0004_replays.sql"),
    include_str!("sql/0005_tokens.sql"),
];
pub(super) const CURRENT: i64 = MIGRATIONS.len() as i64;

const STORE_NAME_LENGTH: usize = 8;

/// 0 for a file without our tables.
pub(super) fn version(conn: &Connection) -> Result<i64> {
    let exists: bool = conn.value(
        "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_postrider_meta')",
        [],
    )?;
    if !exists {
        return Ok(0);
    }
    conn.find("SELECT value FROM _postrider_meta WHERE name = 'schema_version'", [], |row| row.get(0))
        .map(|version| version.unwrap_or(0))
}

/// Brings the file up to date. Safe to run twice and at once: the version is read again under the lock.
pub(super) fn migrate(conn: &mut Connection, now: Timestamp) -> Result<()> {
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let from = version(&transaction)?;
    if from >= CURRENT {
        // Up to date, or a newer build's schema, which must keep its version.
        return Ok(());
    }
    for migration in MIGRATIONS.iter().skip(from as usize) {
        transaction.execute_batch(migration)?;
    }
    if from == 0 {
        transaction.execute(
            "INSERT INTO _postrider_meta (name, value) VALUES ('store', ?1), ('config_version', 1)",
            [new_store_name()],
        )?;
        transaction.execute("INSERT INTO _postrider_counts (endpoint_id) VALUES (0)", [])?;
    }
    transaction.execute(
        "INSERT INTO _postrider_meta (name, value) VALUES ('schema_version', ?1)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [CURRENT],
    )?;
    if Month::existing(&transaction)?.is_empty() {
        Month::of(micros_of(now)).begin(&transaction)?;
    }
    export::close_new_tables(&transaction)?;
    surface::refresh(&transaction)?;
    Ok(transaction.commit()?)
}

/// Creates the views and triggers of `surface/` again when another build made them differently.
pub(super) fn refresh_surface(conn: &mut Connection) -> Result<()> {
    if surface::is_current(conn)? {
        return Ok(());
    }
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    surface::refresh(&transaction)?;
    Ok(transaction.commit()?)
}

/// Refuses a schema of another version, and says what to do.
pub(super) fn check(conn: &Connection) -> Result<()> {
    let found = version(conn)?;
    if found < CURRENT {
        return Err(StoreError::Unusable(format!(
            "the store has schema version {found} and this build needs {CURRENT}; run `postrider migrate`, or start with --migrate"
        )));
    }
    if found > CURRENT {
        return Err(StoreError::Unusable(format!(
            "the store has schema version {found}, newer than this build's {CURRENT}; use a newer postrider"
        )));
    }
    Ok(())
}

pub(super) fn renew_name(conn: &Connection) -> Result<()> {
    conn.run("UPDATE _postrider_meta SET value = ?1 WHERE name = 'store'", [new_store_name()])
}

fn new_store_name() -> String {
    const ALPHABET: &[u8] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut dice = rand::rng();
    (0..STORE_NAME_LENGTH).map(|_| char::from(ALPHABET[dice.random_range(0..ALPHABET.len())])).collect()
}
