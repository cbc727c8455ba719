//! What the last few looks at a node say together: how much goes through it a second, and how fast.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use postrider::store::StoreStatus;
use postrider::store::figures::OTHERS;

use super::look::{EndpointCounts, TopSample};

/// Rates are over this long: steady enough to read, and soon right after a change.
const WINDOW: Duration = Duration::from_secs(5);

pub(super) struct Picture {
    pub(super) address: String,
    /// Oldest first, never empty.
    looks: VecDeque<TopSample>,
    /// Why the node could not be asked just now.
    pub(super) trouble: Option<String>,
}

/// What went through an endpoint, or through all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flow {
    pub(super) delivered_per_second: f64,
    pub(super) failed_per_second: f64,
    /// Within how many seconds of their creation half of them and 99 of 100 were delivered.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

impl Picture {
    pub(super) fn new(address: String, first: TopSample) -> Self {
        Self { address, looks: VecDeque::from([first]), trouble: None }
    }

    pub(super) fn take(&mut self, look: TopSample) {
        // A node that restarted counts from nothing again.
        if has_restarted(self.now(), &look) {
            self.looks.clear();
        }
        while self.looks.len() > 1 && look.at - self.looks[1].at >= WINDOW {
            self.looks.pop_front();
        }
        self.looks.push_back(look);
        self.trouble = None;
    }

