//! Every metric there is. docs/operations.md has the same table, and a test compares them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// Its samples end in `_total`, its name here does not.
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) help: &'static str,
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricKind::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricKind::Counter, help }
}

const fn histogram(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricKind::Histogram, help }
}

/// In the order of the page.
pub(crate) const FAMILIES: &[Family] = &[
    gauge("postrider_store_up", "1 when the store answered this scrape, else 0 and its figures are missing."),
    gauge("postrider_messages", "Messages in the store that are not finished, by state."),
    gauge("postrider_oldest_pending_age_seconds", "Time since the longest-waiting message became due."),
    gauge("postrider_stored_events", "Events stored by SQL that have not become messages yet."),
    gauge("postrider_oldest_stored_event_age_seconds", "How long the next stored event has waited."),
    gauge("postrider_paused", "1 while everything is paused."),
    gauge("postrider_endpoints", "Endpoints, by whether they are enabled, paused or disabled."),
    gauge("postrider_nodes", "Nodes that hold a lease on the store."),
    gauge("postrider_retention_lag_seconds", "How long ago retention should have removed the oldest row."),
    counter("postrider_evictions", "Dead letters that a retention rule removed."),
    counter(
        "postrider_publish_skipped",
        "Messages that publish did not make because their endpoint was disabled.",
    ),
    counter("postrider_capture_skipped", "Captured changes that were skipped because the send was refused."),
    counter(
        "postrider_backpressure_rejections",
        "Sends, redrives and replays of one message through this node that a full queue refused.",
    ),
    gauge("postrider_endpoint_messages", "Messages of an endpoint that are not finished, by state."),
    gauge(
        "postrider_endpoint_oldest_pending_age_seconds",
        "Time since the endpoint's longest-waiting message became due.",
    ),
    gauge("postrider_endpoint_circuit_state", "0 closed, 1 half-open, 2 open."),
    gauge("postrider_endpoint_mode", "0 cold, 1 hot."),
    counter("postrider_attempts", "Attempts that ended on this node, by outcome and class of failure."),
    counter(
        "postrider_attempts_ambiguous",
        "Attempts of this node that failed without an answer, so that the receiver may have the message.",
    ),
    histogram("postrider_attempt_duration_seconds", "How long attempts of this node took."),
    histogram(
        "postrider_created_to_delivered_seconds",
        "From the creation of a message to its delivery by this node.",
    ),
    gauge("postrider_in_flight", "Claims of this node that run or are about to."),
    gauge("postrider_in_flight_max", "How many claims this node may hold at once."),
    counter(
        "postrider_local_shortages",
        "Attempts that this node could not make because it was short of something; they do not count.",
    ),
    gauge("postrider_endpoint_info", "Always 1; the endpoint's protocol is in its label."),
    gauge(
        "postrider_endpoint_connected",
        "1 while this node is connected to the endpoint's broker, else 0; only of protocols that keep a connection.",
    ),
    gauge("postrider_endpoint_in_flight", "Claims of this node for an endpoint that run or are about to."),
    gauge("postrider_build_info", "Always 1; the version is in its label."),
    counter("process_cpu_seconds", "Processor time of this process."),
    gauge("process_resident_memory_bytes", "Memory of this process that is in RAM."),
    gauge("process_virtual_memory_bytes", "Address space of this process."),
    gauge("process_open_fds", "Files and connections that this process has open."),
    gauge("process_max_fds", "How many files and connections this process may have open."),
    gauge("process_start_time_seconds", "When this process started, in seconds since 1970."),
];
