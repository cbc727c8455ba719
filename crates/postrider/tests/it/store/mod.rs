//! What every store promises: one suite, and one model driven beside the store.

mod world;
mod shop;
mod agreement;
mod ways_in;
mod any_language;
mod conformance;
mod model;
mod sqlite;
mod postgres;
mod fast;
mod moves;
mod damage;
mod setback;
mod moving;
mod outbox;
mod faults;
mod upkeep;
