//! The page itself, in OpenMetrics and in the older text format of Prometheus.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use postrider::engine::{Buckets, EndpointFigures, NodeFigures};
use postrider::sink::SinkConnection;
use postrider::store::Figure;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{FAMILIES, Family, MetricKind, Texts};

#[derive(Clone, Debug)]
pub(crate) struct MetricsPage {
    /// None when the store did not answer.
    pub(crate) store: Option<Vec<Figure>>,
    pub(crate) node: NodeFigures,
    pub(crate) process: Vec<Figure>,
}

impl MetricsPage {
    pub(crate) fn texts(self) -> Texts {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Samples::of(self)));
        let mut openmetrics = String::new();
        text::encode(&mut openmetrics, &registry).expect("a string can always be written to");
        let plain = plain(&openmetrics);
        Texts { openmetrics: openmetrics.into(), plain: plain.into() }
    }
}

type Labels = Vec<(String, String)>;

/// Everything on the page, by the name of its family.
#[derive(Debug)]
struct Samples {
    numbers: BTreeMap<String, Vec<(Labels, f64)>>,
    histograms: BTreeMap<&'static str, Vec<(Labels, Buckets)>>,
}

impl Samples {
    fn of(page: MetricsPage) -> Self {
        let mut samples = Self { numbers: BTreeMap::new(), histograms: BTreeMap::new() };
        samples.put(Figure::new("postrider_store_up", &[], f64::from(u8::from(page.store.is_some()))));
        samples.put(Figure::new("postrider_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0));
        samples.put(Figure::new("postrider_in_flight", &[], f64::from(page.node.in_flight)));
        samples.put(Figure::new("postrider_in_flight_max", &[], f64::from(page.node.in_flight_max)));
        for (of, count) in &page.node.shortages {
            let labels = [("of", of.as_str())];
            samples.put(Figure::new("postrider_local_shortages_total", &labels, *count as f64));
        }
        page.store.into_iter().flatten().chain(page.process).for_each(|figure| samples.put(figure));
        page.node.endpoints.into_iter().for_each(|endpoint| samples.put_endpoint(endpoint));
        samples
    }

    fn put(&mut self, figure: Figure) {
        let name = figure.name.strip_suffix("_total").unwrap_or(&figure.name);
        self.numbers
            .entry(name.to_owned())
            .or_default()
            .push((figure.labels.into_iter().collect(), figure.value));
    }

    fn put_endpoint(&mut self, figures: EndpointFigures) {
        let endpoint = ("endpoint", figures.endpoint.as_str());
        if let Some(protocol) = figures.protocol {
            let labels = [endpoint, ("protocol", protocol.as_str())];
            self.put(Figure::new("postrider_endpoint_info", &labels, 1.0));
        }
        match figures.connection {
            None | Some(SinkConnection::NotKept) => {}
            Some(connection) => {
                let up = u8::from(connection == SinkConnection::Up);
                self.put(Figure::new("postrider_endpoint_connected", &[endpoint], f64::from(up)));
            }
        }
        self.put(Figure::new("postrider_endpoint_in_flight", &[endpoint], f64::from(figures.in_flight)));
        for (outcome, class, count) in &figures.attempts {
            let class = class.map_or("none", |class| class.as_str());
            let labels = [endpoint, ("outcome", outcome.as_str()), ("class", class)];
            self.put(Figure::new("postrider_attempts_total", &labels, *count as f64));
        }
        let ambiguous = figures.ambiguous as f64;
        self.put(Figure::new("postrider_attempts_ambiguous_total", &[endpoint], ambiguous));
        let labels = vec![("endpoint".to_owned(), figures.endpoint.clone())];
        self.put_buckets("postrider_attempt_duration_seconds", labels.clone(), figures.durations);
        self.put_buckets("postrider_created_to_delivered_seconds", labels, figures.delays);
    }

    fn put_buckets(&mut self, name: &'static str, labels: Labels, buckets: Buckets) {
        self.histograms.entry(name).or_default().push((labels, buckets));
    }

    fn encode_numbers(&self, family: &Family, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(samples) = self.numbers.get(family.name) else { return Ok(()) };
        let kind = match family.kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge | MetricKind::Histogram => MetricType::Gauge,
        };
        let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
        for (labels, value) in samples {
            match labels.is_empty() {
                true => encode_number(family.kind, &mut metric, *value)?,
                false => encode_number(family.kind, &mut metric.encode_family(labels)?, *value)?,
            }
        }
        Ok(())
    }

    fn encode_histograms(&self, family: &Family, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(samples) = self.histograms.get(family.name) else { return Ok(()) };
        let mut metric = encoder.encode_descriptor(family.name, family.help, None, MetricType::Histogram)?;
        for (labels, buckets) in samples {
            let bounds = buckets.bounds.iter().copied().chain([f64::INFINITY]);
            let counted: Vec<(f64, u64)> = bounds.zip(buckets.counts.iter().copied()).collect();
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(
                buckets.sum_seconds,
                buckets.count(),
                &counted,
                None,
            )?;
        }
        Ok(())
    }
}

fn encode_number(kind: MetricKind, encoder: &mut MetricEncoder<'_>, value: f64) -> fmt::Result {
    match kind {
        MetricKind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        MetricKind::Gauge | MetricKind::Histogram => encoder.encode_gauge(&value),
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in FAMILIES {
            match family.kind {
                MetricKind::Counter | MetricKind::Gauge => self.encode_numbers(family, &mut encoder)?,
                MetricKind::Histogram => self.encode_histograms(family, &mut encoder)?,
            }
        }
        Ok(())
    }
}

/// The older format names a counter's family as its samples, and knows no end.
fn plain(openmetrics: &str) -> String {
    let counters: HashSet<&str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut page = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let about = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        match about.and_then(|about| about.split_once(' ')) {
            Some((name, rest)) if counters.contains(name) => {
                page.push_str(&line[.."# HELP ".len()]);
                page.push_str(name);
                page.push_str("_total ");
                page.push_str(rest);
            }
            _ => page.push_str(line),
        }
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use postrider::protocol::Protocol;
    use postrider::sink::Resource;
    use postrider::store::AttemptOutcome;
    use postrider::verdict::Class;

    use super::*;

    const BOUNDS: &[f64] = &[0.01, 1.0];

    fn page() -> MetricsPage {
        let node = NodeFigures {
            in_flight: 3,
            in_flight_max: 1024,
            shortages: vec![(Resource::OpenFiles, 2), (Resource::Memory, 0)],
            endpoints: vec![EndpointFigures {
                endpoint: "shop".to_owned(),
                protocol: Some(Protocol::Redis),
                connection: Some(SinkConnection::Up),
                in_flight: 3,
                attempts: vec![
                    (AttemptOutcome::Delivered, None, 7),
                    (AttemptOutcome::Failed, Some(Class::Retryable), 2),
                    (AttemptOutcome::Lost, Some(Class::Retryable), 1),
                ],
                ambiguous: 1,
                durations: Buckets { bounds: BOUNDS, counts: vec![4, 3, 2], sum_seconds: 12.5 },
                delays: Buckets { bounds: BOUNDS, counts: vec![0, 7, 0], sum_seconds: 3.25 },
            }],
        };
        let mut store: Vec<Figure> = Vec::new();
        let mut put =
            |name: &str, labels: &[(&str, &str)], value| store.push(Figure::new(name, labels, value));
        for (state, count) in [("pending", 1_000_000.0), ("processing", 64.0), ("dead", 2.0)] {
            put("postrider_messages", &[("state", state)], count);
            put("postrider_endpoint_messages", &[("endpoint", "shop"), ("state", state)], count);
        }
        put("postrider_oldest_pending_age_seconds", &[], 12.5);
        put("postrider_stored_events", &[], 3.0);
        put("postrider_oldest_stored_event_age_seconds", &[], 0.5);
        put("postrider_paused", &[], 0.0);
        put("postrider_endpoints", &[("state", "enabled")], 1.0);
        put("postrider_nodes", &[("state", "live")], 1.0);
        put("postrider_retention_lag_seconds", &[("of", "dlq")], 0.0);
        for name in ["evictions", "publish_skipped", "capture_skipped", "backpressure_rejections"] {
            put(&format!("postrider_{name}_total"), &[], 5.0);
        }
        put("postrider_endpoint_oldest_pending_age_seconds", &[("endpoint", "shop")], 12.5);
        put("postrider_endpoint_circuit_state", &[("endpoint", "shop")], 2.0);
        put("postrider_endpoint_mode", &[("endpoint", "shop")], 0.0);
        let process =
            ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes"];
        let rest = ["process_open_fds", "process_max_fds", "process_start_time_seconds"];
        let process = process.into_iter().chain(rest).map(|name| Figure::new(name, &[], 4.5)).collect();
        MetricsPage { store: Some(store), node, process }
    }

    fn text(bytes: &bytes::Bytes) -> String {
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    #[test]
    fn the_whole_page_reads_well() {
        let texts = page().texts();
        insta::assert_snapshot!("openmetrics", text(&texts.openmetrics));
        insta::assert_snapshot!("plain", text(&texts.plain));
    }

    #[test]
    fn every_family_is_on_the_page_and_nothing_else() {
        let texts = page().texts();
        let told = text(&texts.openmetrics);
        let told: Vec<&str> =
            told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(told, known);
    }

    #[test]
    fn what_the_store_tells_has_a_family() {
        let known = |name: &str| FAMILIES.iter().any(|family| family.name == name);
        for name in Samples::of(page()).numbers.keys() {
            assert!(known(name), "{name} would be left out");
        }
    }

    #[test]
    fn a_store_that_is_down_leaves_the_rest_of_the_page() {
        let texts = MetricsPage { store: None, ..page() }.texts();
        let told = text(&texts.plain);
        assert!(told.contains("\npostrider_store_up 0.0\n"), "{told}");
        assert!(
            told.contains("postrider_attempts_total{class=\"none\",endpoint=\"shop\"")
                && !told.contains("postrider_messages")
        );
    }

    #[test]
    fn names_of_any_characters_stay_within_their_quotes() {
        let mut page = page();
        page.node.endpoints[0].endpoint = "a\"b\\c\nd".to_owned();
        let told = text(&page.texts().plain);
        assert!(told.contains(r#"postrider_endpoint_in_flight{endpoint="a\"b\\c\nd"} 3"#), "{told}");
    }
}
