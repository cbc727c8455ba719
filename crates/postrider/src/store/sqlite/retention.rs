//! Expiry and retention, in bounded steps.

use jiff::{SignedDuration, Timestamp};
use rusqlite::params;
use serde_json::json;

use super::archive::{self, Month};
use super::query::Query;
use super::row::micros_of;
use super::shown::ShownRow;
use super::writer::Write;
use super::{events, figures, replays, surface};
use crate::endpoint::EndpointId;
use crate::message::{MessageId, State};
use crate::store::{Cleaned, Evicted, Expired, Result};

/// Attempts of queued messages are kept, however old. One step skips at most this many of them.
const ATTEMPTS_LOOKED_AT: i64 = 2500;
/// Eviction stops here, so that the next dead letter does not start it again.
const DLQ_KEPT_PERCENT: u64 = 90;

pub(super) fn expire(write: &mut Write<'_>, limit: usize) -> Result<Vec<Expired>> {
    let expired: Vec<Expired> = write.conn.rows(
        "SELECT id, endpoint_id, attempts FROM _postrider_queue WHERE expires_at <= ?1 AND place <> 2
         ORDER BY expires_at LIMIT ?2",
        params![micros_of(write.now), limit as i64],
        |row| {
            let shown = ShownRow(row);
            let (id, endpoint) = (MessageId(shown.whole(0)), EndpointId(shown.whole(1)));
            Ok(Expired { id, endpoint, attempts: shown.count(2) })
        },
    )?;
    for found in &expired {
        archive::finish(write, found.id, State::Expired)?;
    }
    Ok(expired)
}

/// One bounded step.
pub(super) fn clean_up(write: &mut Write<'_>, limit: usize) -> Result<Cleaned> {
    archive::make_months_ahead(write)?;
    let mut evicted = Vec::new();
    let mut left = limit;
    for evict in [clean_dlq, evict_dlq] {
        if let Some(taken) = evict(write, left)? {
            left -= (taken.count as usize).min(left);
            evicted.push(taken);
        }
        if left == 0 {
            return Ok(Cleaned { more: true, evicted });
        }
    }
    let steps =
        [clean_archive, clean_attempts, clean_event_log, clean_reservations, clean_replays, clean_replayed];
    for step in steps {
        left -= step(write, left)?.min(left);
        if left == 0 {
            return Ok(Cleaned { more: true, evicted });
        }
    }
    Ok(Cleaned { more: false, evicted })
}

/// Dead letters past their days. Heads that hold their key stay.
fn clean_dlq(write: &mut Write<'_>, limit: usize) -> Result<Option<Evicted>> {
    let before = days_ago(write.now, write.config.settings().dlq_retention_days);
    let (count, bytes) = evict(
        write,
        "SELECT id, endpoint_id, status, bytes FROM _postrider_dlq
         WHERE died_at <= ?1 AND holds_key = 0 ORDER BY died_at LIMIT ?2",
        before,
        limit,
        |_| true,
    )?;
    evicted(write, "dlq_retention_days", count, bytes)
}

/// Oldest dead letters first, down to 90 % of `dlq_max_bytes`.
fn evict_dlq(write: &mut Write<'_>, limit: usize) -> Result<Option<Evicted>> {
    let max = write.config.settings().dlq_max_bytes;
    if max == 0 {
        return Ok(None);
    }
    write.counts.write(write.conn)?;
    let bytes: u64 = write.conn.value("SELECT dlq_bytes FROM _postrider_counts WHERE endpoint_id = 0", [])?;
    if bytes <= max {
        return Ok(None);
    }
    let keep = max / 100 * DLQ_KEPT_PERCENT + max % 100 * DLQ_KEPT_PERCENT / 100;
    let (count, gone) = evict(
        write,
        "SELECT id, endpoint_id, status, bytes FROM _postrider_dlq
         WHERE holds_key = 0 AND ?1 IS NOT NULL ORDER BY died_at, id LIMIT ?2",
        0,
        limit,
        |gone| bytes.saturating_sub(gone) > keep,
    )?;
    evicted(write, "dlq_max_bytes", count, gone)
}

