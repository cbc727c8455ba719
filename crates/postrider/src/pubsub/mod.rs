//! Pure functions of publish/subscribe: patterns, filters, templates and schemas. PostgreSQL has the same in
//! `store/postgres/sql/` (`pubsub.sql`, `json_schema.sql`); tests compare the two.

pub use filter::contains;
pub use pattern::{check_event_name, check_pattern, is_whole_name, patterns_for};
pub use schema::{broken_schema, check_schema};
pub use template::filled;

mod pattern;
mod filter;
mod template;
mod schema;
