//! A SQLite store that moves to PostgreSQL: all of it, or nothing.

use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::store::moving::{MoveError, Moved};
use postrider::{PostgresStore, SqliteStore, Store};

use super::postgres::Postgres;
use super::sqlite::Sqlite;
use super::world::{Harness, World};

mod picture;
mod state;
mod model;
mod refusals;
mod closing;
mod nodes;
mod unreadable;

/// What an export wrote.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn export(store: &SqliteStore) -> Vec<u8> {
    let buffer = Buffer::default();
    store.export(buffer.clone()).await.unwrap();
    std::mem::take(&mut *buffer.0.lock().unwrap())
}

async fn import(postgres: &Postgres, stream: Vec<u8>) -> Result<Moved, MoveError> {
    PostgresStore::import(&postgres.database.url(), Cursor::new(stream)).await
}

/// Closes the store and takes all of it.
async fn taken(sqlite: &Sqlite) -> Vec<u8> {
    let store = sqlite.open().await;
    store.close_for_export("a test").await.unwrap();
    export(&store).await
}

/// An empty one, where it is as late as there.
async fn destination(world: &World<Sqlite>) -> Postgres {
    let postgres = Postgres::new().await;
    let late = world.now().duration_since(postgres.open().await.now());
    postgres.advance(Duration::try_from(late).unwrap());
    postgres
}
