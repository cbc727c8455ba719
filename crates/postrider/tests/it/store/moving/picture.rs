//! Everything that can be known of a store, for comparison: through its own words, and every column of every table.

use std::collections::{BTreeMap, BTreeSet};

use postrider::rusqlite::Connection;
use postrider::settings::Settings;
use postrider::store::{DeadLetter, DlqFilter, DlqSummary, EventRecord, Replay, StoreStatus, Story};
use postrider::{EventType, MessageId, Operate, Subscription};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use test_servers::Address;

/// What people are told.
#[derive(Debug, PartialEq)]
pub(super) struct Picture {
    endpoints: Vec<Value>,
    event_types: Vec<EventType>,
    subscriptions: Vec<Subscription>,
    settings: Settings,
    stories: Vec<Option<Story>>,
    letters: Vec<DeadLetter>,
    summary: Vec<DlqSummary>,
    status: StoreStatus,
    replays: Vec<Replay>,
}

impl Picture {
    /// Messages from the first to `last`.
    pub(super) async fn of(store: &impl Operate, last: MessageId) -> Self {
        let endpoints = store.endpoints(None, 1000).await.unwrap();
        let mut stories = Vec::new();
        for id in 1..=last.0 {
            stories.push(store.story(MessageId(id)).await.ok().map(|story| Story {
                reason: story.reason.map(|reason| reason.replace("no node runs; ", "")),
                ..story
            }));
        }
        Self {
            endpoints: endpoints
                .iter()
                .map(|e| {
                    json!([
                        e.id,
                        e.name,
                        e.protocol.as_str(),
                        e.config,
                        e.retry,
                        e.options,
                        e.disabled,
                        e.paused,
                        format!("{:?}", e.circuit),
                        e.held_until,
                        e.revision,
                        e.created_at
                    ])
                })
                .collect(),
            event_types: store.event_types(None, 1000).await.unwrap(),
            subscriptions: store.subscriptions(None, 1000).await.unwrap(),
            settings: store.settings().await.unwrap(),
            stories,
            letters: store.dlq(DlqFilter { limit: 10_000, ..DlqFilter::default() }).await.unwrap(),
            summary: store.dlq_summary().await.unwrap(),
            replays: store.replays(None, 1000).await.unwrap(),
            // Each database counts its own versions, and nodes do not move.
            status: StoreStatus { schema_version: 0, live_nodes: 0, ..store.status().await.unwrap() },
        }
    }
}

/// All that is logged but the move itself.
pub(super) async fn events(store: &impl Operate) -> Vec<EventRecord> {
    let mut events = store.events(None, 100_000).await.unwrap();
    events.retain(|event| event.kind != "store.imported");
    events
}

/// Each table there, and the same here; what only SQLite has.
const TABLES: [(&str, &str, &[&str]); 14] = [
    ("settings", "_postrider_settings", &[]),
    ("_endpoints", "_postrider_endpoints", &[]),
    ("event_types", "_postrider_event_types", &[]),
    ("subscriptions", "_postrider_subscriptions", &[]),
    ("nodes", "_postrider_nodes", &[]),
    ("queue", "_postrider_queue", &["alone", "asked", "batch", "behind_key", "node_id", "started_at"]),
    ("_reservations", "_postrider_reservations", &["content_type", "payload"]),
    ("dlq", "_postrider_dlq", &[]),
    ("archive", "_postrider_archive_", &["delivered_late", "place"]),
    ("attempts", "_postrider_attempts", &["id"]),
    ("replays", "_postrider_replays", &[]),
    ("_replayed", "_postrider_replayed", &[]),
    ("event_log", "_postrider_event_log", &[]),
    ("_tokens", "_postrider_tokens", &[]),
];

type Rows = BTreeMap<String, Value>;

/// Every row of every table is there, with every column as it was.
pub(super) async fn compare_tables(file: &Connection, database: &Address) {
    let client = database.connect().await;
    for (table, here, only_here) in TABLES {
        let columns = "SELECT column_name::text, data_type::text FROM information_schema.columns
                       WHERE table_schema = 'postrider' AND table_name = $1 ORDER BY ordinal_position";
        let columns: Vec<(String, String)> = client
            .query(columns, &[&table])
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        let there = columns.iter().map(|(name, kind)| there(name, kind)).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT json_build_array({there})::text FROM postrider.{table}");
        let moved: Rows =
            keyed(client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get::<_, String>(0)));
        let moved = moved.into_iter().filter(|(_, row)| row[2] != "store.imported").collect::<Rows>();
        let mut original = Rows::new();
        for here in tables(file, here) {
            let known: BTreeSet<String> = names(file, &here);
            let theirs: BTreeSet<String> = columns.iter().map(|(name, _)| name.clone()).collect();
            let rest: Vec<&String> = known.difference(&theirs).collect();
            assert_eq!(rest, only_here, "{table}: a column that nobody thought of");
            let columns: Vec<String> =
                columns.iter().map(|(name, kind)| here_column(&here, name, kind)).collect();
            let sql = format!("SELECT json_array({}) FROM {here}", columns.join(", "));
            let mut statement = file.prepare(&sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap);
            original.extend(keyed(rows.map(|row| with_digest(table, row))));
        }
        assert!(
            moved.keys().eq(original.keys()),
            "{table}: {:?} instead of {:?}",
            moved.keys(),
            original.keys()
        );
        original.iter().for_each(|(key, row)| assert_eq!(moved[key], *row, "{table} {key}"));
    }
}

