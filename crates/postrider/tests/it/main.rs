mod authority;
mod event_cases;
mod domain;
mod store;
mod sinks;
mod engine;
