//! `postrider status`: what is queued, and how the endpoints are.

use jiff::Timestamp;
use postrider::store::{EndpointStatus, NodeLimits, StoreStatus};

use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::view;

pub(super) async fn run(place: &StoreOrNode, output: Output) -> Result<(), CommandError> {
    let status = place.open_tool().await?.status().await?;
    output.document(
        || serde_json::to_string(&status).expect("figures become JSON"),
        || text(place, &status, output, Timestamp::now()),
    )
}

fn text(place: &StoreOrNode, status: &StoreStatus, output: Output, now: Timestamp) -> String {
    let mut lines = vec![format!(
        "{place}: {} pending, {} processing, {} dead{}",
        status.pending,
        status.processing,
        status.dead,
        status
            .oldest_pending
            .map_or(String::new(), |at| format!("; the oldest waits {}", view::age(at, now))),
    )];
    if let Some(at) = status.oldest_stored_event {
        let waiting = status.stored_events;
        lines.push(format!(
            "stored events that wait to become messages: {waiting}; the oldest waits {}",
            view::age(at, now)
        ));
    }
    lines.extend(status.limits.map(|limits| limits_line(&limits)));
    if let Some(reason) = &status.paused {
        lines.push(format!("everything is paused: {reason}"));
    } else if status.live_nodes == 0 {
        lines.push("no node runs, so nothing is delivered; `postrider serve` starts one".to_owned());
    }
    if status.endpoints.is_empty() {
        lines.push("no endpoints yet; `postrider endpoint create` makes one".to_owned());
    } else {
        let rows = status.endpoints.iter().map(|endpoint| row(endpoint, now)).collect();
        lines.push(String::new());
        lines.push(
            output.table(&["endpoint", "state", "circuit", "pending", "processing", "dead", "oldest"], rows),
        );
    }
    lines.join("\n")
}

fn limits_line(limits: &NodeLimits) -> String {
    let open_files = limits.open_files.map_or("any number of".to_owned(), |count| count.to_string());
    format!(
        "this node: {open_files} open files at most; {} attempts in flight, {} idle connections, {} clients",
        limits.max_in_flight, limits.idle_connections_max, limits.client_connections_max
    )
}

fn row(endpoint: &EndpointStatus, now: Timestamp) -> Vec<String> {
    let state = match (endpoint.enabled, endpoint.paused) {
        (false, _) => "disabled",
        (true, true) => "paused",
        (true, false) => "enabled",
    };
    vec![
        endpoint.name.clone(),
        state.to_owned(),
        endpoint.circuit.as_str().to_owned(),
        endpoint.pending.to_string(),
        endpoint.processing.to_string(),
        endpoint.dead.to_string(),
        endpoint.oldest_pending.map_or("-".to_owned(), |at| view::age(at, now)),
    ]
}
