//! Endpoints and their circuits in the store, and the snapshot that nodes work by.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex};

use postgres_types::Json;
use serde_json::{Map, Value, json};
use tokio_postgres::Row;

use super::row::{named, object, optional_named};
use super::{Connections, SharedState};
use crate::breaker::{Circuit, CircuitName, CircuitState, Probe};
use crate::endpoint::{Endpoint, EndpointChange, EndpointId, EndpointOptions, NewEndpoint};
use crate::error::{Invalid, StoreError};
use crate::message::NodeId;
use crate::protocol::{EndpointConfig, Protocol};
use crate::retry::RetryOverrides;
use crate::settings::Settings;
use crate::store::{Result, Snapshot};

/// A forced drop cancels at most this many messages in one transaction.
const DROP_BATCH: i32 = 500;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, protocol, config, retry_policy, options, disabled_by, paused, circuit, circuit_epoch,
               circuit_until, circuit_probe_node, held_until, revision, created_at
             FROM postrider._endpoints WHERE dropped_at IS NULL ",
            $rest
        )
    };
}

/// Reads the version first: a change during the rest leads to another snapshot.
pub(super) async fn snapshot(shared: &SharedState, known: Option<i64>) -> Result<Option<Arc<Snapshot>>> {
    let version =
        "SELECT version + (SELECT coalesce(sum(epoch), 0)::bigint FROM postrider._circuits), paused_because
                   FROM postrider._store";
    let version = shared.own.query_one(version, &[]).await?;
    if known == Some(version.get(0)) {
        return Ok(None);
    }
    let rows = shared.own.query(select!(""), &[]).await?;
    let mut endpoints: Vec<Endpoint> = rows.iter().filter_map(|row| readable(endpoint(row))).collect();
    shared.last_configs.reuse(&mut endpoints);
    Ok(Some(Arc::new(Snapshot {
        version: version.get(0),
        settings: Arc::new(settings(&shared.own).await?),
        paused: version.get(1),
        endpoints: endpoints.into_iter().map(Arc::new).collect(),
    })))
}

/// The configs of the last snapshot, with the revisions of their endpoints. Nodes type a config when they use it; an endpoint
/// that did not change keeps its typed config.
#[derive(Default)]
pub(super) struct LastConfigs(Mutex<HashMap<EndpointId, (i64, EndpointConfig)>>);

impl LastConfigs {
    fn reuse(&self, endpoints: &mut [Endpoint]) {
        let mut last = self.0.lock().expect("no panic while configs are compared");
        for endpoint in endpoints.iter_mut() {
            if let Some((revision, config)) = last.get(&endpoint.id)
                && *revision == endpoint.revision
            {
                endpoint.config = config.clone();
            }
        }
        *last = endpoints.iter().map(|of| (of.id, (of.revision, of.config.clone()))).collect();
    }
}

pub(super) async fn settings(connections: &Connections) -> Result<Settings> {
    let rows = connections.query("SELECT name, value FROM postrider.settings", &[]).await?;
    let mut settings = Settings::default();
    for row in rows {
        // An unknown setting was written by a newer version.
        let _ = settings.apply(row.get(0), row.get(1));
    }
    Ok(settings)
}

/// All or none.
pub(super) async fn configure(shared: &SharedState, changes: &[(String, String)]) -> Result<()> {
    let mut checked = settings(&shared.prompt).await?;
    for (name, value) in changes {
        checked.apply(name, value)?;
    }
    let changes: Map<String, Value> =
        changes.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
    shared.pool.call("SELECT postrider._configure($1)", &[&Json(changes)]).await
}

pub(super) async fn by_name(shared: &SharedState, name: &str) -> Result<Endpoint> {
    let rows = shared.prompt.query(select!("AND name = $1"), &[&name]).await?;
    endpoint(rows.first().ok_or_else(|| StoreError::unknown_endpoint(name))?)
}

pub(super) async fn list(shared: &SharedState, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
    let page = select!("AND name COLLATE \"C\" > $1 ORDER BY name COLLATE \"C\" LIMIT $2");
    let rows = shared.prompt.query(page, &[&after.unwrap_or(""), &(limit as i64)]).await?;
    rows.iter().map(endpoint).collect()
}

/// An endpoint that a newer version made is left to newer nodes.
fn readable(endpoint: Result<Endpoint>) -> Option<Endpoint> {
    endpoint
        .inspect_err(|error| tracing::warn!(%error, "ignoring an endpoint that this version cannot read"))
        .ok()
}

