//! Results of attempts, which the node adds up and stores about once a second.

use rusqlite::{Connection, Row, params};

use super::query::Query;
use super::row::{micros_of, optional_at};
use super::writer::Write;
use crate::endpoint::EndpointId;
use crate::store::{EndpointHealth, Result, Results};

pub(super) fn note(write: &mut Write<'_>, results: &[(EndpointId, Results)]) -> Result<Vec<EndpointId>> {
    for (endpoint, results) in results {
        let (failed_at, error) = match &results.last_failure {
            Some((at, error)) => (Some(micros_of(*at)), Some(error)),
            None => (None, None),
        };
        write.conn.run(
            "INSERT INTO _postrider_results (endpoint_id, delivered, retryable, permanent, gone, lost,
               consecutive_failures, last_success_at, last_failure_at, last_error)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT (endpoint_id) DO UPDATE SET delivered = delivered + excluded.delivered,
               retryable = retryable + excluded.retryable, permanent = permanent + excluded.permanent,
               gone = gone + excluded.gone, lost = lost + excluded.lost,
               consecutive_failures = iif(excluded.last_success_at IS NULL, consecutive_failures, 0)
                 + excluded.consecutive_failures,
               last_success_at = coalesce(excluded.last_success_at, last_success_at),
               last_failure_at = coalesce(excluded.last_failure_at, last_failure_at),
               last_error = coalesce(excluded.last_error, last_error)",
            params![
                endpoint.0,
                results.delivered,
                results.retryable,
                results.permanent,
                results.gone,
                results.lost,
                results.failed_since,
                results.last_success_at.map(micros_of),
                failed_at,
                error
            ],
        )?;
    }
    Ok(results.iter().map(|(endpoint, _)| *endpoint).collect())
}

pub(super) fn health(conn: &Connection, endpoint: EndpointId) -> Result<EndpointHealth> {
    let found = conn.find(
        "SELECT delivered, retryable + permanent + gone + lost, consecutive_failures, last_success_at,
                last_failure_at, last_error
         FROM _postrider_results WHERE endpoint_id = ?1",
        [endpoint.0],
        told,
    )?;
    Ok(found.unwrap_or_default())
}

fn told(row: &Row<'_>) -> rusqlite::Result<EndpointHealth> {
    Ok(EndpointHealth {
        delivered: row.get(0)?,
        failed: row.get(1)?,
        consecutive_failures: row.get(2)?,
        last_success_at: optional_at(row.get(3)?),
        last_failure_at: optional_at(row.get(4)?),
        last_error: row.get(5)?,
    })
}
