//! The database's clock, as this process knows it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use jiff::Timestamp;
use tokio_postgres::Client;

use super::errors::store_error;
use crate::clock::{Clock, truncated};
use crate::store::Result;

/// The database's clock at one moment of the monotonic clock, read again with every heartbeat. Steps of this machine's wall clock
/// change nothing.
#[derive(Debug)]
pub(super) struct ClockReading {
    at: Instant,
    said: Timestamp,
}

/// The database judges by its own clock; this copy only decides when to ask.
pub(super) enum StoreClock {
    Database(Mutex<ClockReading>),
    /// A test's clock, which is moved together with the database's.
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
                let reading = reading.lock().expect("no panic while reading the clock");
                truncated(reading.said + reading.at.elapsed())
            }
        }
    }

    pub(super) async fn set(&self, client: &Client) -> Result<()> {
        if let Self::Database(reading) = self {
            let new = read(client).await?;
            *reading.lock().expect("no panic while reading the clock") = new;
        }
        Ok(())
    }
}

/// The answer is taken for the middle of the round trip.
async fn read(client: &Client) -> Result<ClockReading> {
    let asked = Instant::now();
    let row = client.query_one("SELECT postrider._now()", &[]).await.map_err(store_error)?;
    let at = asked + asked.elapsed() / 2;
    Ok(ClockReading { at, said: row.get(0) })
}
