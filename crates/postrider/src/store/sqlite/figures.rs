//! The store's figures, in the order and under the names of `metrics()` on PostgreSQL.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::archive::Month;
use super::query::Query;
use super::writer::Write;
use super::{SqliteStore, config_cache, inspect, retention};
use crate::breaker::CircuitName;
use crate::store::figures::{ENDPOINTS_MAX, OTHERS};
use crate::store::{EndpointStatus, Figure, Figures, Result, Store, StoreStatus};

#[async_trait]
impl Figures for SqliteStore {
    async fn figures(&self) -> Result<Vec<Figure>> {
        let (name, now) = (self.name.clone(), self.now());
        let mut figures = self.read(move |conn| figures(conn, &name, now)).await?;
        figures.push(self.refusals.figure());
        Ok(figures)
    }
}

/// Totals; 0 until the first count.
const COUNTED: [&str; 2] = ["evictions", "publish_skipped"];

/// Adds to what `postrider_<name>_total` says.
pub(super) fn count(write: &Write<'_>, name: &str, by: usize) -> Result<()> {
    write.conn.run(
        "INSERT INTO _postrider_totals (name, value) VALUES (?1, ?2)
         ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        params![name, by as i64],
    )
}

pub(super) fn figures(conn: &Connection, store: &str, now: Timestamp) -> Result<Vec<Figure>> {
    let status = inspect::status(conn, store, now)?;
    let mut figures = of_the_store(&status, now);
    figures.extend(lags(conn, now)?);
    figures.push(Figure::new(
        "postrider_nodes",
        &[("state", "live")],
        inspect::live_nodes(conn, now)? as f64,
    ));
    for name in COUNTED {
        let name_of_figure = format!("postrider_{name}_total");
        let value = counted(conn, name)?;
        figures.push(Figure::new(&name_of_figure, &[], value as f64));
    }
    for endpoint in bounded(status.endpoints, &oldest_endpoints(conn)?) {
        figures.extend(of_endpoint(&endpoint, now));
    }
    Ok(figures)
}

/// The oldest endpoints, which have their own figures.
fn oldest_endpoints(conn: &Connection) -> Result<Vec<String>> {
    conn.column(
        "SELECT name FROM _postrider_endpoints WHERE dropped_at IS NULL ORDER BY id LIMIT ?1",
        [ENDPOINTS_MAX as i64],
    )
}

/// The statuses of `oldest` in their order, and the sum of the rest.
fn bounded(all: Vec<EndpointStatus>, oldest: &[String]) -> Vec<EndpointStatus> {
    let places: HashMap<&str, usize> =
        oldest.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let (mut own, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|endpoint| places.contains_key(endpoint.name.as_str()));
    own.sort_by_key(|endpoint| places[endpoint.name.as_str()]);
    let others = others.into_iter().map(|other| EndpointStatus { name: OTHERS.to_owned(), ..other });
    own.extend(others.reduce(together));
    own
}

fn of_the_store(status: &StoreStatus, now: Timestamp) -> Vec<Figure> {
    let messages = |state, count: u64| Figure::new("postrider_messages", &[("state", state)], count as f64);
    let endpoints = |state| {
        let count = status.endpoints.iter().filter(|endpoint| switched(endpoint) == state).count();
        Figure::new("postrider_endpoints", &[("state", state)], count as f64)
    };
    vec![
        messages("pending", status.pending),
        messages("processing", status.processing),
        messages("dead", status.dead),
        Figure::new("postrider_oldest_pending_age_seconds", &[], age(status.oldest_pending, now)),
        Figure::new("postrider_stored_events", &[], status.stored_events as f64),
        Figure::new("postrider_oldest_stored_event_age_seconds", &[], age(status.oldest_stored_event, now)),
        Figure::new("postrider_paused", &[], f64::from(u8::from(status.paused.is_some()))),
        endpoints("enabled"),
        endpoints("paused"),
        endpoints("disabled"),
    ]
}

fn switched(endpoint: &EndpointStatus) -> &'static str {
    match (endpoint.enabled, endpoint.paused) {
        (false, _) => "disabled",
        (true, true) => "paused",
        (true, false) => "enabled",
    }
}

fn of_endpoint(endpoint: &EndpointStatus, now: Timestamp) -> [Figure; 6] {
    let name = ("endpoint", endpoint.name.as_str());
    let messages = |state, count: u64| {
        Figure::new("postrider_endpoint_messages", &[name, ("state", state)], count as f64)
    };
    [
        messages("pending", endpoint.pending),
        messages("processing", endpoint.processing),
        messages("dead", endpoint.dead),
        Figure::new(
            "postrider_endpoint_oldest_pending_age_seconds",
            &[name],
            age(endpoint.oldest_pending, now),
        ),
        Figure::new("postrider_endpoint_circuit_state", &[name], f64::from(badness(endpoint.circuit))),
        // Nothing is hot yet.
        Figure::new("postrider_endpoint_mode", &[name], 0.0),
    ]
}

/// Adds them up; of states it takes the worst.
fn together(one: EndpointStatus, other: EndpointStatus) -> EndpointStatus {
    EndpointStatus {
        pending: one.pending + other.pending,
        processing: one.processing + other.processing,
        dead: one.dead + other.dead,
        oldest_pending: one.oldest_pending.into_iter().chain(other.oldest_pending).min(),
        circuit: std::cmp::max_by_key(one.circuit, other.circuit, |circuit| badness(*circuit)),
        ..one
    }
}

fn badness(circuit: CircuitName) -> u8 {
    match circuit {
        CircuitName::Closed => 0,
        CircuitName::HalfOpen => 1,
        CircuitName::Open => 2,
    }
}

fn age(oldest: Option<Timestamp>, now: Timestamp) -> f64 {
    oldest.map_or(0.0, |oldest| now.duration_since(oldest).as_secs_f64().max(0.0))
}

/// How long ago retention should have deleted the oldest row.
fn lags(conn: &Connection, now: Timestamp) -> Result<[Figure; 3]> {
    let settings = config_cache::load_settings(conn)?;
    let oldest = |sql: &str| -> Result<Option<i64>> { conn.find(sql, [], |row| row.get(0)) };
    let lag = |of, oldest: Option<i64>, before: i64| {
        let seconds = oldest.map_or(0.0, |oldest| (before - oldest).max(0) as f64 / 1e6);
        Figure::new("postrider_retention_lag_seconds", &[("of", of)], seconds)
    };
    let letter = oldest("SELECT died_at FROM _postrider_dlq WHERE holds_key = 0 ORDER BY died_at LIMIT 1")?;
    let event = oldest("SELECT at FROM _postrider_event_log ORDER BY id LIMIT 1")?;
    let month = Month::existing(conn)?.into_iter().min().map(Month::ends_at);
    Ok([
        lag("dlq", letter, retention::days_ago(now, settings.dlq_retention_days)),
        lag("event_log", event, retention::days_ago(now, settings.event_log_retention_days)),
        lag("archive", month, retention::months_ago(now, settings.archive_retention_months)),
    ])
}

/// Evictions were counted elsewhere at first.
pub(super) fn counted(conn: &Connection, name: &str) -> Result<u64> {
    conn.value(
        "SELECT coalesce(sum(value), 0) FROM (
         SELECT value FROM _postrider_totals WHERE name = ?1
         UNION ALL SELECT value FROM _postrider_meta WHERE name = 'counted_' || ?1)",
        [name],
    )
}