/// Deletes the selected dead letters while `go_on(bytes gone so far)`; how many and how many bytes.
fn evict(
    write: &mut Write<'_>,
    select: &str,
    parameter: i64,
    limit: usize,
    go_on: impl Fn(u64) -> bool,
) -> Result<(usize, u64)> {
    let rows: Vec<(i64, i64, String, u64)> =
        write.conn.rows(select, params![parameter, limit as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
    let (mut count, mut gone) = (0, 0);
    for (id, endpoint, status, bytes) in rows {
        if !go_on(gone) {
            break;
        }
        write.conn.run("DELETE FROM _postrider_dlq WHERE id = ?1", [id])?;
        if status == "failed" {
            write.counts.dead(EndpointId(endpoint), -1);
        }
        write.counts.dlq_bytes(EndpointId(endpoint), -(bytes as i64));
        count += 1;
        gone += bytes;
    }
    Ok((count, gone))
}

/// Counts and logs it.
fn evicted(write: &mut Write<'_>, rule: &str, count: usize, bytes: u64) -> Result<Option<Evicted>> {
    if count == 0 {
        return Ok(None);
    }
    let evicted = Evicted { rule: rule.to_owned(), count: count as u64, bytes };
    figures::count(write, "evictions", count)?;
    events::log(write, "dlq.evicted", None, &json!(evicted))?;
    Ok(Some(evicted))
}

/// Only months that ended before the limit: in the month of the limit every step would look through all messages.
fn clean_archive(write: &mut Write<'_>, limit: usize) -> Result<usize> {
    let before = months_ago(write.now, write.config.settings().archive_retention_months);
    let oldest_kept = Month::of(before);
    let mut done = 0;
    let mut months = Month::existing(write.conn)?;
    months.reverse();
    for month in months.into_iter().take_while(|month| *month < oldest_kept) {
        let table = month.table();
        let deleted = write.conn.run_counted(
            &format!(
                "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE finished_at <= ?1 LIMIT ?2)"
            ),
            params![before, (limit - done) as i64],
        )?;
        done += deleted;
        if done == limit {
            break;
        }
        let empty: bool = write.conn.value(&format!("SELECT NOT EXISTS (SELECT 1 FROM {table})"), [])?;
        if empty {
            write.conn.execute_batch(&format!("DROP TABLE {table}"))?;
            surface::refresh_archive(write.conn)?;
            write.months.forget();
            events::log(write, "archive.dropped", Some(&table), &json!({}))?;
        }
    }
    Ok(done)
}

/// Retained as long as the archive, and while their message is queued. Ids grow with time, so the oldest are the lowest.
fn clean_attempts(write: &mut Write<'_>, limit: usize) -> Result<usize> {
    let before = months_ago(write.now, write.config.settings().archive_retention_months);
    write.conn.run_counted(
        "DELETE FROM _postrider_attempts WHERE id IN
         (SELECT id FROM (SELECT id, message_id, started_at FROM _postrider_attempts ORDER BY id LIMIT ?3)
          WHERE started_at <= ?1 AND NOT EXISTS (SELECT 1 FROM _postrider_queue WHERE id = message_id)
          LIMIT ?2)",
        params![before, limit as i64, ATTEMPTS_LOOKED_AT],
    )
}

fn clean_event_log(write: &mut Write<'_>, limit: usize) -> Result<usize> {
    let before = days_ago(write.now, write.config.settings().event_log_retention_days);
    write.conn.run_counted(
        "DELETE FROM _postrider_event_log WHERE id IN
         (SELECT id FROM (SELECT id, at FROM _postrider_event_log ORDER BY id LIMIT ?2) WHERE at <= ?1)",
        params![before, limit as i64],
    )
}

fn clean_reservations(write: &mut Write<'_>, limit: usize) -> Result<usize> {
    write.conn.run_counted(
        "DELETE FROM _postrider_reservations WHERE (endpoint_id, idempotency_key) IN
         (SELECT endpoint_id, idempotency_key FROM _postrider_reservations WHERE until <= ?1 LIMIT ?2)",
        params![micros_of(write.now), limit as i64],
    )
}

/// Kept as long as the event log.
fn clean_replays(write: &mut Write<'_>, limit: usize) -> Result<usize> {
    let before = days_ago(write.now, write.config.settings().event_log_retention_days);
    replays::clean_up(write, before, limit)
}

/// Kept as long as the archive. Ids grow with time.
fn clean_replayed(write: &mut Write<'_>, limit: usize) -> Result<usize> {
    let before = months_ago(write.now, write.config.settings().archive_retention_months);
    write.conn.run_counted(
        "DELETE FROM _postrider_replayed WHERE id IN
         (SELECT id FROM (SELECT id, at FROM _postrider_replayed ORDER BY id LIMIT ?2) WHERE at <= ?1)",
        params![before, limit as i64],
    )
}

pub(super) fn days_ago(now: Timestamp, days: u32) -> i64 {
    micros_of(now - SignedDuration::from_hours(24 * i64::from(days)))
}

pub(super) fn months_ago(now: Timestamp, months: u32) -> i64 {
    let now = now.to_zoned(jiff::tz::TimeZone::UTC);
    now.checked_sub(jiff::Span::new().months(i64::from(months)))
        .map_or(i64::MIN, |then| then.timestamp().as_microsecond())
}
