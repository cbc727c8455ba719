//! The binary as people meet it: over HTTP, on the command line, killed and started again.

mod any_language;
mod api;
mod batch;
mod both_ways;
mod chaos;
mod chaos_postgres;
mod cli;
mod commands;
mod crowded;
mod delivery;
mod demo;
mod description;
mod docs;
mod endpoint_test;
#[path = "../../../postrider/tests/it/event_cases.rs"]
mod event_cases;
mod events;
mod full_disk;
mod http;
mod json;
mod letters;
mod logs;
mod malformed;
mod metrics;
mod moving;
mod node;
mod poison;
mod receiver;
mod routes;
mod secrets;
mod seed;
mod serve;
mod sql_load;
mod tailing;
mod terminal;
mod through_a_node;
mod tokens;
mod top;
mod traces;
mod tutorial;

use std::time::{Duration, Instant};

/// Asks again and again until there is an answer; a test that waits too long fails with `what`.
fn eventually<T>(within: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
