//! Real servers for tests: private ones, on loopback and free ports, each with its own folder below the
//! target folder. They end with the process that started them, however that ends.

mod ground;
mod process;
mod port;
pub mod brokers;
pub mod node_sqlite;
pub mod old_sqlite;
pub mod postgres;
pub mod pgbouncer;
pub mod proxy;
pub mod schemathesis;

#[cfg(feature = "databases")]
mod database;
#[cfg(feature = "databases")]
mod clock;

pub use brokers::{Broker, BrokerKind, BrokerListeners};
pub use pgbouncer::PgBouncer;
pub use postgres::{Binaries, Postgres};
pub use proxy::Proxy;

#[cfg(feature = "databases")]
pub use clock::StandingClock;
#[cfg(feature = "databases")]
pub use database::{Address, Database};
