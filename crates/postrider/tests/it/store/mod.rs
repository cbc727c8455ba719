//! What every store promises: one suite, and one model driven beside the store.

mod world;
mod conformance;
mod model;
mod sqlite;
mod outbox;
mod faults;
mod upkeep;
