mod authority;
mod event_cases;
mod log_lines;
mod domain;
mod store;
mod sinks;
mod engine;
