//! Real servers for tests: private ones, on loopback and free ports, each with a folder of its own below the
//! target folder. They end with whoever started them, however that ends.

mod ground;
mod process;
mod port;
pub mod node_sqlite;
pub mod old_sqlite;
pub mod postgres;
pub mod pgbouncer;
pub mod schemathesis;

#[cfg(feature = "databases")]
mod database;
#[cfg(feature = "databases")]
mod clock;

pub use pgbouncer::PgBouncer;
pub use postgres::{Binaries, Postgres};

#[cfg(feature = "databases")]
pub use clock::StandingClock;
#[cfg(feature = "databases")]
pub use database::{Address, Database};
