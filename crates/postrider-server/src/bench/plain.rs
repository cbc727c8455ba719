//! The yardstick of durability: plain SQLite, inserting the columns of a queued message into a table
//! that has nothing but a primary key.

use std::path::Path;
use std::time::{Duration, Instant};

use postrider::rusqlite::types::Value;
use postrider::rusqlite::{Connection, OpenFlags, params_from_iter};

use crate::failure::CommandError;
use crate::store_url::StoreUrl;

/// Where the store keeps queued messages.
const QUEUE: &str = "_postrider_queue";

pub(super) struct Plain {
    connection: Connection,
    insert: String,
    /// One real row, without its id.
    row: Vec<Value>,
}

impl Plain {
    /// Copies columns and values from one message that is queued in `store`.
    pub(super) fn like(store: &StoreUrl, plain: &StoreUrl) -> Result<Self, CommandError> {
        let (Some(store), Some(file)) = (store.path(), plain.path()) else {
            return Err(CommandError::usage("this scenario compares with plain SQLite; leave out --store"));
        };
        Self::open(store, file)
            .map_err(|error| CommandError::failed(format!("the plain SQLite yardstick: {error}")))
    }

    fn open(store: &Path, file: &Path) -> postrider::rusqlite::Result<Self> {
        let real = Connection::open_with_flags(store, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let mut query = real.prepare(&format!("SELECT * FROM {QUEUE} LIMIT 1"))?;
        let names: Vec<String> = query.column_names().skip(1).map(str::to_owned).collect();
        let row = query.query_row([], |row| (1..=names.len()).map(|at| row.get(at)).collect())?;

        let connection = Connection::open(file)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let columns = names.join(", ");
        connection.execute_batch(&format!("CREATE TABLE plain (id INTEGER PRIMARY KEY, {columns})"))?;
        let marks = vec!["?"; names.len()].join(", ");
        let insert = format!("INSERT INTO plain ({columns}) VALUES ({marks})");
        Ok(Self { connection, insert, row })
    }

    /// One durable transaction with this many rows; how long it took.
    pub(super) fn insert(&mut self, rows: u32) -> Result<Duration, CommandError> {
        let began = Instant::now();
        self.transaction(rows)
            .map_err(|error| CommandError::failed(format!("the plain SQLite yardstick: {error}")))?;
        Ok(began.elapsed())
    }

    fn transaction(&mut self, rows: u32) -> postrider::rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(&self.insert)?;
            for _ in 0..rows {
                insert.execute(params_from_iter(&self.row))?;
            }
        }
        transaction.commit()
    }
}
