//! Migrations: forward only, all in one transaction, safe to run twice and from two nodes at once.

use rand::RngExt;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::constants::with_constants;
use super::errors::store_error;
use super::known_keys;
use crate::error::StoreError;
use crate::settings::{self, SettingKind};
use crate::store::Result;

/// Each version is a list of files, in order: types and tables come before the signatures that use them.
const MIGRATIONS: &[&[&str]] = &[&[
    include_str!("sql/tables.sql"),
    include_str!("sql/bounds.sql"),
    include_str!("sql/errors.sql"),
    include_str!("sql/json.sql"),
    include_str!("sql/json_schema.sql"),
    include_str!("sql/events.sql"),
    include_str!("sql/settings.sql"),
    include_str!("sql/identity.sql"),
    include_str!("sql/protocol.sql"),
    include_str!("sql/endpoint_options.sql"),
    include_str!("sql/keys.sql"),
    include_str!("sql/endpoints.sql"),
    include_str!("sql/circuits.sql"),
    include_str!("sql/nodes.sql"),
    include_str!("sql/holders.sql"),
    include_str!("sql/send.sql"),
    include_str!("sql/queue_size.sql"),
    include_str!("sql/notify.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/settle.sql"),
    include_str!("sql/dlq.sql"),
    include_str!("sql/messages.sql"),
    include_str!("sql/archive.sql"),
    include_str!("sql/upkeep.sql"),
    include_str!("sql/inspect.sql"),
    include_str!("sql/metrics.sql"),
    include_str!("sql/listing.sql"),
    include_str!("sql/tokens.sql"),
    include_str!("sql/api.sql"),
    include_str!("sql/pubsub.sql"),
    include_str!("sql/replay.sql"),
    include_str!("sql/replaying.sql"),
    include_str!("sql/capture.sql"),
    include_str!("sql/rules.sql"),
    include_str!("sql/import.sql"),
    include_str!("sql/roles.sql"),
]];
pub(super) const CURRENT: i32 = MIGRATIONS.len() as i32;

/// A migration holds this advisory lock until it commits.
const LOCK: i64 = 0x706f_7374_7269_6465;

const STORE_NAME_LENGTH: usize = 8;

/// Everything that a migrated database depends on, as text.
pub(super) fn recipe() -> String {
    let files = with_constants(&format!("{MIGRATIONS:?}"));
    format!("{files} {:?} {}", settings::TABLE, known_keys::recipe())
}

/// Returns the statements that need a role with more rights; none when all is done.
pub(super) async fn migrate(client: &mut Client) -> Result<Vec<String>> {
    check_encoding(client).await?;
    let transaction = client.transaction().await.map_err(store_error)?;
    lock(&transaction).await?;
    let from = version(&transaction).await?;
    if from > CURRENT {
        // A newer build's schema keeps its version.
        return Ok(Vec::new());
    }
    // Functions call functions of later files.
    execute(&transaction, "SET LOCAL check_function_bodies = off; SET LOCAL client_min_messages = warning")
        .await?;
    if from == 0 {
        make_schema(&transaction).await?;
    }
    for file in MIGRATIONS.iter().skip(from as usize).flat_map(|files| files.iter()) {
        execute(&transaction, &with_constants(file)).await?;
    }
    if from == 0 {
        let begin = "INSERT INTO postrider._store (name, schema_version) VALUES ($1, $2)";
        transaction.execute(begin, &[&new_store_name(), &CURRENT]).await.map_err(store_error)?;
        execute(&transaction, "SELECT postrider._note_identity()").await?;
        execute(&transaction, "INSERT INTO postrider._gauge DEFAULT VALUES").await?;
    }
    let mark = "UPDATE postrider._store SET schema_version = $1";
    transaction.execute(mark, &[&CURRENT]).await.map_err(store_error)?;
    fill_known_settings(&transaction).await?;
    known_keys::fill(&transaction).await?;
    execute(&transaction, "SELECT postrider._refresh_limits()").await?;
    // Before any node settles: creating a month while a settle archives makes the settle retry.
    execute(&transaction, "SELECT postrider.maintain_archive_partitions()").await?;
    let left = transaction.query("SELECT postrider._install_roles()", &[]).await.map_err(store_error)?;
    transaction.commit().await.map_err(store_error)?;
    Ok(left.iter().map(|row| row.get(0)).collect())
}

/// Names the session that it waits for: a migration is short, but any role can hold the lock.
async fn lock(transaction: &Transaction<'_>) -> Result<()> {
    let at_once = transaction.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&LOCK]).await;
    if at_once.map_err(store_error)?.get(0) {
        return Ok(());
    }
    let holder = "SELECT a.usename::text, a.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                  WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint << 32 | l.objid::bigint = $1
                    AND l.objsubid = 1 AND a.datname = current_database()";
    if let Some(holder) = transaction.query_opt(holder, &[&LOCK]).await.map_err(store_error)? {
        let (role, process): (Option<&str>, i32) = (holder.get(0), holder.get(1));
        tracing::warn!(role, process, "another session holds the lock for migrations; waiting for it");
    }
    let wait = "SELECT pg_advisory_xact_lock($1)";
    transaction.execute(wait, &[&LOCK]).await.map(drop).map_err(store_error)
}

