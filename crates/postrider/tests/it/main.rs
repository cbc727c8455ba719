mod sinks;
