//! The database's clock, as this process knows it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use jiff::Timestamp;
use tokio_postgres::Client;

use super::errors::store_error;
use crate::clock::{Clock, truncated};
use crate::store::Result;

/// What the database's clock said at some moment of our own; asked again with every heartbeat. The monotonic
/// clock carries it on, so a step of this machine's wall clock changes nothing.
#[derive(Debug)]
pub(super) struct Reading {
    at: Instant,
    said: Timestamp,
}

/// In the database every judgement is made by its own clock; this one only says when to ask.
pub(super) enum StoreClock {
    Database(Mutex<Reading>),
    /// A test's, moved together with the database's.
    Given(Arc<dyn Clock>),
}

impl StoreClock {
    pub(super) async fn new(given: Option<Arc<dyn Clock>>, client: &Client) -> Result<Self> {
        match given {
            Some(clock) => Ok(Self::Given(clock)),
            None => Ok(Self::Database(Mutex::new(read(client).await?))),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::Given(clock) => truncated(clock.now()),
            Self::Database(reading) => {
                let reading = reading.lock().expect("nobody panics while reading the clock");
                truncated(reading.said + reading.at.elapsed())
            }
        }
    }

    pub(super) async fn set(&self, client: &Client) -> Result<()> {
        if let Self::Database(reading) = self {
            let new = read(client).await?;
            *reading.lock().expect("nobody panics while reading the clock") = new;
        }
        Ok(())
    }
}

/// The answer stands for the middle of the round trip.
async fn read(client: &Client) -> Result<Reading> {
    let asked = Instant::now();
    let row = client.query_one("SELECT postrider._now()", &[]).await.map_err(store_error)?;
    let at = asked + asked.elapsed() / 2;
    Ok(Reading { at, said: row.get(0) })
}