    pub(super) fn miss(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    pub(super) fn status(&self) -> &StoreStatus {
        &self.now().status
    }

    /// When the node answered last.
    pub(super) fn at(&self) -> Instant {
        self.now().at
    }

    /// None where one look is not enough, and where many endpoints are counted as one.
    pub(super) fn flow(&self, endpoint: &str) -> Option<Flow> {
        let now = &self.now().counted;
        if !now.contains_key(endpoint) && now.contains_key(OTHERS) {
            return None;
        }
        self.difference(|look| look.counted.get(endpoint).cloned().unwrap_or_default())
    }

    pub(super) fn flow_of_all(&self) -> Option<Flow> {
        self.difference(|look| look.counted.values().fold(EndpointCounts::default(), add))
    }

    fn now(&self) -> &TopSample {
        self.looks.back().expect("there is a first look")
    }

    fn difference(&self, of: impl Fn(&TopSample) -> EndpointCounts) -> Option<Flow> {
        let (before, now) = (self.looks.front()?, self.now());
        let seconds = (now.at - before.at).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let (then, now) = (of(before), of(now));
        let within: Vec<(f64, f64)> = now
            .within
            .iter()
            .enumerate()
            .map(|(at, (bound, count))| (*bound, count - then.within.get(at).map_or(0.0, |then| then.1)))
            .collect();
        Some(Flow {
            delivered_per_second: (now.delivered - then.delivered) / seconds,
            failed_per_second: (now.failed - then.failed) / seconds,
            p50: quantile(&within, 0.5),
            p99: quantile(&within, 0.99),
        })
    }
}

fn has_restarted(before: &TopSample, now: &TopSample) -> bool {
    before.counted.iter().any(|(endpoint, then)| {
        now.counted.get(endpoint).is_none_or(|now| now.delivered < then.delivered || now.failed < then.failed)
    })
}

fn add(sum: EndpointCounts, one: &EndpointCounts) -> EndpointCounts {
    let within = match sum.within.is_empty() {
        true => one.within.clone(),
        false => sum.within.iter().zip(&one.within).map(|(sum, one)| (sum.0, sum.1 + one.1)).collect(),
    };
    EndpointCounts { delivered: sum.delivered + one.delivered, failed: sum.failed + one.failed, within }
}

/// Even within a bucket, as Prometheus assumes; past the last bound it is that bound.
fn quantile(within: &[(f64, f64)], share: f64) -> Option<f64> {
    let total = within.last()?.1;
    if total <= 0.0 {
        return None;
    }
    let wanted = total * share;
    let at = within.iter().position(|(_, count)| *count >= wanted)?;
    let (low, below) = at.checked_sub(1).map_or((0.0, 0.0), |before| within[before]);
    let (high, count) = within[at];
    Some(if high.is_finite() { low + (high - low) * (wanted - below) / (count - below) } else { low })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn look(at: Instant, counted: &[(&str, f64)]) -> TopSample {
        let status = json!({ "store": "x", "schema_version": 1, "live_nodes": 1, "pending": 0, "processing": 0, "dead": 0,
            "stored_events": 0, "endpoints": [] });
        let count = |delivered| EndpointCounts { delivered, ..EndpointCounts::default() };
        let counted = counted.iter().map(|(name, delivered)| ((*name).to_owned(), count(*delivered)));
        TopSample {
            at,
            status: serde_json::from_value(status).expect("a status"),
            counted: counted.collect(),
        }
    }

    fn delivered(flow: Option<Flow>) -> Option<f64> {
        flow.map(|flow| flow.delivered_per_second)
    }

    #[test]
    fn rates_are_over_the_last_seconds() {
        let began = Instant::now();
        let mut picture = Picture::new(String::new(), look(began, &[("shop", 0.0)]));
        assert_eq!(picture.flow("shop"), None, "one look is not enough");
        for second in 1..=60_u32 {
            let count = if second <= 50 { 0.0 } else { f64::from(second - 50) * 10.0 };
            let at = began + Duration::from_secs(second.into());
            picture.take(look(at, &[("shop", count), ("till", 7.0)]));
        }
        assert_eq!(delivered(picture.flow("shop")), Some(10.0));
        assert_eq!(delivered(picture.flow("nobody")), Some(0.0));
        assert_eq!(delivered(picture.flow_of_all()), Some(10.0));
    }

    #[test]
    fn a_node_that_restarted_has_no_rate_yet() {
        let began = Instant::now();
        let mut picture = Picture::new(String::new(), look(began, &[("shop", 100.0)]));
        picture.take(look(began + Duration::from_secs(1), &[("shop", 3.0)]));
        assert_eq!((picture.flow("shop"), picture.flow_of_all()), (None, None));
        picture.take(look(began + Duration::from_secs(2), &[("shop", 5.0)]));
        assert_eq!(delivered(picture.flow("shop")), Some(2.0));
    }

    #[test]
    fn endpoints_that_are_counted_as_one_have_no_rate_of_their_own() {
        let began = Instant::now();
        let counted = [("shop", 1.0), (OTHERS, 1.0)];
        let mut picture = Picture::new(String::new(), look(began, &counted));
        picture.take(look(began + Duration::from_secs(1), &counted));
        assert_eq!(picture.flow("one-of-many"), None);
        assert_eq!(delivered(picture.flow("shop")), Some(0.0));
    }

    #[test]
    fn how_fast_is_told_of_what_was_delivered_meanwhile() {
        let began = Instant::now();
        let at = |seconds, within: &[(f64, f64)]| {
            let mut look = look(began + Duration::from_secs(seconds), &[]);
            let counted = EndpointCounts { within: within.to_vec(), ..EndpointCounts::default() };
            look.counted = BTreeMap::from([("shop".to_owned(), counted)]);
            look
        };
        let bounds = |a, b, c| [(0.1, a), (1.0, b), (f64::INFINITY, c)];
        let mut picture = Picture::new(String::new(), at(0, &bounds(0.0, 1000.0, 1000.0)));
        picture.take(at(1, &bounds(100.0, 1100.0, 1100.0)));
        let flow = picture.flow("shop").expect("two looks");
        assert_eq!((flow.p50, flow.p99), (Some(0.05), Some(0.099)));
        picture.take(at(2, &bounds(100.0, 1100.0, 1300.0)));
        let flow = picture.flow_of_all().expect("two looks");
        assert_eq!((flow.p50, flow.p99), (Some(1.0), Some(1.0)), "longer than the last bound");
    }
}
