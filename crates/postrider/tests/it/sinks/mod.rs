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
mod http_oauth2;
mod http_sigv4;
mod tunnels;
mod http_proxy;
mod http2;
mod http2_broken;
mod cloudevents;
mod file;
