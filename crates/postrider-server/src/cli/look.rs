//! One look at a node: what its store holds, and how many attempts have ended on it.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use serde::Deserialize;

use crate::failure::Failure;
use crate::remote::Remote;

const ATTEMPTS: &str = "postrider_attempts_total{";

pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) status: Status,
    /// Since the node started, by endpoint.
    pub(super) attempts: BTreeMap<String, Attempts>,
}

#[derive(Deserialize)]
pub(super) struct Status {
    pub(super) paused: Option<String>,
    pub(super) pending: u64,
    pub(super) processing: u64,
    pub(super) dead: u64,
    pub(super) oldest_pending: Option<Timestamp>,
    pub(super) endpoints: Vec<EndpointLook>,
}

#[derive(Deserialize)]
pub(super) struct EndpointLook {
    pub(super) name: String,
    pub(super) enabled: bool,
    pub(super) paused: bool,
    pub(super) circuit: String,
    pub(super) pending: u64,
    pub(super) processing: u64,
    pub(super) dead: u64,
    pub(super) oldest_pending: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Attempts {
    pub(super) delivered: f64,
    pub(super) failed: f64,
}

impl Look {
    pub(super) async fn take(remote: &Remote) -> Result<Self, Failure> {
        let status = remote.read("/v1/status").await?;
        let metrics = remote.read("/metrics").await?;
        let status = serde_json::from_slice(&status)
            .map_err(|error| Failure::failed(format!("{remote} does not answer as a node does: {error}")))?;
        Ok(Self { at: Instant::now(), status, attempts: attempts(&String::from_utf8_lossy(&metrics)) })
    }
}

fn attempts(page: &str) -> BTreeMap<String, Attempts> {
    let mut found: BTreeMap<String, Attempts> = BTreeMap::new();
    for line in page.lines().filter_map(|line| line.strip_prefix(ATTEMPTS)) {
        let Some((labels, value)) = line.rsplit_once("} ") else { continue };
        let (Some(endpoint), Ok(value)) = (label(labels, "endpoint"), value.trim().parse::<f64>()) else {
            continue;
        };
        let counted = found.entry(endpoint.to_owned()).or_default();
        match label(labels, "outcome") {
            Some("delivered") => counted.delivered += value,
            _ => counted.failed += value,
        }
    }
    found
}

/// Names of endpoints have no quotes in them.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_added_up_for_each_endpoint() {
        let page = "\
# TYPE postrider_attempts_total counter
postrider_attempts_total{endpoint=\"shop\",outcome=\"delivered\",class=\"\"} 5
postrider_attempts_total{endpoint=\"shop\",outcome=\"failed\",class=\"retryable\"} 2
postrider_attempts_total{endpoint=\"shop\",outcome=\"failed\",class=\"permanent\"} 1
postrider_in_flight 3
";
        let expected = BTreeMap::from([("shop".to_owned(), Attempts { delivered: 5.0, failed: 3.0 })]);
        assert_eq!(attempts(page), expected);
    }
}
