//! One call for one statement: it is prepared once and kept, and its errors are the store's.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::store::Result;

pub(super) trait Query {
    fn run(&self, sql: &str, params: impl Params) -> Result<()>;
    /// How many rows it changed.
    fn run_counted(&self, sql: &str, params: impl Params) -> Result<usize>;
    /// The id of the inserted row.
    fn insert(&self, sql: &str, params: impl Params) -> Result<i64>;
    /// The first column of the one row.
    fn value<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<T>;
    /// The first column of every row.
    fn column<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<Vec<T>>;
    fn row<T>(&self, sql: &str, params: impl Params, read: impl ReadRow<T>) -> Result<T>;
    /// The first row, if any.
    fn find<T>(&self, sql: &str, params: impl Params, read: impl ReadRow<T>) -> Result<Option<T>>;
    fn rows<T>(&self, sql: &str, params: impl Params, read: impl ReadRow<T>) -> Result<Vec<T>>;
}

pub(super) trait ReadRow<T>: FnMut(&Row<'_>) -> rusqlite::Result<T> {}
impl<T, F: FnMut(&Row<'_>) -> rusqlite::Result<T>> ReadRow<T> for F {}

impl Query for Connection {
    fn run(&self, sql: &str, params: impl Params) -> Result<()> {
        self.run_counted(sql, params).map(drop)
    }

    fn run_counted(&self, sql: &str, params: impl Params) -> Result<usize> {
        Ok(self.prepare_cached(sql)?.execute(params)?)
    }

    fn insert(&self, sql: &str, params: impl Params) -> Result<i64> {
        Ok(self.prepare_cached(sql)?.insert(params)?)
    }

    fn value<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<T> {
        self.row(sql, params, |row| row.get(0))
    }

    fn column<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<Vec<T>> {
        self.rows(sql, params, |row| row.get(0))
    }

    fn row<T>(&self, sql: &str, params: impl Params, read: impl ReadRow<T>) -> Result<T> {
        Ok(self.prepare_cached(sql)?.query_row(params, read)?)
    }

    fn find<T>(&self, sql: &str, params: impl Params, read: impl ReadRow<T>) -> Result<Option<T>> {
        Ok(self.prepare_cached(sql)?.query_row(params, read).optional()?)
    }

    fn rows<T>(&self, sql: &str, params: impl Params, read: impl ReadRow<T>) -> Result<Vec<T>> {
        Ok(self.prepare_cached(sql)?.query_map(params, read)?.collect::<rusqlite::Result<_>>()?)
    }
}
