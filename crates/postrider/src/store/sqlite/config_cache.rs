//! Endpoints, settings and pause in memory, so that a send needs no query for them.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::endpoints;
use super::query::Query;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::settings::Settings;
use crate::store::{Result, Snapshot};

/// Valid for one `version`; loaded again after a rollback or when another process changed the version.
#[derive(Default)]
pub(super) struct ConfigCache {
    loaded: Option<CachedConfig>,
}

struct CachedConfig {
    version: i64,
    settings: Arc<Settings>,
    paused: Option<String>,
    by_id: HashMap<EndpointId, Arc<Endpoint>>,
    by_name: HashMap<Arc<str>, EndpointId>,
}

impl ConfigCache {
    pub(super) fn forget(&mut self) {
        self.loaded = None;
    }

    pub(super) fn forget_if_outdated(&mut self, conn: &Connection) -> Result<bool> {
        let outdated = match &self.loaded {
            Some(loaded) => loaded.version != version(conn)?,
            None => true,
        };
        if outdated {
            self.forget();
        }
        Ok(outdated)
    }

    pub(super) fn load_if_forgotten(&mut self, conn: &Connection) -> Result<()> {
        if self.loaded.is_none() {
            let endpoints = endpoints::load_all(conn)?;
            self.loaded = Some(CachedConfig {
                version: version(conn)?,
                settings: Arc::new(load_settings(conn)?),
                paused: paused(conn)?,
                by_name: endpoints.iter().map(|endpoint| (endpoint.name.clone(), endpoint.id)).collect(),
                by_id: endpoints.into_iter().map(|endpoint| (endpoint.id, Arc::new(endpoint))).collect(),
            });
        }
        Ok(())
    }

    /// One endpoint changed, or was made, or was dropped.
    pub(super) fn refresh_endpoint(&mut self, conn: &Connection, name: &str) -> Result<()> {
        let endpoint = match endpoints::load_by_name(conn, name) {
            Ok(endpoint) => Some(Arc::new(endpoint)),
            Err(StoreError::Unknown { .. }) => None,
            Err(error) => return Err(error),
        };
        let version = version(conn)?;
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        loaded.version = version;
        match endpoint {
            Some(endpoint) => {
                loaded.by_name.insert(endpoint.name.clone(), endpoint.id);
                loaded.by_id.insert(endpoint.id, endpoint);
            }
            None => {
                if let Some(id) = loaded.by_name.remove(name) {
                    loaded.by_id.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// For the next claims. No new version: other processes do not need it.
    pub(super) fn hold_endpoint(&mut self, id: EndpointId, until: jiff::Timestamp) {
        if let Some(endpoint) = self.loaded.as_mut().and_then(|loaded| loaded.by_id.get_mut(&id)) {
            let endpoint = Arc::make_mut(endpoint);
            endpoint.held_until = endpoint.held_until.max(Some(until));
        }
    }

    /// Only what one send needs, for a caller's own transaction.
    pub(super) fn for_one_send(conn: &Connection, name: &str) -> Result<Self> {
        let endpoint = Arc::new(endpoints::load_by_name(conn, name)?);
        Ok(Self {
            loaded: Some(CachedConfig {
                version: 0,
                settings: Arc::new(load_settings(conn)?),
                paused: None,
                by_name: HashMap::from([(endpoint.name.clone(), endpoint.id)]),
                by_id: HashMap::from([(endpoint.id, endpoint)]),
            }),
        })
    }

    pub(super) fn settings(&self) -> &Arc<Settings> {
        &self.loaded().settings
    }

    pub(super) fn is_paused(&self) -> bool {
        self.loaded().paused.is_some()
    }

    pub(super) fn by_name(&self, name: &str) -> Result<&Arc<Endpoint>> {
        let loaded = self.loaded();
        loaded
            .by_name
            .get(name)
            .and_then(|id| loaded.by_id.get(id))
            .ok_or_else(|| StoreError::unknown_endpoint(name))
    }

    pub(super) fn by_id(&self, id: EndpointId) -> Option<&Arc<Endpoint>> {
        self.loaded().by_id.get(&id)
    }

    pub(super) fn snapshot(&self, known: Option<i64>) -> Option<Arc<Snapshot>> {
        let loaded = self.loaded();
        (known != Some(loaded.version)).then(|| {
            Arc::new(Snapshot {
                version: loaded.version,
                settings: loaded.settings.clone(),
                paused: loaded.paused.clone(),
                endpoints: loaded.by_id.values().cloned().collect(),
            })
        })
    }

    fn loaded(&self) -> &CachedConfig {
        self.loaded.as_ref().expect("loaded at the start of every transaction")
    }
}

/// Every change of endpoints, settings or pause moves it.
pub(super) fn version(conn: &Connection) -> Result<i64> {
    conn.value("SELECT value FROM _postrider_meta WHERE name = 'config_version'", [])
}

pub(super) fn load_settings(conn: &Connection) -> Result<Settings> {
    let mut settings = Settings::default();
    let mut statement = conn.prepare_cached("SELECT name, value FROM _postrider_settings")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (name, value): (String, String) = (row.get(0)?, row.get(1)?);
        // A newer version wrote it; this one does not need it.
        if let Err(error) = settings.apply(&name, &value) {
            tracing::warn!(%error, "ignoring a setting this version cannot use");
        }
    }
    Ok(settings)
}

pub(super) fn paused(conn: &Connection) -> Result<Option<String>> {
    conn.find("SELECT value FROM _postrider_meta WHERE name = 'paused'", [], |row| row.get(0))
}
