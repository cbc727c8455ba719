mod domain;
mod store;
mod sinks;
