//! Postrider carries messages out of a database and gets them delivered.
//!
//! One message walks the code in one direction: `send` → `claim` → `attempt` → `settle` → archive.
//! The modules below are in reading order: first the pure decisions, then the store, the sinks, and the
//! engine that ties them together.

pub mod json;
pub mod message;
pub mod endpoint;
pub mod protocol;
pub mod settings;
pub mod retry;
pub mod verdict;
pub mod breaker;
pub mod rate;
pub mod send;
pub mod event;
pub mod pubsub;
pub mod trace;
pub mod outcome;
pub mod clock;
pub mod error;
pub mod store;
pub mod sink;
pub mod engine;

pub use endpoint::{Endpoint, NewEndpoint};
pub use engine::{Engine, EngineOptions};
pub use error::{Invalid, StoreError};
pub use event::{EventType, NewEvent, NewEventType, NewSubscription, Subscribed, Subscription};
pub use json::Json;
pub use message::{Message, MessageId, NewMessage, Sent, State};
pub use store::postgres::PostgresStore;
pub use store::sqlite::SqliteStore;
pub use store::{Operate, PubSub, Store};

/// The SQLite that the store is built with, so that callers can share a transaction with it.
pub use rusqlite;

/// The driver that the PostgreSQL store is built with, for the same reason.
pub use tokio_postgres;

#[cfg(feature = "sqlx")]
pub use sqlx;

/// The examples of the README and of docs/ are doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "sqlx"))]
#[doc = include_str!("../../../docs/postgresql.md")]
struct PostgresqlPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/pubsub.md")]
struct PubsubPage;
