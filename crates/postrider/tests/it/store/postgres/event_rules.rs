//! The rules of events in Rust and in SQL, side by side: whatever is asked, both say the same.

use postrider::Json;
use postrider::pubsub::{broken_schema, check_pattern, check_schema, contains, filled, patterns_for};
use postrider::tokio_postgres::Client;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};
use test_servers::Database;

use super::at_rest;
use crate::domain::events::values;

/// How many at a time: one statement each.
const PAIRS: usize = 400;

fn drawn<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> Vec<T> {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &rand::random::<[u8; 32]>()),
    );
    (0..PAIRS).map(|_| strategy.new_tree(&mut runner).expect("a value").current()).collect()
}

async fn server() -> (Database, Client) {
    let database = at_rest().await;
    let client = database.connect().await;
    (database, client)
}

/// What the expression says of each pair; it knows them as `left` and `right`.
async fn asked(client: &Client, expression: &str, pairs: &[(Json, Json)]) -> Vec<Option<String>> {
    let text = |values: Vec<&Json>| values.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (left, right): (Vec<&Json>, Vec<&Json>) = pairs.iter().map(|(left, right)| (left, right)).unzip();
    let sql = format!(
        "SELECT ({expression})::text FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS p (l, r, n),
           LATERAL (SELECT l::jsonb AS \"left\", r::jsonb AS \"right\") AS j ORDER BY n"
    );
    let rows = client.query(&sql, &[&text(left), &text(right)]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// Values that are often parts of each other.
fn related() -> impl Strategy<Value = (Json, Json)> {
    (values(), values(), 0..4u8).prop_map(|(value, other, relation)| match (relation, &value) {
        (0, Json::List(items)) if !items.is_empty() => (value.clone(), Json::List(vec![items[0].clone()])),
        (0, Json::Object(members)) => {
            let some = members.iter().take(1).map(|(key, value)| (key.clone(), value.clone()));
            (value.clone(), Json::Object(some.collect()))
        }
        (1, _) => (Json::List(vec![other, value.clone()]), value),
        (2, _) => (Json::Object([("a".into(), value.clone()), ("b".into(), other)].into()), {
            Json::Object([("a".into(), value)].into())
        }),
        _ => (value, other),
    })
}

#[tokio::test]
async fn values_are_read_and_compared_alike() {
    let (_database, client) = server().await;
    let pairs = drawn(related());
    let same = asked(&client, "\"left\" = \"right\"", &pairs).await;
    let text = asked(&client, "\"left\"", &pairs).await;
    for (((left, right), same), text) in pairs.iter().zip(same).zip(text) {
        assert_eq!((left == right).to_string(), same.unwrap(), "{left} = {right}");
        assert_eq!(json(&text.unwrap()), *left);
    }
    // Numbers of this size, and no larger ones.
    for (number, fits) in [("1e131071", true), ("1e131072", false), ("1e-16383", true), ("1e-16384", false)] {
        assert_eq!(Json::parse(number.as_bytes()).is_ok(), fits);
        assert_eq!(client.query(&format!("SELECT '{number}'::jsonb"), &[]).await.is_ok(), fits, "{number}");
    }
}

#[tokio::test]
async fn filters_let_the_same_through() {
    let (_database, client) = server().await;
    let pairs = drawn(related());
    let passed = asked(&client, "\"left\" @> \"right\"", &pairs).await;
    let mut both = [0, 0];
    for ((left, right), passed) in pairs.iter().zip(passed) {
        let passes = contains(left, right);
        assert_eq!(passes.to_string(), passed.unwrap(), "{left} @> {right}");
        both[usize::from(passes)] += 1;
    }
    assert!(both.iter().all(|count| *count > 20), "both answers are met: {both:?}");
}

#[tokio::test]
async fn templates_are_filled_alike() {
    let (_database, client) = server().await;
    let pairs = drawn((values(), values()));
    let results = asked(&client, "postrider._filled(\"left\", \"right\")", &pairs).await;
    for ((template, event), result) in pairs.iter().zip(results) {
        assert_eq!(json(&result.unwrap()), filled(template, event), "{template} of {event}");
    }
    // Of strings that are nearly pointers.
    let text = vec(select(&["{", "}", "{{", "}}", "/", "a", "b", "0", "~", "~1", "~0", "\n", " "]), 0..7);
    let text = text.prop_map(|parts| Json::Text(parts.concat()));
    let pairs = drawn((
        prop_oneof![
            text.clone(),
            text.prop_map(|inner| match inner {
                Json::Text(inner) => Json::Text(format!("{{{{/{inner}}}}}")),
                other => other,
            })
        ],
        values(),
    ));
    let results = asked(&client, "postrider._filled(\"left\", \"right\")", &pairs).await;
    for ((template, event), result) in pairs.iter().zip(results) {
        assert_eq!(json(&result.unwrap()), filled(template, event), "{template} of {event}");
    }
}

/// Schemas of every keyword, mostly ones that are allowed.
fn schemas() -> impl Strategy<Value = Json> {
    let object =
        |keyword: &'static str| move |value: Json| Json::Object([(keyword.to_owned(), value)].into());
    let number =
        select(&["0", "1", "2", "1.5", "1e2", "-1", "1.0", "12345678901234567890123"]).prop_map(json);
    let count = select(&["0", "1", "2", "3", "1e0", "1.0", "-1"]).prop_map(json);
    let kinds = ["null", "boolean", "object", "array", "number", "string", "integer", "text"];
    let kind = select(kinds.to_vec()).prop_map(|kind| Json::Text(kind.to_owned()));
    let name = select(&["a", "b", "c", ""]).prop_map(|name| Json::Text(name.to_owned()));
    let leaf = prop_oneof![
        any::<bool>().prop_map(Json::Flag),
        Just(json("{}")),
        values().prop_map(object("const")),
        values().prop_map(object("enum")),
        vec(values(), 0..3).prop_map(Json::List).prop_map(object("enum")),
        kind.clone().prop_map(object("type")),
        vec(kind, 0..3).prop_map(Json::List).prop_map(object("type")),
        number.clone().prop_map(object("minimum")),
        number.prop_map(object("maximum")),
        count.clone().prop_map(object("minLength")),
        count.clone().prop_map(object("maxLength")),
        count.clone().prop_map(object("minItems")),
        count.prop_map(object("maxItems")),
        vec(name, 0..3).prop_map(Json::List).prop_map(object("required")),
        values(),
        values().prop_map(object("pattern")),
        values().prop_map(object("description")),
    ];
    leaf.prop_recursive(3, 12, 3, move |inner| {
        let members = proptest::collection::btree_map(
            select(&["a", "b", "c"]).prop_map(str::to_owned),
            inner.clone(),
            0..3,
        );
        prop_oneof![
            members.prop_map(Json::Object).prop_map(object("properties")),
            inner.clone().prop_map(object("additionalProperties")),
            inner.clone().prop_map(object("items")),
            (inner.clone(), inner).prop_map(|(left, right)| match (left, right) {
                (Json::Object(mut left), Json::Object(right)) => {
                    left.extend(right);
                    Json::Object(left)
                }
                (left, _) => left,
            }),
        ]
    })
}

#[tokio::test]
async fn schemas_are_taken_and_enforced_alike() {
    let (_database, client) = server().await;
    client
        .batch_execute(
            "CREATE FUNCTION pg_temp.said(p_schema jsonb) RETURNS text LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM postrider._check_schema('schema', p_schema);
               RETURN NULL;
             EXCEPTION WHEN SQLSTATE '22023' THEN RETURN SQLERRM;
             END $$",
        )
        .await
        .unwrap();
    let pairs = drawn((schemas(), values()));
    let taken = asked(&client, "pg_temp.said(\"left\")", &pairs).await;
    let mut good = Vec::new();
    for ((schema, value), said) in pairs.into_iter().zip(taken) {
        let refused = check_schema("schema", &schema).err().map(|error| error.to_string());
        assert_eq!(refused, said, "{schema}");
        if said.is_none() {
            good.push((schema, value));
        }
    }
    assert!(good.len() > PAIRS / 5, "{} schemas are good", good.len());
    let broken = asked(&client, "postrider._broken_schema('payload', \"right\", \"left\")", &good).await;
    let mut both = [0, 0];
    for ((schema, value), said) in good.iter().zip(broken) {
        let broken = broken_schema("payload", value, schema);
        // Both write numbers out, each in its own way.
        let path = |text: &str| text.split(": ").next().unwrap().to_owned();
        assert_eq!(
            broken.as_ref().map(|broken| broken.field.clone()),
            said.as_deref().map(path),
            "{schema} of {value}"
        );
        both[usize::from(broken.is_some())] += 1;
    }
    assert!(both.iter().all(|count| *count > 10), "both answers are met: {both:?}");
}

#[tokio::test]
async fn patterns_fit_alike() {
    let (_database, client) = server().await;
    let pattern =
        vec(select(&["a", "b", ".", "*", "-", "_", "é", " ", ".*"]), 0..5).prop_map(|parts| parts.concat());
    for pattern in drawn(pattern) {
        let sql = "SELECT $1 ~ '^(\\*|[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?)$'";
        let good: bool = client.query_one(sql, &[&pattern]).await.unwrap().get(0);
        assert_eq!(check_pattern("pattern", &pattern).is_ok(), good, "{pattern}");
    }
    for name in ["a", "a.b", "a.b.c", "a-b.c"] {
        let mut theirs: Vec<String> =
            client.query_one("SELECT postrider._patterns_for($1)", &[&name]).await.unwrap().get(0);
        let mut ours = patterns_for(name);
        theirs.sort();
        ours.sort();
        assert_eq!(ours, theirs);
    }
}
