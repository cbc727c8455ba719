//! One look at a node: what its store holds, and what it counted since it started.

use std::collections::BTreeMap;
use std::time::Instant;

use postrider::Operate;
use postrider::store::StoreStatus;

use crate::failure::CommandError;
use crate::remote::Remote;

const ATTEMPTS: &str = "postrider_attempts_total";
const DELAYS: &str = "postrider_created_to_delivered_seconds_bucket";

pub(super) struct TopSample {
    pub(super) at: Instant,
    pub(super) status: StoreStatus,
    /// Since the node started, by endpoint; those that share a label because there are many count under that.
    pub(super) counted: BTreeMap<String, EndpointCounts>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EndpointCounts {
    pub(super) delivered: f64,
    pub(super) failed: f64,
    /// How many were delivered within this many seconds of their creation, by rising bound.
    pub(super) within: Vec<(f64, f64)>,
}

impl TopSample {
    pub(super) async fn take(remote: &Remote) -> Result<Self, CommandError> {
        let status = remote.status().await?;
        let metrics = remote.read("/metrics").await?;
        Ok(Self { at: Instant::now(), status, counted: counted(&String::from_utf8_lossy(&metrics)) })
    }
}

fn counted(page: &str) -> BTreeMap<String, EndpointCounts> {
    let mut found: BTreeMap<String, EndpointCounts> = BTreeMap::new();
    for (name, labels, value) in page.lines().filter_map(sample) {
        let Some(endpoint) = label(labels, "endpoint").filter(|_| [ATTEMPTS, DELAYS].contains(&name)) else {
            continue;
        };
        let counted = found.entry(endpoint.to_owned()).or_default();
        match (name, label(labels, "outcome"), label(labels, "le")) {
            (DELAYS, _, bound) => counted.within.extend(bound.and_then(|b| Some((b.parse().ok()?, value)))),
            (_, Some("delivered"), _) => counted.delivered += value,
            _ => counted.failed += value,
        }
    }
    found
}

/// `name{labels} value`
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    Some((name, labels, value.trim().parse().ok()?))
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
    fn what_a_node_counted_is_added_up_for_each_endpoint() {
        let page = "\
# TYPE postrider_attempts_total counter
postrider_attempts_total{endpoint=\"shop\",outcome=\"delivered\",class=\"none\"} 5
postrider_attempts_total{endpoint=\"shop\",outcome=\"failed\",class=\"retryable\"} 2
postrider_attempts_total{endpoint=\"shop\",outcome=\"failed\",class=\"permanent\"} 1
postrider_in_flight 3
postrider_created_to_delivered_seconds_count{endpoint=\"shop\"} 5
postrider_created_to_delivered_seconds_bucket{le=\"0.01\",endpoint=\"shop\"} 4
postrider_created_to_delivered_seconds_bucket{le=\"+Inf\",endpoint=\"shop\"} 5
";
        let shop =
            EndpointCounts { delivered: 5.0, failed: 3.0, within: vec![(0.01, 4.0), (f64::INFINITY, 5.0)] };
        assert_eq!(counted(page), BTreeMap::from([("shop".to_owned(), shop)]));
    }
}
