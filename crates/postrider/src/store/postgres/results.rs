//! Attempt results by endpoint, which nodes report about once a second.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::SharedState;
use super::row::big_count;
use super::settle::without_nul;
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::{EndpointHealth, Result, Results};

pub(super) async fn note(shared: &SharedState, results: &[(EndpointId, Results)]) -> Result<Vec<EndpointId>> {
    let counts = |count: fn(&Results) -> u64| -> Vec<i64> {
        results.iter().map(|(_, results)| count(results) as i64).collect()
    };
    let endpoints: Vec<i64> = results.iter().map(|(endpoint, _)| endpoint.0).collect();
    let succeeded: Vec<Option<Timestamp>> = results.iter().map(|(_, of)| of.last_success_at).collect();
    let failures = || results.iter().map(|(_, of)| of.last_failure.as_ref());
    let failed: Vec<Option<Timestamp>> = failures().map(|last| last.map(|(at, _)| *at)).collect();
    let errors: Vec<_> = failures().map(|last| last.map(|(_, error)| without_nul(error))).collect();
    let note = "SELECT postrider._note_results($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let noted = shared
        .own
        .query(
            note,
            &[
                &endpoints,
                &counts(|of| of.delivered),
                &counts(|of| of.retryable),
                &counts(|of| of.permanent),
                &counts(|of| of.gone),
                &counts(|of| of.lost),
                &counts(|of| of.failed_since),
                &succeeded,
                &failed,
                &errors,
            ],
        )
        .await?;
    Ok(noted.iter().map(|row| EndpointId(row.get(0))).collect())
}

pub(super) async fn health(shared: &SharedState, name: &str) -> Result<EndpointHealth> {
    let health = "SELECT r.delivered, r.retryable + r.permanent + r.gone + r.lost, r.consecutive_failures,
                    r.last_success_at, r.last_failure_at, r.last_error
                  FROM postrider.endpoints e JOIN postrider._results r ON r.endpoint_id = e.id
                  WHERE e.name = $1 AND e.dropped_at IS NULL";
    let rows = shared.prompt.query(health, &[&name]).await?;
    Ok(told(rows.first().ok_or_else(|| StoreError::unknown_endpoint(name))?, 0))
}

/// Reads six columns, from `first` on.
pub(super) fn told(row: &Row, first: usize) -> EndpointHealth {
    EndpointHealth {
        delivered: big_count(row, first),
        failed: big_count(row, first + 1),
        consecutive_failures: big_count(row, first + 2),
        last_success_at: row.get(first + 3),
        last_failure_at: row.get(first + 4),
        last_error: row.get(first + 5),
    }
}
