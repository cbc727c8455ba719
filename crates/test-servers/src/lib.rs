//! Real servers for tests: private ones, on loopback and free ports, each with a folder of its own below the
//! target folder. They end with whoever started them, however that ends.

mod ground;
mod process;
mod port;
pub mod postgres;

#[cfg(feature = "databases")]
mod database;

pub use postgres::{Binaries, Postgres};

#[cfg(feature = "databases")]
pub use database::Database;
