//! What other languages see of the file: `postrider_send`, `postrider_publish`, and views to read. Views and triggers, made from the
//! program's own tables of keys, settings and rules, so that SQL refuses what the program refuses.

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use super::archive::Month;
use super::query::Query;
use crate::message::{JSON, PRIORITY_MAX};
use crate::settings;
use crate::store::Result;
use reading::{
    correlation_id, has_escaped_nul, has_names_twice, is_object, is_object_of_strings, is_too_deep_text,
    kept_headers, now, time,
};

mod checks;
mod options;
mod reading;
mod rules;

#[rustfmt::skip]
const ARCHIVE_COLUMNS: [&str; 20] = [
    "id", "endpoint_id", "status", "finished_at", "priority", "attempts", "place", "delivered_late", "ordering_key",
    "created_at", "scheduled_at", "expires_at", "idempotency_key", "correlation_id", "event_type", "last_error",
    "content_type", "headers", "options", "payload",
];

/// Whether this build, or one that makes the same SQL, made it.
pub(super) fn is_current(conn: &Connection) -> Result<bool> {
    let made: Option<Vec<u8>> =
        conn.find("SELECT value FROM _postrider_meta WHERE name = 'surface'", [], |row| row.get(0))?;
    Ok(made == Some(digest(&sql())))
}

pub(super) fn refresh(conn: &Connection) -> Result<()> {
    let sql = sql();
    drop_all(conn, &sql)?;
    conn.execute_batch(&sql)?;
    refresh_archive(conn)?;
    conn.run(
        "INSERT INTO _postrider_meta (name, value) VALUES ('surface', ?1)
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [digest(&sql)],
    )
}

fn sql() -> String {
    [send(), publish(), views()].concat()
}

fn digest(sql: &str) -> Vec<u8> {
    Sha256::digest(sql).to_vec()
}

/// After a month's table was created or dropped.
pub(super) fn refresh_archive(conn: &Connection) -> Result<()> {
    conn.execute_batch("DROP VIEW IF EXISTS _postrider_archive")?;
    let mut months = Month::existing(conn)?;
    months.reverse();
    Ok(conn.execute_batch(&archive(&months))?)
}

/// Only our own views: the file belongs to the application. Triggers are dropped with their views.
fn drop_all(conn: &Connection, sql: &str) -> Result<()> {
    let mut made = sql.lines().filter_map(|line| line.strip_prefix("CREATE VIEW ")?.split(' ').next());
    made.try_for_each(|view| Ok(conn.execute_batch(&format!("DROP VIEW IF EXISTS {view}"))?))
}

fn send() -> String {
    let sql = filled(
        include_str!("../sql/send.sql"),
        &[
            ("limits", &limits()),
            ("json", JSON),
            ("kept_headers", &kept_headers()),
            ("checks", &checks::all()),
            ("conflict", checks::CONFLICT),
            ("endpoint_full", checks::ENDPOINT_FULL),
        ],
    );
    with_options_read(&sql)
}

fn publish() -> String {
    let checks = checks::of_events();
    with_options_read(&filled(include_str!("../sql/publish.sql"), &[("checks", &checks)]))
}

/// What `postrider_send` and `postrider_publish` read in the same way.
fn with_options_read(sql: &str) -> String {
    filled(
        sql,
        &[
            ("now", now()),
            ("scheduled_at", &time("NEW.scheduled_at")),
            ("expires_at", &time("NEW.expires_at")),
            ("correlation_id", &correlation_id("NEW.correlation_id")),
            ("headers_are_readable", &is_object_of_strings("NEW.headers")),
            ("headers_are_too_deep", &is_too_deep_text("NEW.headers")),
            ("headers_are_given_twice", &has_names_twice("NEW.headers")),
            ("headers_have_nul", &has_escaped_nul("NEW.headers")),
            ("options_are_readable", &is_object("NEW.options")),
            ("options_are_too_deep", &is_too_deep_text("NEW.options")),
            ("options_have_nul", &has_escaped_nul("NEW.options")),
            ("queue_full", checks::QUEUE_FULL),
        ],
    )
}

fn views() -> String {
    let settings: Vec<_> = settings::TABLE
        .iter()
        .map(|setting| serde_json::json!({ "name": setting.name, "value": setting.default }))
        .collect();
    let priorities: Vec<u8> = (0..=PRIORITY_MAX).collect();
    let sql = filled(
        include_str!("../sql/views.sql"),
        &[
            ("settings", &serde_json::json!(settings).to_string()),
            ("priorities", &serde_json::json!(priorities).to_string()),
            ("now", now()),
        ],
    );
    with_times_as_text(&sql)
}

/// The settings that a send needs, in one row.
fn limits() -> String {
    const ASKED: [&str; 7] = [
        "max_queue_size",
        "max_payload_bytes",
        "max_headers_bytes",
        "max_key_bytes",
        "stale_recovery_timeout",
        "archive",
        "attempt_log",
    ];
    let columns = settings::TABLE.iter().filter(|setting| ASKED.contains(&setting.name)).map(|setting| {
        let settings::Setting { name, default, .. } = setting;
        let value = format!("SELECT value FROM _postrider_settings WHERE name = '{name}'");
        match setting.kind {
            settings::SettingKind::Whole { .. } => {
                format!("CAST(coalesce(({value}), {default}) AS INTEGER) AS {name}")
            }
            settings::SettingKind::Choice(_) => format!("coalesce(({value}), '{default}') AS {name}"),
        }
    });
    columns.collect::<Vec<_>>().join(",\n  ")
}

fn archive(months: &[Month]) -> String {
    let columns = ARCHIVE_COLUMNS.join(", ");
    let values = ARCHIVE_COLUMNS.map(|column| format!("NEW.{column}")).join(", ");
    let selects: Vec<String> =
        months.iter().map(|month| format!("SELECT {columns} FROM {}", month.table())).collect();
    let inserts: Vec<String> = months
        .iter()
        .enumerate()
        .map(|(at, month)| {
            let from = (at > 0).then(|| format!("NEW.created_at >= {}", month.begins_at()));
            let to = months.get(at + 1).map(|next| format!("NEW.created_at < {}", next.begins_at()));
            let within: Vec<String> = from.into_iter().chain(to).collect();
            let within = if within.is_empty() { "1".to_owned() } else { within.join(" AND ") };
            format!("  INSERT INTO {} ({columns})\n  SELECT {values} WHERE {within};", month.table())
        })
        .collect();
    filled(
        include_str!("../sql/archive_views.sql"),
        &[("months", &selects.join("\nUNION ALL ")), ("inserts", &inserts.join("\n"))],
    )
}

fn filled(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |sql, (name, value)| sql.replace(&format!("{{{name}}}"), value))
}

/// As RFC 3339 writes them, in UTC.
fn with_times_as_text(sql: &str) -> String {
    let mut parts = sql.split("TIME(");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (column, rest) = part.split_once(')').expect("TIME has one argument");
        text += &format!(
            "strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000000, 'unixepoch') || printf('.%06dZ', {column} % 1000000){rest}"
        );
    }
    text
}
