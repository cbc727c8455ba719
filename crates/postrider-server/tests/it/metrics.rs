//! /metrics, as Prometheus reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use openmetrics_parser::{openmetrics, prometheus};
use serde_json::json;
use test_servers::postgres::Postgres;

use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0";

fn page(node: &Node, accept: &str) -> String {
    let answer =
        node.client().send("GET", "/metrics", &[("accept", accept)], b"").expect("an answer").expect(200);
    let kind = if accept == OPENMETRICS { OPENMETRICS } else { "text/plain; version=0.0.4" };
    assert_eq!(answer.header("content-type"), Some(&*format!("{kind}; charset=utf-8")));
    String::from_utf8(answer.body).expect("text")
}

/// Every sample by its name and labels, as they stand on the page.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
    let samples: BTreeMap<String, f64> = lines.iter().map(|line| sample(line)).collect();
    assert_eq!(samples.len(), lines.len(), "no sample twice");
    samples
}

#[test]
fn a_scrape_tells_what_the_node_did() {
    let receiver = Receiver::start(|received| Some(if received.path == "/bad" { 404 } else { 200 }));
    let home = Home::new();
    let node = home.start();
    let bad = receiver.url().replace("/hook", "/bad");
    for (name, url) in [("good", receiver.url()), ("bad", bad)] {
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": { "url": url } }));
    }
    let delivered = node.send("good", &[], "{}");
    let dead = node.send("bad", &[], "{}");
    node.until(delivered, "completed");
    node.until(dead, "dead");
    let text = eventually(Duration::from_secs(10), "a page that is not from before", || {
        Some(page(&node, "*/*")).filter(|text| text.contains("postrider_messages{state=\"dead\"} 1"))
    });
    prometheus::parse_prometheus(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let has = samples(&text);
    let expected = [
        (r#"postrider_attempts_total{class="none",endpoint="good",outcome="delivered"}"#, 1.0),
        (r#"postrider_attempts_total{class="permanent",endpoint="bad",outcome="failed"}"#, 1.0),
        (r#"postrider_attempts_total{class="retryable",endpoint="bad",outcome="failed"}"#, 0.0),
        (r#"postrider_attempt_duration_seconds_count{endpoint="good"}"#, 1.0),
        (r#"postrider_attempt_duration_seconds_bucket{le="+Inf",endpoint="bad"}"#, 1.0),
        (r#"postrider_created_to_delivered_seconds_count{endpoint="good"}"#, 1.0),
        (r#"postrider_created_to_delivered_seconds_count{endpoint="bad"}"#, 0.0),
        (r#"postrider_endpoint_messages{endpoint="bad",state="dead"}"#, 1.0),
        (r#"postrider_endpoint_circuit_state{endpoint="bad"}"#, 0.0),
        (r#"postrider_nodes{state="live"}"#, 1.0),
        ("postrider_store_up", 1.0),
        ("postrider_in_flight", 0.0),
        ("postrider_in_flight_max", 1024.0),
    ];
    for (name, value) in expected {
        assert_eq!(has.get(name), Some(&value), "{name} in\n{text}");
    }
    let open = page(&node, OPENMETRICS);
    openmetrics::parse_openmetrics(&open).unwrap_or_else(|error| panic!("{error}\n{open}"));
    assert!(open.ends_with("# EOF\n"));
}

#[test]
fn a_storm_of_scrapes_gets_one_page_a_second() {
    let home = Home::new();
    let node = home.start();
    let before = page(&node, "*/*");
    let same = (0..50).filter(|_| page(&node, "*/*") == before).count();
    assert!(same > 0, "some were within the same second");
    eventually(Duration::from_secs(10), "a newer page", || (page(&node, "*/*") != before).then_some(()));
}

#[test]
fn metrics_are_for_reading_only() {
    let home = Home::new();
    let node = home.start();
    let refused = node.post("/metrics", &[], b"").expect(405);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
}

/// Families of the page that the store tells, and what SQL says of them.
#[test]
fn the_page_agrees_with_sql_and_with_the_documentation() {
    let server = Postgres::start().expect("a server of its own");
    let (home, url) = (Home::new(), server.url());
    let node = home.start_with(&["--allow-internal", "--migrate", "--store", &url]);
    for name in ["shop", "bank"] {
        node.create_endpoint(
            json!({ "name": name, "protocol": "http", "config": { "url": "http://127.0.0.1:9/" } }),
        );
    }
    server.query("SELECT postrider.pause_endpoint('shop')").expect("paused");
    server.query("SELECT postrider.disable_endpoint('bank')").expect("disabled");
    for _ in 0..3 {
        node.send("shop", &[], "{}");
    }
    let told =
        "SELECT name || coalesce('{' || (SELECT string_agg(key || '=\"' || value || '\"', ',' ORDER BY key)
                  FROM jsonb_each_text(labels)) || '}', ''), value FROM postrider.metrics() ORDER BY 1";
    // A page is kept for a moment, in which SQL may tell of more.
    let (text, rows) = eventually(Duration::from_secs(10), "a page with all that SQL tells", || {
        let (rows, text) = (server.query(told).expect("figures"), page(&node, "*/*"));
        let shown = samples(&text);
        let has_all =
            rows.lines().all(|row| shown.contains_key(row.rsplit_once('|').expect("two columns").0));
        (has_all && text.contains("postrider_messages{state=\"pending\"} 3")).then_some((text, rows))
    });
    let on_the_page = samples(&text);
    let mut count = 0;
    for row in rows.lines() {
        let (name, value) = row.rsplit_once('|').expect("two columns");
        let (value, shown): (f64, f64) = (value.parse().expect("a number"), on_the_page[name]);
        // Ages went on between the two questions.
        let tolerance = if name.contains("age_seconds") { 10.0 } else { 0.0 };
        assert!((value - shown).abs() <= tolerance, "{name}: {value} in SQL, {shown} on the page");
        count += 1;
    }
    assert!(count >= 25, "{rows}");
    let families: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    let told_elsewhere = [
        // On SQLite.
        "postrider_stored_events",
        "postrider_oldest_stored_event_age_seconds",
        // Of endpoints with a broker.
        "postrider_endpoint_connected",
    ];
    let helped = text.lines().filter(|line| line.starts_with("# HELP ")).count();
    assert_eq!(families.len(), helped, "each has a HELP and a TYPE");
    let listed: BTreeSet<String> =
        documented().into_iter().filter(|name| !told_elsewhere.contains(&name.as_str())).collect();
    assert_eq!(families, listed, "docs/operations.md lists what there is");
}

fn operations() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    std::fs::read_to_string(path).expect("docs/operations.md")
}

/// The first column of the table of metrics.
fn documented() -> BTreeSet<String> {
    let page = operations();
    let section =
        page.split("\n## ").find(|section| section.starts_with("Metrics")).expect("a section Metrics");
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(|name| name.split('{').next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn the_alerts_of_the_documentation_are_promql_about_metrics_that_there_are() {
    let page = operations();
    let known = documented();
    let rules: Vec<&str> = page.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(rules.len() >= 8, "{rules:?}");
    for rule in rules {
        let rule = rule.trim_matches('\'');
        promql_parser::parser::parse(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
        let words = rule.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("postrider_") || word.starts_with("process_")) {
            let family =
                ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(known.contains(family), "{name} in {rule}");
        }
    }
}
