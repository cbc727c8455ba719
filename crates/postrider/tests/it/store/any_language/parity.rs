//! The same messages by `send_in` into one store and by SQL into another: the same answers, the same rows.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use postrider::rusqlite::types::Value as Column;
use postrider::store::sqlite::send_in;
use postrider::verdict::Verdict;
use postrider::{NewMessage, Operate, Sent, StoreError};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::super::world::{DEAD, new_endpoint, to};
use super::Shop;

/// Several, so that each is met now and then; the last one does not exist.
const ENDPOINTS: [&str; 10] =
    ["a", "a", "global", "planet", "file", "kept", "listed", "small", "off", "nowhere"];

#[derive(Clone, Debug)]
enum Step {
    Send(Box<NewMessage>),
    /// What is due at one of the endpoints is delivered, or dies.
    Finish(&'static str, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let finish = (select(&ENDPOINTS[..7]), any::<bool>()).prop_map(|(name, dies)| Step::Finish(name, dies));
    let send = messages().prop_map(|message| Step::Send(Box::new(message)));
    vec(prop_oneof![3 => send, 1 => finish], 1..60)
}

fn messages() -> impl Strategy<Value = NewMessage> {
    let plain = (select(&ENDPOINTS), payloads(), content_types(), priorities());
    let keys = (option::weighted(0.5, keys()), option::weighted(0.4, keys()), option::weighted(0.1, keys()));
    let times = (option::weighted(0.15, times()), option::weighted(0.2, times()));
    let maps = (option::weighted(0.1, headers()), option::weighted(0.15, options()));
    let id = option::weighted(0.2, any::<u128>().prop_map(uuid::Uuid::from_u128));
    (plain, keys, times, maps, id).prop_map(|(plain, keys, times, maps, correlation_id)| NewMessage {
        content_type: plain.2.into(),
        priority: plain.3,
        ordering_key: keys.0,
        idempotency_key: keys.1,
        event_type: keys.2,
        scheduled_at: times.0,
        expires_at: times.1,
        headers: maps.0.unwrap_or_default(),
        options: maps.1.unwrap_or_default(),
        correlation_id,
        ..NewMessage::new(plain.0, plain.1)
    })
}

/// JSON for the most part, and some that is nearly so.
fn payloads() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        10 => select(&["1", "2"]).prop_map(Bytes::from),
        2 => texts().prop_map(|text| json!([text]).to_string().into()),
        1 => "[\\[\\]{}:,\"a1 \\\\-]{0,6}".prop_map(Bytes::from),
        1 => vec(any::<u8>(), 0..4).prop_map(|bytes| [b"\"", &bytes[..], b"\""].concat().into()),
        1 => (120..140usize).prop_map(|depth| ("[".repeat(depth) + &"]".repeat(depth)).into()),
    ]
}

fn content_types() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        30 => select(&["application/json", "text/plain", "a/b+JSON; c", "text/json"]),
        1 => select(&["", "é", "a\tb"]),
    ]
}

fn priorities() -> impl Strategy<Value = u8> {
    prop_oneof![30 => 0..=10u8, 1 => 11..=255u8]
}

fn keys() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => select(&["k", "l", "é"]).prop_map(str::to_owned),
        1 => select(vec![String::new(), "a\u{85}".to_owned(), "\n".to_owned(), "x".repeat(257), "é".repeat(128)]),
        1 => texts(),
    ]
}

/// What SQLite's JSON cannot hold is refused by SQL alone.
fn texts() -> impl Strategy<Value = String> {
    ".{0,6}".prop_filter("only SQL refuses it", |text: &String| !text.contains('\0'))
}

/// In the past, around now and in the future, with all digits that a time has.
fn times() -> impl Strategy<Value = Timestamp> {
    let around = |seconds: i64| Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    (select(&[-86_400, -60, 3600, 3600, 86_400]), 0..1_000_000_000i64)
        .prop_map(move |(seconds, nanos)| around(seconds) + Duration::from_nanos(nanos as u64))
}