fn endpoint(row: &Row) -> Result<Endpoint> {
    let broken = |error: Invalid| StoreError::Unusable(of_endpoint(row, error));
    let unknown = |error: StoreError| StoreError::Unusable(of_endpoint(row, error));
    let json = |column: usize| Value::Object(object(row, column));
    let protocol = Protocol::from_name(row.get(2)).map_err(broken)?;
    Ok(Endpoint {
        id: EndpointId(row.get(0)),
        name: row.get::<_, &str>(1).into(),
        protocol,
        config: EndpointConfig::new(protocol, object(row, 3)),
        retry: RetryOverrides::check(Some(&json(4))).map_err(broken)?,
        options: EndpointOptions::check(Some(&json(5))).map_err(broken)?,
        disabled: optional_named(row, 6).map_err(unknown)?,
        paused: row.get(7),
        circuit: circuit(row).map_err(unknown)?,
        held_until: row.get(12),
        revision: row.get(13),
        created_at: row.get(14),
    })
}

fn of_endpoint(row: &Row, error: impl Display) -> String {
    format!("endpoint {}: {error}", row.get::<_, &str>(1))
}

fn circuit(row: &Row) -> Result<Circuit> {
    let until = row.get(10);
    let state = match (named(row, 8)?, until) {
        (CircuitName::Open, Some(until)) => CircuitState::Open { until },
        (CircuitName::HalfOpen, _) => {
            let node: Option<i64> = row.get(11);
            let probe = node.zip(until).map(|(node, lease_until)| Probe { node: NodeId(node), lease_until });
            CircuitState::HalfOpen { probe }
        }
        (CircuitName::Closed, _) | (CircuitName::Open, None) => CircuitState::Closed,
    };
    Ok(Circuit { epoch: row.get(9), state })
}

/// Checked here too: the program checks URLs and certificates more strictly than SQL does.
pub(super) async fn create(shared: &SharedState, new: NewEndpoint) -> Result<Endpoint> {
    let checked = new.check(&settings(&shared.prompt).await?)?;
    let create = "SELECT postrider.create_endpoint($1, $2, $3, $4, $5)";
    let (config, retry, options) = (Json(&checked.config), Json(&checked.retry), Json(&checked.options));
    shared
        .pool
        .query(create, &[&checked.name, &checked.protocol.as_str(), &config, &retry, &options])
        .await?;
    by_name(shared, &checked.name).await
}

pub(super) async fn alter(shared: &SharedState, name: &str, change: EndpointChange) -> Result<Endpoint> {
    let current = by_name(shared, name).await?;
    let given = (change.touches_config(), change.retry_policy.is_some(), change.options.is_some());
    let checked = NewEndpoint {
        name: name.to_owned(),
        protocol: current.protocol.as_str().to_owned(),
        config: change.config_over(current.config.into_map()),
        retry_policy: Some(change.retry_policy.unwrap_or_else(|| json!(current.retry))),
        options: Some(change.options.unwrap_or_else(|| json!(current.options))),
    }
    .check(&settings(&shared.prompt).await?)?;
    let config = given.0.then_some(Json(&checked.config));
    let retry = given.1.then_some(Json(&checked.retry));
    let options = given.2.then_some(Json(&checked.options));
    shared
        .pool
        .query("SELECT postrider.alter_endpoint($1, $2, $3, $4)", &[&name, &config, &retry, &options])
        .await?;
    by_name(shared, name).await
}

pub(super) async fn drop(shared: &SharedState, name: &str, force: bool) -> Result<()> {
    let step = "SELECT postrider._drop_endpoint($1, $2, $3)";
    while !shared.pool.query_one(step, &[&name, &force, &DROP_BATCH]).await?.get::<_, bool>(0) {}
    Ok(())
}

pub(super) async fn move_circuit(
    shared: &SharedState,
    id: EndpointId,
    from_epoch: i64,
    to: Circuit,
) -> Result<bool> {
    let (until, probe) = match to.state {
        CircuitState::Closed | CircuitState::HalfOpen { probe: None } => (None, None),
        CircuitState::Open { until } => (Some(until), None),
        CircuitState::HalfOpen { probe: Some(probe) } => (Some(probe.lease_until), Some(probe.node.0)),
    };
    let swap = "SELECT postrider._move_circuit($1, $2, $3, $4, $5, $6)";
    let state = to.state.name().as_str();
    let row = shared.own.query_one(swap, &[&id.0, &from_epoch, &state, &to.epoch, &until, &probe]).await?;
    Ok(row.get(0))
}
