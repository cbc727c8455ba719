//! Settings and the system pause in the store.

use rusqlite::params;
use serde_json::{Map, Value, json};

use super::query::Query;
use super::writer::Write;
use super::{endpoints, events};
use crate::error::StoreError;
use crate::settings::Settings;
use crate::store::Result;

/// All or none: every value is checked before the first is written.
pub(super) fn configure(write: &mut Write<'_>, changes: &[(String, String)]) -> Result<()> {
    let mut settings = Settings::clone(write.config.settings());
    for (name, value) in changes {
        settings.apply(name, value)?;
    }
    for endpoint in endpoints::load_all(write.conn)? {
        if endpoint.timeout() >= settings.stale_recovery_timeout {
            return Err(StoreError::Conflict(format!(
                "stale_recovery_timeout: endpoint {:?} has a timeout of {} s, which must stay below it",
                endpoint.name,
                endpoint.timeout().as_secs_f64()
            )));
        }
    }
    for (name, value) in changes {
        write.conn.run(
            "INSERT INTO _postrider_settings (name, value) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            params![name, value],
        )?;
    }
    let detail: Map<String, Value> =
        changes.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
    events::log(write, "settings.changed", None, &Value::Object(detail))?;
    endpoints::reload(write)
}

pub(super) fn pause(write: &mut Write<'_>, reason: &str) -> Result<()> {
    write.conn.run(
        "INSERT INTO _postrider_meta (name, value) VALUES ('paused', ?1)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [reason],
    )?;
    events::log(write, "system.paused", None, &json!({ "reason": reason }))?;
    endpoints::reload(write)
}

pub(super) fn resume(write: &mut Write<'_>) -> Result<()> {
    let was = write.conn.run_counted("DELETE FROM _postrider_meta WHERE name = 'paused'", [])?;
    if was > 0 {
        events::log(write, "system.resumed", None, &json!({}))?;
        endpoints::reload(write)?;
    }
    Ok(())
}