fn headers() -> impl Strategy<Value = BTreeMap<String, String>> {
    let name = prop_oneof![
        8 => select(&["x-a", "X-A", "b", "x-secret", "X-Ref", "authorization"]).prop_map(str::to_owned),
        1 =>  select(&["te", "Keep-Alive", "host", "proxy-x", "webhook-id", "CE-x", "", "a b", "é", "a:b"]).prop_map(str::to_owned),
        1 => "[!-~]{1,3}",
    ];
    let value = prop_oneof![
        8 => "[ -~]{0,6}",
        4 => select(&["a\tb", "é", "a\nb"]).prop_map(str::to_owned),
        1 => texts(),
    ];
    btree_map(name, value, 0..3)
}

fn options() -> impl Strategy<Value = Map<String, Value>> {
    let timeout = select(vec![
        json!(0.5),
        json!(5),
        json!(299.9),
        json!(300),
        json!(3601),
        json!(0),
        json!(-1),
        json!("5"),
        json!(null),
        json!(1e-10),
    ]);
    let attempts = select(vec![
        json!(0),
        json!(5),
        json!(1001),
        json!(1002),
        json!(-1),
        json!(5.0),
        json!("5"),
        json!(null),
    ]);
    let method = prop_oneof![
        select(&["PUT", "TRACE", "CONNECT", "post", "", "A B", "É"]).prop_map(str::to_owned),
        "[!-~]{1,4}"
    ];
    let suffix = prop_oneof!["[/?][a-z/?=&%2eE.]{0,8}", "[ -~]{0,6}", texts(),];
    let text = |texts: BoxedStrategy<String>| texts.prop_map(Value::from);
    let option = prop_oneof![
        timeout.prop_map(|value| ("timeout".to_owned(), value)),
        attempts.prop_map(|value| ("max_attempts".to_owned(), value)),
        text(method.boxed()).prop_map(|value| ("method".to_owned(), value)),
        text(suffix.boxed()).prop_map(|value| ("url_suffix".to_owned(), value)),
        select(vec![json!(1), json!(null)]).prop_map(|value| ("unheard of".to_owned(), value)),
    ];
    vec(option, 0..3).prop_map(|options| options.into_iter().collect())
}

/// One of the two stores, with everything that a message can meet.
struct Side {
    shop: Shop,
}

impl Side {
    async fn open(archive: &str) -> Self {
        let shop = Shop::open().await;
        let create = |name: &'static str, protocol: &str, options: Value| {
            let mut endpoint = new_endpoint(name, options);
            if protocol == "file" {
                endpoint.config = json!({ "path": "out.jsonl" }).as_object().unwrap().clone();
            }
            endpoint.protocol = protocol.to_owned();
            shop.store.create_endpoint(endpoint)
        };
        create("global", "http", json!({ "key_scope": "global", "on_dead": "hold" })).await.unwrap();
        create("planet", "http", json!({ "key_scope": "global" })).await.unwrap();
        create("file", "file", json!({ "on_dead": "hold" })).await.unwrap();
        let own = json!({"x-a": "own", "X-Secret": "own", "x-ref": "${POSTRIDER_SECRET_A}"});
        let kept = |name: &str, options: Value| {
            let mut endpoint = new_endpoint(name, options);
            endpoint.config.insert("headers".to_owned(), own.clone());
            endpoint
        };
        let mut secured = kept("kept", json!({}));
        secured.config.insert("auth".to_owned(), json!({"type": "bearer", "token": "t"}));
        shop.store.create_endpoint(secured).await.unwrap();
        shop.store.create_endpoint(kept("listed", json!({"override_headers": ["x-secret"]}))).await.unwrap();
        create("small", "http", json!({ "max_queue_size": 2 })).await.unwrap();
        create("off", "http", json!({})).await.unwrap();
        shop.store.set_endpoint_enabled("off", false).await.unwrap();
        for (name, value) in
            [("max_queue_size", "12"), ("idempotency_retention", "600"), ("archive", archive)]
        {
            shop.configure(name, value).await;
        }
        Self { shop }
    }

    /// Every column of what a send writes, but what the clock said; JSON as what it means.
    fn rows(&self) -> Vec<Vec<(String, Column)>> {
        let tables = [
            "SELECT 'queue', *, nullif(due_at, created_at) AS due_at, 0 AS created_at, 0 AS started_at FROM _postrider_queue ORDER BY id",
            "SELECT 'archive', *, 0 AS created_at, 0 AS finished_at FROM _postrider_archive ORDER BY id",
            "SELECT 'counts', endpoint_id, queued, dead FROM _postrider_counts WHERE queued + dead <> 0 ORDER BY endpoint_id",
            "SELECT 'reserved', *, 0 AS until FROM _postrider_reservations ORDER BY endpoint_id, idempotency_key",
            "SELECT 'last', seq FROM sqlite_sequence WHERE name = '_postrider_queue'",
        ];
        tables.iter().flat_map(|sql| self.select(sql)).collect()
    }

    fn select(&self, sql: &str) -> Vec<Vec<(String, Column)>> {
        let mut statement = self.shop.app.prepare(sql).unwrap();
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query([]).unwrap();
        let mut all = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            // The last of a name is the one that can be compared.
            let columns: BTreeMap<String, Column> =
                names.iter().enumerate().map(|(at, name)| (name.clone(), row.get(at).unwrap())).collect();
            all.push(columns.into_iter().map(comparable).collect());
        }
        all
    }
}

