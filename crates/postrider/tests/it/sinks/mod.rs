//! What sinks promise: the same of every sink, and the rest of each.

mod support;
mod server;
mod conformance;
