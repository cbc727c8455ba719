//! Postrider delivers messages out of a database. An application commits a message together with its own data; an engine
//! in the same process, or in another one, delivers it, retries what fails and keeps a record of everything.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use postrider::rusqlite::{Connection, TransactionBehavior};
//! use postrider::store::sqlite::{SqliteOptions, send_in};
//! use postrider::{Engine, EngineOptions, NewEndpoint, NewMessage, Operate, SqliteStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(SqliteStore::open(SqliteOptions::node("shop.db"))?);
//! let engine = Engine::start(store.clone(), EngineOptions::default()).await?;
//! let config = serde_json::from_str(r#"{"url": "https://example.org/hook"}"#)?;
//! let shop = NewEndpoint { name: "shop".into(), protocol: "http".into(), config, ..NewEndpoint::default() };
//! store.create_endpoint(shop).await?;
//!
//! // The application's own connection and transaction: its data and the message are committed together.
//! let mut connection = Connection::open("shop.db")?;
//! let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! transaction.execute("INSERT INTO orders (total) VALUES (4200)", [])?;
//! send_in(&transaction, &NewMessage::new("shop", r#"{"total": 4200}"#))?;
//! transaction.commit()?;
//!
//! engine.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! - To embed: [`SqliteStore`] or [`PostgresStore`] to open a store, [`Operate`] to send and to manage endpoints, [`Engine`] to
//!   deliver. [`store::sqlite::send_in`] and [`store::postgres::send_in`] send inside the caller's transaction.
//! - What goes in and out: [`message`], [`endpoint`], [`event`], [`settings`], [`error`], and the records in [`store`].
//! - How it decides, as pure functions: [`retry`], [`verdict`], [`breaker`], [`rate`], [`pubsub`].
//! - Parts that the server `postrider` shares with this crate: [`protocol`], [`sink`], [`send`], [`json`], [`trace`],
//!   [`outcome_log`], [`clock`].
//!
//! The modules are listed in reading order. `ARCHITECTURE.md` walks through them with one message.

// The nouns.
pub mod message;
pub mod endpoint;
pub mod event;
pub mod settings;
pub mod error;
pub mod protocol;
// The decisions. Pure: time and dice are passed in.
pub mod retry;
pub mod verdict;
pub mod breaker;
pub mod rate;
pub mod send;
pub mod pubsub;
// The store, the sinks, and the engine between them.
pub mod store;
pub mod sink;
mod net;
pub mod engine;
// What these share.
pub mod json;
pub mod trace;
pub mod outcome_log;
pub mod clock;

pub use endpoint::{Endpoint, NewEndpoint};
pub use engine::{Engine, EngineOptions};
pub use error::{Invalid, StoreError};
pub use event::{EventType, NewEvent, NewEventType, NewSubscription, Subscribed, Subscription};
pub use json::Json;
pub use message::{Message, MessageId, NewMessage, Sent, State};
pub use store::postgres::PostgresStore;
pub use store::sqlite::SqliteStore;
pub use store::{Operate, PubSub, Store};

/// The SQLite driver of the store, for transactions that the caller shares with it.
pub use rusqlite;

/// The PostgreSQL driver of the store, for transactions that the caller shares with it.
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