/// The attempts that claims count are the same, message by message.
pub(super) async fn compare_claims(file: &Connection, database: &Address) {
    let there = "SELECT json_build_array(id, node_id, (extract(epoch FROM started_at) * 1000000)::bigint, alone::int)::text
                 FROM postrider._claims, unnest(ids) AS id";
    let client = database.connect().await;
    let there = keyed(client.query(there, &[]).await.unwrap().iter().map(|row| row.get::<_, String>(0)));
    let here = "SELECT json_array(id, node_id, started_at, alone) FROM _postrider_queue WHERE place = 2";
    let mut here = file.prepare(here).unwrap();
    assert_eq!(there, keyed(here.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap)));
}

/// What senders are refused by is counted, not guessed.
pub(super) async fn check_gauge(database: &Address) {
    let counted = "SELECT g.queued = (SELECT count(*) FROM postrider.queue) AND g.at_id = m.last_value
                   FROM postrider._gauge g, postrider.message_ids m";
    assert!(database.connect().await.query_one(counted, &[]).await.unwrap().get::<_, bool>(0));
}

/// By what tells them apart, which stands first.
fn keyed(rows: impl Iterator<Item = String>) -> Rows {
    let mut keyed = Rows::new();
    let mut rows: Vec<String> = rows.collect();
    rows.sort();
    for row in rows {
        let row: Value = serde_json::from_str(&row).unwrap();
        let fields = row.as_array().unwrap().iter().take(4);
        let key: Vec<String> = fields.filter(|field| !field.is_object()).map(Value::to_string).collect();
        let mut key = key.join(" ");
        // A late acknowledgement is recorded beside the result of the same attempt.
        while keyed.contains_key(&key) {
            key.push_str(" again");
        }
        keyed.insert(key, row);
    }
    keyed
}

/// SQLite keeps of a reservation what PostgreSQL has a digest of.
fn with_digest(table: &str, row: String) -> String {
    if table != "_reservations" {
        return row;
    }
    let mut row: Value = serde_json::from_str(&row).unwrap();
    let kept = row[3].as_str().expect("what is reserved").as_bytes().chunks(2);
    let kept = kept.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    let digest = Sha256::digest(kept.collect::<Vec<u8>>());
    row[3] = digest.iter().map(|byte| format!("{byte:02X}")).collect::<String>().into();
    row.to_string()
}

/// A month each, for the archive.
fn tables(file: &Connection, name: &str) -> Vec<String> {
    if !name.ends_with('_') {
        return vec![name.to_owned()];
    }
    let sql = format!("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB '{name}[0-9]*'");
    let mut statement = file.prepare(&sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn names(file: &Connection, table: &str) -> BTreeSet<String> {
    let mut statement = file.prepare("SELECT name FROM pragma_table_info(?1)").unwrap();
    statement.query_map([table], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Times and spans in microseconds, flags as numbers, bytes in hex.
fn there(name: &str, kind: &str) -> String {
    match kind {
        "timestamp with time zone" | "interval" => format!("(extract(epoch FROM {name}) * 1000000)::bigint"),
        "boolean" => format!("{name}::int"),
        "bytea" => format!("upper(encode({name}, 'hex'))"),
        _ => name.to_owned(),
    }
}

fn here_column(table: &str, name: &str, kind: &str) -> String {
    match (table, name, kind) {
        ("_postrider_queue", "place", _) => {
            "CASE place WHEN 2 THEN CASE losses WHEN 0 THEN 0 ELSE 3 END ELSE place END".to_owned()
        }
        ("_postrider_queue", "attempts", _) => "attempts - (place = 2)".to_owned(),
        ("_postrider_reservations", "digest", _) => {
            "hex(CAST(content_type || x'00' || payload AS BLOB))".to_owned()
        }
        (_, _, "jsonb") => format!("json({name})"),
        (_, _, "bytea") => format!("CASE WHEN {name} IS NOT NULL THEN hex({name}) END"),
        _ => name.to_owned(),
    }
}
