//! What sinks promise: the same of every sink, and the rest of each.

mod support;
mod server;
mod raw;
mod config;
mod redaction;
mod signature;
mod gate;
mod conformance;
mod http_request;
mod http_answer;
mod http_nasty;
mod http_redirect;
mod http_tls;
mod http2;
mod cloudevents;
mod file;
