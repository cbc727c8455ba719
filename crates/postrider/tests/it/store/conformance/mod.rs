//! One promise per test, generic over the store. `conformance!` lists them all; a promise that is
//! missing there is dead code, and the build says so.

pub(crate) mod sending;
pub(crate) mod idempotency;
pub(crate) mod claiming;
pub(crate) mod direct;
pub(crate) mod settling;
pub(crate) mod fences;
pub(crate) mod leases;
pub(crate) mod suspects;
pub(crate) mod keys;
pub(crate) mod dead_letters;
pub(crate) mod retention;
pub(crate) mod backpressure;
pub(crate) mod endpoints;
pub(crate) mod circuits;
pub(crate) mod settings;
pub(crate) mod stories;
pub(crate) mod durability;