/// Messages may contain any UTF-8.
async fn check_encoding(client: &Client) -> Result<()> {
    let asked = "SELECT getdatabaseencoding()::text, current_database()::text, format('%I', current_database() || '_utf8')";
    let row = client.query_one(asked, &[]).await.map_err(store_error)?;
    match row.get(0) {
        "UTF8" => Ok(()),
        found => Err(StoreError::Unusable(format!(
            "database {name} has the encoding {found}, and Postrider needs UTF8; an encoding cannot be changed, so make \
             another database: CREATE DATABASE {new} ENCODING 'UTF8' TEMPLATE template0",
            name = row.get::<_, &str>(1),
            new = row.get::<_, &str>(2)
        ))),
    }
}

/// Refuses a schema that this build does not work with, and says what to do. The next version is accepted, so that nodes can be
/// upgraded one after the other.
pub(super) async fn check(client: &Client) -> Result<()> {
    let found = version(client).await?;
    if found == 0 {
        let what =
            "this database has no schema `postrider`; run `postrider migrate`, or start with --migrate";
        return Err(StoreError::Unusable(what.to_owned()));
    }
    if found < CURRENT {
        return Err(StoreError::Unusable(format!(
            "the store has schema version {found} and this build needs {CURRENT}; run `postrider migrate`, or start with --migrate"
        )));
    }
    if found > CURRENT + 1 {
        return Err(StoreError::Unusable(format!(
            "the store has schema version {found}, too new for this build, which knows {CURRENT} and runs on the next; use a newer postrider"
        )));
    }
    Ok(())
}

/// For code that writes into tables directly: exactly this build's version.
pub(super) async fn check_current(client: &Client) -> Result<()> {
    check(client).await?;
    match version(client).await? {
        CURRENT => Ok(()),
        found => Err(StoreError::Unusable(format!(
            "the store has schema version {found}, newer than this build's {CURRENT}; use a newer postrider"
        ))),
    }
}

/// 0 for a database without the schema.
pub(super) async fn version(client: &impl GenericClient) -> Result<i32> {
    let exists = "SELECT to_regclass('postrider._store') IS NOT NULL";
    if !client.query_one(exists, &[]).await.map_err(store_error)?.get::<_, bool>(0) {
        return Ok(0);
    }
    let version = client.query_opt("SELECT schema_version FROM postrider._store", &[]).await;
    Ok(version.map_err(store_error)?.map_or(0, |row| row.get(0)))
}

/// An administrator may have created the schema for a role that may not.
async fn make_schema(transaction: &Transaction<'_>) -> Result<()> {
    let exists = "SELECT to_regnamespace('postrider') IS NOT NULL";
    if transaction.query_one(exists, &[]).await.map_err(store_error)?.get(0) {
        return Ok(());
    }
    execute(transaction, "CREATE SCHEMA postrider").await
}

/// SQL checks settings by the program's table.
async fn fill_known_settings(transaction: &Transaction<'_>) -> Result<()> {
    let fill = "INSERT INTO postrider._known_settings (name, default_value, min, max, choices, unit, meaning,
                  position)
                VALUES ($1, $2, $3::bigint, $4::bigint, $5, $6, $7, $8)
                ON CONFLICT (name) DO UPDATE SET default_value = excluded.default_value,
                  position = excluded.position,
                  min = excluded.min, max = excluded.max, choices = excluded.choices,
                  unit = excluded.unit, meaning = excluded.meaning";
    for (setting, position) in settings::TABLE.iter().zip(1i32..) {
        let (min, max, choices) = match &setting.kind {
            SettingKind::Whole { min, max } => (Some(*min as i64), Some(*max as i64), None),
            SettingKind::Choice(choices) => (None, None, Some(*choices)),
        };
        transaction
            .execute(
                fill,
                &[
                    &setting.name,
                    &setting.default,
                    &min,
                    &max,
                    &choices,
                    &setting.unit,
                    &setting.meaning,
                    &position,
                ],
            )
            .await
            .map_err(store_error)?;
    }
    Ok(())
}

async fn execute(transaction: &Transaction<'_>, sql: &str) -> Result<()> {
    transaction.batch_execute(sql).await.map_err(store_error)
}

pub(super) async fn name(client: &Client) -> Result<String> {
    let row = client.query_one("SELECT name FROM postrider._store", &[]).await.map_err(store_error)?;
    Ok(row.get(0))
}

pub(super) async fn renew_name(client: &Client) -> Result<String> {
    // Running nodes keep the old name, and every attempt of a message carries the same id.
    client.execute("SELECT postrider._refuse_beside_nodes('try again')", &[]).await.map_err(store_error)?;
    let renew = "UPDATE postrider._store SET name = $1 RETURNING name";
    let row = client.query_one(renew, &[&new_store_name()]).await.map_err(store_error)?;
    client.execute("SELECT postrider._note_identity()", &[]).await.map_err(store_error)?;
    Ok(row.get(0))
}

/// A copy may be all that is left of a store, so a node works on it, with a warning.
pub(super) async fn warn_of_copy(client: &Client) -> Result<()> {
    let copied = client.query_one("SELECT postrider._copied()", &[]).await.map_err(store_error)?;
    if let Some(sentence) = copied.get::<_, Option<&str>>(0) {
        tracing::warn!("{sentence}");
    }
    Ok(())
}

fn new_store_name() -> String {
    const ALPHABET: &[u8] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut dice = rand::rng();
    (0..STORE_NAME_LENGTH).map(|_| char::from(ALPHABET[dice.random_range(0..ALPHABET.len())])).collect()
}