fn comparable((name, value): (String, Column)) -> (String, Column) {
    match (name.as_str(), value) {
        ("options", Column::Text(text)) => {
            let meant: Value = serde_json::from_str(&text).unwrap();
            (name, Column::Text(meant.to_string()))
        }
        (_, value) => (name, value),
    }
}

/// SQLSTATE and field of a refusal.
fn refused_by_program(error: &StoreError) -> (String, String) {
    let field = match error {
        StoreError::Invalid(invalid) => invalid.field.clone(),
        StoreError::TooLarge { field, .. } => (*field).to_owned(),
        StoreError::Unknown { what, .. } => (*what).to_owned(),
        StoreError::Disabled { .. } => "endpoint".to_owned(),
        StoreError::IdempotencyConflict { .. } => "idempotency_key".to_owned(),
        StoreError::QueueFull { endpoint: None, .. } => "max_queue_size".to_owned(),
        StoreError::QueueFull { endpoint: Some(_), .. } => "options.max_queue_size".to_owned(),
        other => panic!("{other:?}"),
    };
    (error.sqlstate().to_owned(), field)
}

fn assert_same(message: &NewMessage, program: Result<Sent, StoreError>, sql: Result<Sent, String>) {
    match (program, sql) {
        (Ok(program), Ok(sql)) => assert_eq!(program, sql, "{message:?}"),
        (Err(program), Err(sql)) => {
            let (state, field) = refused_by_program(&program);
            let (sql_state, sql_rest) = sql.split_once(' ').unwrap();
            let sql_field = sql_rest.split(':').next().unwrap();
            // RAISE cannot name what the caller made up, only what it is part of; and of several bad options either
            // may name any.
            let same = field == sql_field
                || field.starts_with(&format!("{sql_field}."))
                || (message.options.len() > 1
                    && field.starts_with("options.")
                    && sql_field.starts_with("options"));
            assert!(state == sql_state && same, "{message:?}\nprogram: {state} {program}\nsql: {sql}");
        }
        (program, sql) => panic!("{message:?}\nprogram: {program:?}\nsql: {sql:?}"),
    }
}

async fn run(steps: Vec<Step>, archive: &str) {
    let (program, sql) = (Side::open(archive).await, Side::open(archive).await);
    for step in steps {
        match step {
            Step::Send(message) => {
                let sent = send_in(&program.shop.app, &message);
                assert_same(&message, sent, sql.shop.send(&message));
            }
            Step::Finish(endpoint, dies) => {
                for side in [&program, &sql] {
                    side.shop.finish_one(endpoint, if dies { DEAD } else { Verdict::Complete }).await;
                }
            }
        }
        assert_eq!(program.rows(), sql.rows());
    }
}

/// Enough for every run; `PROPTEST_CASES=1000` looks longer.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]
    #[test]
    fn sql_sends_what_the_program_sends(steps in steps(), archive in select(&["on", "metadata", "off"])) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(run(steps, archive));
    }
}

#[tokio::test]
async fn the_comparison_sees_a_difference() {
    let (left, right) = (Side::open("on").await, Side::open("on").await);
    left.shop.send(&to("a")).unwrap();
    right.shop.send(&NewMessage { priority: 1, ..to("a") }).unwrap();
    assert_ne!(left.rows(), right.rows());
}
