//! Moves what is queued to the archive and the DLQ with a few statements: delivering as much would take longer than all
//! that is to be measured.

use jiff::Timestamp;
use postrider::MessageId;
use postrider::rusqlite::{self, Connection, params};

use crate::bench::postgres::{connect_to, failed};
use crate::failure::CommandError;
use crate::store_url::StoreUrl;

/// Everything up to `last`, as if it had been made since the beginning of the month; one in a hundred died.
pub(super) async fn retire(store: &StoreUrl, last: MessageId) -> Result<(), CommandError> {
    match store.path() {
        Some(file) => {
            let mut connection = Connection::open(file).map_err(broken)?;
            retire_on_sqlite(&mut connection, last).map_err(broken)
        }
        None => {
            let sql = include_str!("retire_postgres.sql").replace("{last}", &last.0.to_string());
            connect_to(store).await?.batch_execute(&sql).await.map_err(failed)
        }
    }
}

/// What a server does by itself in time.
pub(super) async fn tidy(store: &StoreUrl) -> Result<(), CommandError> {
    match store.path() {
        Some(_) => Ok(()),
        None => connect_to(store).await?.batch_execute("VACUUM ANALYZE").await.map_err(failed),
    }
}

fn retire_on_sqlite(connection: &mut Connection, last: MessageId) -> rusqlite::Result<()> {
    let month: String = connection.query_row(
        "SELECT max(name) FROM sqlite_master WHERE type = 'table' AND name GLOB '_postrider_archive_[0-9]*'",
        [],
        |row| row.get(0),
    )?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let now = Timestamp::now().as_microsecond();
    transaction.execute_batch(include_str!("retire_dead_sqlite.sql"))?;
    transaction.execute(
        &include_str!("retire_finished_sqlite.sql").replace("{month}", &month),
        params![last.0, now],
    )?;
    transaction.execute_batch(include_str!("retire_rest_sqlite.sql"))?;
    transaction.commit()
}

fn broken(error: rusqlite::Error) -> CommandError {
    CommandError::failed(format!("cannot fill the store: {error}"))
}
