mod authority;
mod domain;
mod store;
mod sinks;
mod engine;
