//! A database whose time stands still until it is moved.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Client;

use crate::database::Address;

/// The hand on the clock of one database. Moving it blocks, so that tests need not be async for it; it has
/// its own thread and connection.
pub struct StandingClock {
    moves: mpsc::Sender<Move>,
}

struct Move {
    by: Duration,
    done: mpsc::Sender<Timestamp>,
}

impl StandingClock {
    /// Replaces `postrider._now()` in a migrated database. Its copies have the replaced one too, so this
    /// belongs into `prepare` of [`crate::Database::copied`].
    pub async fn install(database: &Address, start: Timestamp) {
        let client = database.connect_as_superuser().await;
        client.batch_execute(include_str!("clock.sql")).await.expect("a database with a clock");
        client.execute("UPDATE public.test_clock SET now = $1", &[&start]).await.expect("a clock");
    }

    /// Where it is installed.
    pub fn of(database: &Address) -> Self {
        let (moves, asked) = mpsc::channel();
        let database = database.clone();
        thread::spawn(move || serve(&database, asked));
        Self { moves }
    }

    /// What the clock shows then.
    pub fn advance(&self, by: Duration) -> Timestamp {
        let (done, moved) = mpsc::channel();
        self.moves.send(Move { by, done }).expect("a clock lives as long as its database");
        moved.recv().expect("a clock lives as long as its database")
    }
}

fn serve(database: &Address, asked: mpsc::Receiver<Move>) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut client = None;
    for Move { by, done } in asked {
        let client = usable(&mut client, &runtime, database);
        let micros = i64::try_from(by.as_micros()).expect("not that far ahead");
        let update = "UPDATE public.test_clock SET now = now + $1 * interval '1 microsecond' RETURNING now";
        let row =
            runtime.block_on(client.query_one(update, &[&(micros as f64)])).expect("an installed clock");
        let _ = done.send(row.get(0));
    }
}

/// The server may have been restarted since.
fn usable<'a>(client: &'a mut Option<Client>, runtime: &Runtime, database: &Address) -> &'a Client {
    let open = client.take().filter(|client| !client.is_closed());
    client.insert(open.unwrap_or_else(|| runtime.block_on(database.connect_as_superuser())))
}
