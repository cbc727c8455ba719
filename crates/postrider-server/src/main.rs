//! The binary `postrider`: a node with its HTTP API, and the commands around it.

use std::process::ExitCode;

mod api;
mod batch;
mod bench;
mod cli;
mod config;
mod cursor;
mod demo;
mod envelope;
mod failure;
mod fields;
mod https;
mod logging;
mod metrics;
mod open_files;
mod output;
mod panics;
mod place;
mod remote;
mod send_values;
mod serve;
mod postgres_url;
mod store_url;
mod traces;
mod view;

/// Messages are many small allocations made on one thread and freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
