//! What is refused of a message, an event or an endpoint is refused on every way in, in the same words: by the library on both
//! stores, inside callers' transactions and by SQL. The server's tests say the same of the API and the command line.

use std::collections::BTreeMap;

use postrider::store::sqlite::send_in;
use postrider::{Json, NewEndpoint, NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PubSub};
use serde_json::{Map, Value, json};

use super::any_language::{said, send as send_by_sql};
use super::postgres::Postgres;
use super::postgres::prompt::{self, Prompt};
use super::shop::Shop;
use super::sqlite::Sqlite;
use super::world::{Harness, World};

/// Refusals are told as `field: rule`.
type Told<T> = Result<T, String>;

trait Way {
    async fn create(&self, endpoint: NewEndpoint) -> Told<()>;
    async fn send(&self, message: &NewMessage) -> Told<()>;
    async fn publish(&self, event: &NewEvent) -> Told<()>;
}

struct Library<H: Harness>(World<H>);

impl<H: Harness> Way for Library<H> {
    async fn create(&self, endpoint: NewEndpoint) -> Told<()> {
        self.0.store().create_endpoint(endpoint).await.map(drop).map_err(|error| error.to_string())
    }

    async fn send(&self, message: &NewMessage) -> Told<()> {
        let alone = self.0.store().send(message.clone()).await.map(drop);
        let listed = self.0.store().send_batch(vec![message.clone(), message.clone()]).await.map(drop);
        let (alone, listed) = (alone.map_err(|error| error.to_string()), listed.map_err(|e| e.to_string()));
        assert_eq!(alone, listed, "alone and in a batch");
        alone
    }

    async fn publish(&self, event: &NewEvent) -> Told<()> {
        self.0.store().publish(event.clone()).await.map(drop).map_err(|error| error.to_string())
    }
}

/// In an application's own transaction, by the library.
struct Outbox(Shop);

impl Way for Outbox {
    async fn create(&self, endpoint: NewEndpoint) -> Told<()> {
        self.0.store.create_endpoint(endpoint).await.map(drop).map_err(|error| error.to_string())
    }

    async fn send(&self, message: &NewMessage) -> Told<()> {
        send_in(&self.0.app, message).map(drop).map_err(|error| error.to_string())
    }

    async fn publish(&self, event: &NewEvent) -> Told<()> {
        let publish = postrider::store::sqlite::publish_in;
        publish(&self.0.app, event).map(drop).map_err(|error| error.to_string())
    }
}

/// SQL on SQLite. It cannot name what a caller made up: `headers: a header is …` stands for `headers.x-a: is …`.
struct SqliteSql(Shop);

fn without_state(told: String) -> String {
    told.split_once(' ').expect("an SQLSTATE").1.to_owned()
}

impl Way for SqliteSql {
    async fn create(&self, endpoint: NewEndpoint) -> Told<()> {
        self.0.store.create_endpoint(endpoint).await.map(drop).map_err(|error| error.to_string())
    }

    async fn send(&self, message: &NewMessage) -> Told<()> {
        send_by_sql(&self.0.app, "INSERT", message).map(drop).map_err(without_state)
    }

    async fn publish(&self, event: &NewEvent) -> Told<()> {
        let insert = "INSERT INTO postrider_publish (event_type, payload, headers) VALUES (?1, ?2, ?3)";
        let values = (&event.event_type, &event.payload[..], json!(event.headers).to_string());
        self.0.app.execute(insert, values).map(drop).map_err(|error| without_state(said(&error)))
    }
}

/// SQL on PostgreSQL.
struct PostgresSql(Prompt);

impl PostgresSql {
    async fn ask(&self, sql: &str) -> Told<()> {
        self.0.ask(sql).await.map(drop).map_err(|refusal| refusal.message)
    }
}

fn quoted(value: impl ToString) -> String {
    format!("'{}'", value.to_string().replace('\'', "''"))
}

fn bytea(bytes: &[u8]) -> String {
    format!("'\\x{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

impl Way for PostgresSql {
    async fn create(&self, endpoint: NewEndpoint) -> Told<()> {
        let NewEndpoint { name, protocol, config, retry_policy, options } = endpoint;
        let json = |value: Option<Value>| value.map_or("NULL".to_owned(), quoted);
        let (config, retry_policy, options) = (quoted(json!(config)), json(retry_policy), json(options));
        let values = format!("'{name}', '{protocol}', {config}, {retry_policy}, {options}");
        self.ask(&format!("SELECT postrider.create_endpoint({values})")).await
    }

    async fn send(&self, message: &NewMessage) -> Told<()> {
        let NewMessage { endpoint, payload, content_type, headers, options, .. } = message;
        let map = |value: Value| if value == json!({}) { "NULL".to_owned() } else { quoted(value) };
        let (headers, options) = (map(json!(headers)), map(json!(options)));
        self.ask(&format!(
            "SELECT postrider.send_bytes('{endpoint}', {}, {}, p_headers => {headers}, p_options => {options})",
            bytea(payload),
            quoted(content_type)
        ))
        .await
    }

    async fn publish(&self, event: &NewEvent) -> Told<()> {
        let (payload, headers) = (String::from_utf8_lossy(&event.payload), json!(event.headers));
        let values = format!("'{}', {}, p_headers => {}", event.event_type, quoted(payload), quoted(headers));
        self.ask(&format!("SELECT postrider.publish({values})")).await
    }
}

macro_rules! on_every_way_in {
    ($($name:ident => $check:ident),* $(,)?) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            async fn by_the_library_on_sqlite() {
                $check(Library(World::<Sqlite>::start().await)).await;
            }

            #[tokio::test]
            async fn by_the_library_on_postgresql() {
                $check(Library(World::<Postgres>::start().await)).await;
            }

            #[tokio::test]
            async fn in_the_callers_transaction() {
                $check(Outbox(Shop::open().await)).await;
            }

            #[tokio::test]
            async fn by_sql_on_sqlite() {
                $check(SqliteSql(Shop::open().await)).await;
            }

            #[tokio::test]
            async fn by_sql_on_postgresql() {
                let (_database, owner) = prompt::alone().await;
                $check(PostgresSql(owner)).await;
            }
        }
    )*};
}

on_every_way_in! {
    a_payload_that_says_it_is_json_is => json_payloads,
    json_has_at_most_128_levels => depth,
    no_header_is_given_twice => headers_twice,
    a_message_sets_no_header_of_connection_or_receiver => headers_of_others,
    a_message_replaces_only_headers_that_its_endpoint_lets_go => kept_headers,
    maps_in_options_are_as_limited_as_headers => maps_in_options,
    what_an_endpoint_says_is_checked => endpoints,
}

const JSON: &str = "application/json";

fn message(content_type: &str, payload: impl AsRef<[u8]>) -> NewMessage {
    let payload = payload.as_ref().to_vec();
    NewMessage { content_type: content_type.to_owned(), ..NewMessage::new("a", payload) }
}

async fn json_payloads(way: impl Way) {
    let refused: [(&str, &[u8]); 14] = [
        (JSON, b"{oops"),
        (JSON, b""),
        (JSON, b"hello"),
        (JSON, b"{'a':1}"),
        (JSON, b"[1,]"),
        (JSON, b"NaN"),
        (JSON, b"01"),
        (JSON, b"1 2"),
        (JSON, b"{}\0"),
        (JSON, b"\"\xff\""),
        (JSON, b"\"\xe2\x82\""),
        (JSON, b"\"a\nb\""),
        ("Application/JSON; charset=utf-8", b"{oops"),
        ("application/vnd.shop+json;v=1", b"{oops"),
    ];
    for (content_type, payload) in refused {
        let told = way.send(&message(content_type, payload)).await.expect_err("no JSON");
        assert!(told.starts_with("payload: is not JSON"), "{payload:?}: {told}");
    }
    let taken: [(&str, &[u8]); 10] = [
        (JSON, b" {\"a\": 1.0,\n \"a\": 2}\r\n"),
        (JSON, b"1e400"),
        (JSON, b"\"\\u0000 \\ud800\""),
        (JSON, "\"é € 😀 \u{fffe}\u{ffff}\u{fffd}\"".as_bytes()),
        (JSON, b"null"),
        ("application/vnd.shop+json", b"[]"),
        ("text/plain", b"{oops"),
        ("application/octet-stream", b"\xff\x00"),
        ("application/jsonlines", b"{}\n{}"),
        ("text/plain", b""),
    ];
    for (content_type, payload) in taken {
        assert_eq!(way.send(&message(content_type, payload)).await, Ok(()), "{content_type} {payload:?}");
    }
}

fn lists(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// With brackets in its keys, which do not count.
fn objects(levels: usize) -> String {
    "{\"[\\\"[\":".repeat(levels) + "1" + &"}".repeat(levels)
}

fn deep(levels: usize) -> Value {
    (0..levels).fold(json!(1), |within, _| json!([within]))
}

async fn depth(way: impl Way) {
    for levels in [129, 200, 3000] {
        for payload in [lists(levels), objects(levels)] {
            let told = way.send(&message(JSON, payload)).await;
            assert_eq!(told, Err("payload: is more than 128 levels deep".to_owned()), "{levels}");
        }
    }
    let many = format!("[{}]", vec![objects(127); 9].join(","));
    for payload in [lists(128), objects(128), many] {
        assert_eq!(way.send(&message(JSON, &payload)).await, Ok(()), "{payload}");
    }
    assert_eq!(way.send(&message("text/plain", lists(129))).await, Ok(()), "it does not say that it is JSON");

    let options = Map::from_iter([("max_attempts".to_owned(), deep(128))]);
    let told = way.send(&NewMessage { options, ..message(JSON, "1") }).await;
    assert_eq!(told, Err("options: is more than 128 levels deep".to_owned()));
    for (field, levels) in [("config", 128), ("retry_policy", 128), ("options", 128)] {
        let mut endpoint = json!({
            "name": "b", "protocol": "http", "config": {"url": "https://example.com/"}, "retry_policy": {}, "options": {},
        });
        endpoint[field]["x"] = deep(levels);
        // Read piece by piece: serde stops at 128 levels itself.
        let mut given = |field: &str| endpoint[field].take();
        let endpoint = NewEndpoint {
            name: "b".to_owned(),
            protocol: "http".to_owned(),
            config: given("config").as_object().expect("an object").clone(),
            retry_policy: Some(given("retry_policy")),
            options: Some(given("options")),
        };
        assert_eq!(way.create(endpoint).await, Err(format!("{field}: is more than 128 levels deep")));
    }
}

fn with_headers(endpoint: &str, headers: &[(&str, &str)]) -> NewMessage {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    NewMessage { headers, ..NewMessage::new(endpoint, "1") }
}

/// Does it say this of one of these names?
#[track_caller]
fn assert_says(told: Told<()>, names: &[&str], rule: &str) {
    let told = told.expect_err("it is refused");
    let fits = names.iter().any(|name| told == format!("headers.{name}: {rule}"));
    assert!(fits || told == format!("headers: a header {rule}"), "{told}");
}

async fn headers_twice(way: impl Way) {
    let rule = "is given twice; names of headers ignore case";
    let file = json!({"path": "out.jsonl"});
    way.create(endpoint("file", "file", file, json!({}))).await.unwrap();
    for endpoint in ["a", "file"] {
        let twice = with_headers(endpoint, &[("X-A", "1"), ("x-a", "1"), ("b", "2")]);
        assert_says(way.send(&twice).await, &["x-a"], rule);
        assert_eq!(way.send(&with_headers(endpoint, &[("X-A", "1"), ("x-b", "1")])).await, Ok(()));
    }
}

async fn headers_of_others(way: impl Way) {
    let of_the_connection = [
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "Proxy-Authorization",
        "proxy-anything",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "Content-Length",
    ];
    for name in of_the_connection {
        let told = way.send(&with_headers("a", &[(name, "x")])).await;
        assert_says(told, &[name], "belongs to the connection and cannot be set");
    }
    for name in ["Host", "host"] {
        let told = way.send(&with_headers("a", &[(name, "example.com")])).await;
        assert_says(told, &[name], "can be set by the endpoint only");
    }
}

async fn maps_in_options(way: impl Way) {
    let config = json!({"host": "127.0.0.1", "stream_key": "orders"});
    way.create(endpoint("stream", "redis", config, json!(null))).await.unwrap();
    let message = |options: String| NewMessage {
        options: serde_json::from_str(&options).unwrap(),
        ..NewMessage::new("stream", "1")
    };
    let wide = |bytes: usize| message(json!({"fields": {"colour": "r".repeat(bytes - 6)}}).to_string());
    assert_eq!(way.send(&wide(16_384)).await, Ok(()));
    let told = way.send(&wide(16_385)).await.unwrap_err();
    assert!(told.starts_with("options: ") && told.contains("max_headers_bytes"), "{told}");
    let told = way.send(&message(json!({"fields": {"id": "1"}}).to_string())).await.unwrap_err();
    assert!(told.starts_with("options.fields") && told.contains("are Postrider's"), "{told}");
}

fn endpoint(name: &str, protocol: &str, config: Value, options: Value) -> NewEndpoint {
    NewEndpoint {
        name: name.to_owned(),
        protocol: protocol.to_owned(),
        config: config.as_object().expect("an object").clone(),
        retry_policy: None,
        options: Some(options),
    }
}

async fn kept_headers(way: impl Way) {
    let config = |auth: Value| {
        let headers = json!({
            "X-Plain": "p", "X-Api-Key": "k", "X-Ref": "${POSTRIDER_SECRET_X}", "X-File": "file:x",
        });
        let mut config = json!({"url": "https://example.com/", "headers": headers});
        if auth != json!(null) {
            config["auth"] = auth;
        }
        config
    };
    let bearer = json!({"type": "bearer", "token": "t"});
    let options = json!({"override_headers": ["x-api-key", "x-unset"]});
    way.create(endpoint("default", "http", config(json!(null)), json!({}))).await.unwrap();
    way.create(endpoint("listed", "http", config(bearer), options)).await.unwrap();
    way.create(endpoint("none", "http", config(json!(null)), json!({"override_headers": []}))).await.unwrap();
    let cases = [
        ("default", "x-plain", true),
        ("default", "x-api-key", false),
        ("default", "X-REF", false),
        ("default", "x-file", false),
        ("default", "Authorization", true),
        ("listed", "X-PLAIN", false),
        ("listed", "x-api-key", true),
        ("listed", "x-ref", false),
        ("listed", "authorization", false),
        ("listed", "x-unset", true),
        ("none", "x-plain", false),
        ("none", "x-other", true),
    ];
    for (endpoint, name, may) in cases {
        let told = way.send(&with_headers(endpoint, &[("x-more", "1"), (name, "message")])).await;
        match may {
            true => assert_eq!(told, Ok(()), "{endpoint} {name}"),
            false => {
                assert_says(told, &[name], "is set by the endpoint, which does not let messages replace it");
            }
        }
    }
}

async fn endpoints(way: impl Way) {
    let config = |key: &str, value: Value| json!({"url": "https://example.com/", key: value});
    let names = "must be a list of at most 100 names of headers";
    let status = "must be a whole number from 300 to 599, or \"3xx\" or \"4xx\" or \"5xx\"";
    let refused = [
        (json!({"url": "https://x.y/"}), json!({"override_headers": "x-a"}), format!("options.override_headers: {names}")),
        (json!({"url": "https://x.y/"}), json!({"override_headers": null}), format!("options.override_headers: {names}")),
        (json!({"url": "https://x.y/"}), json!({"override_headers": ["x-a", 1]}), "options.override_headers[1]: must be a string".into()),
        (json!({"url": "https://x.y/"}), json!({"override_headers": ["a b"]}), "options.override_headers[0]: is not a valid header name".into()),
        (
            json!({"url": "https://x.y/"}),
            json!({"override_headers": ["proxy-x"]}),
            "options.override_headers[0]: belongs to the connection and cannot be set".into(),
        ),
        (
            json!({"url": "https://x.y/"}),
            json!({"override_headers": ["X-A", "x-a"]}),
            "options.override_headers.x-a: is given twice; names of headers ignore case".into(),
        ),
        (
            config("auth", json!({"type": "bearer", "token": "t"})),
            json!({"override_headers": ["x-a", "Authorization"]}),
            "options.override_headers[1]: is set by config.auth and cannot be replaced".into(),
        ),
        (
            json!({"url": "https://x.y/"}),
            json!({"override_header": []}),
            "options.override_header: unknown field; expected one of: durability, max_in_flight, rate_limit, on_dead, \
             key_scope, max_queue_size, override_headers"
                .into(),
        ),
        (config("retry_status", json!(404)), json!({}), "config.retry_status: must be a list".into()),
        (config("retry_status", json!([404, 200])), json!({}), format!("config.retry_status[1]: {status}")),
        (config("retry_status", json!([404.0])), json!({}), format!("config.retry_status[0]: {status}")),
        (config("retry_status", json!(["404"])), json!({}), format!("config.retry_status[0]: {status}")),
        (config("retry_status", json!(["2xx"])), json!({}), format!("config.retry_status[0]: {status}")),
        (config("retry_status", json!([[404]])), json!({}), format!("config.retry_status[0]: {status}")),
        (config("retry_status", json!([null])), json!({}), format!("config.retry_status[0]: {status}")),
        (config("cloudevents_type", json!("")), json!({}), "config.cloudevents_type: must have 1 to 256 bytes".into()),
        (config("cloudevents_type", json!(1)), json!({}), "config.cloudevents_type: must be a string".into()),
        (
            config("cloudevents_type", json!("a\nb")),
            json!({}),
            "config.cloudevents_type: must not contain control characters".into(),
        ),
        (
            config("cloudevents_type", json!("shop.order")),
            json!({}),
            "config.cloudevents_type: needs config.cloudevents".into(),
        ),
        (
            config("headers", json!({"Proxy-Authorization": "x"})),
            json!({}),
            "config.headers.Proxy-Authorization: belongs to the connection and cannot be set".into(),
        ),
    ];
    for (config, options, says) in refused {
        assert_eq!(way.create(endpoint("b", "http", config, options)).await, Err(says));
    }
    let file = endpoint("b", "file", json!({"path": "out.jsonl"}), json!({"override_headers": []}));
    let told = way.create(file).await;
    assert_eq!(
        told,
        Err("options.override_headers: file endpoints have no headers in their config".to_owned())
    );
    let mut good = config("retry_status", json!([404, "4xx", "3xx", 599, 410]));
    good["cloudevents"] = json!("binary");
    good["cloudevents_type"] = json!("shop.order é");
    let options = json!({"override_headers": ["X-A", "authorization"]});
    assert_eq!(way.create(endpoint("b", "http", good, options)).await, Ok(()));
    assert_eq!(way.create(endpoint("c", "http", config("retry_status", json!([])), json!({}))).await, Ok(()));
}

/// On these ways there need not be an endpoint to be refused by.
async fn events(way: &impl Way) {
    let event = |payload: String| NewEvent::new("orders", payload);
    let told = way.publish(&event(lists(129))).await;
    assert_eq!(told, Err("payload: is more than 128 levels deep".to_owned()));
    assert_eq!(way.publish(&event(lists(128))).await, Ok(()));
    let headers = BTreeMap::from([("A", "1"), ("a", "2")].map(|(name, value)| (name.into(), value.into())));
    let told = way.publish(&NewEvent { headers, ..event("1".to_owned()) }).await;
    assert_says(told, &["a"], "is given twice; names of headers ignore case");
}

#[tokio::test]
async fn an_event_is_checked_even_where_nobody_wants_it() {
    async fn by_the_library<H: Harness>() {
        let world = World::<H>::start().await;
        world.store().create_event_type(NewEventType::new("orders")).await.unwrap();
        events(&Library(world)).await;
    }
    by_the_library::<Sqlite>().await;
    by_the_library::<Postgres>().await;
    let shop = Shop::open().await;
    shop.store.create_event_type(NewEventType::new("orders")).await.unwrap();
    let shop = Outbox(shop);
    events(&shop).await;
    events(&SqliteSql(shop.0)).await;
    let (_database, owner) = prompt::alone().await;
    owner.run("SELECT postrider.create_event_type('orders')").await;
    events(&PostgresSql(owner)).await;
}

#[tokio::test]
async fn rules_of_events_have_at_most_128_levels() {
    async fn by_the_library<H: Harness>() {
        let world = World::<H>::start().await;
        let (store, json) = (world.store(), || Some(Json::from(deep(129))));
        let schema = Some(Json::from(json!({"const": deep(128)})));
        let told = [
            store.create_event_type(NewEventType { schema, ..NewEventType::new("e") }).await.map(drop),
            store
                .subscribe(NewSubscription { filter: json(), ..NewSubscription::new("*", "a") })
                .await
                .map(drop),
            store
                .subscribe(NewSubscription { template: json(), ..NewSubscription::new("*", "a") })
                .await
                .map(drop),
        ];
        assert_eq!(told.map(|told| told.unwrap_err().to_string()), RULES);
        // What a template makes of a deep event may be deeper than either.
        store.create_event_type(NewEventType::new("e")).await.unwrap();
        let template = Some(Json::parse(br#"{"event": "{{}}"}"#).unwrap());
        store.subscribe(NewSubscription { template, ..NewSubscription::new("*", "a") }).await.unwrap();
        let told = store.publish(NewEvent::new("e", lists(128))).await.unwrap_err();
        assert_eq!(told.to_string(), "payload: is more than 128 levels deep");
        assert_eq!(store.publish(NewEvent::new("e", lists(127))).await.unwrap(), 1);
    }
    const RULES: [&str; 3] = [
        "schema: is more than 128 levels deep",
        "filter: is more than 128 levels deep",
        "template: is more than 128 levels deep",
    ];
    by_the_library::<Sqlite>().await;
    by_the_library::<Postgres>().await;
    let (_database, owner) = prompt::alone().await;
    let deep = quoted(lists(129));
    let calls = [
        format!(
            "create_event_type('e', schema => jsonb_build_object('const', {}::jsonb))",
            quoted(lists(128))
        ),
        format!("subscribe('*', 'a', {deep})"),
        format!("subscribe('*', 'a', NULL, {deep})"),
    ];
    for (call, rule) in calls.iter().zip(RULES) {
        owner.refuses(&format!("SELECT postrider.{call}"), "22023", rule).await;
    }
}

#[tokio::test]
async fn jsonb_is_not_deeper_on_any_way_in_of_postgresql() {
    let (_database, owner) = prompt::alone().await;
    owner.run("SELECT postrider.create_event_type('e'), postrider.subscribe('e', 'a')").await;
    let ways = |payload: &str| {
        let listed = format!(r#"[{{"payload": 1}}, {{"payload": {payload}}}]"#);
        let based = format!(
            r#"jsonb_build_array(jsonb_build_object('content_type', 'a/b+json', 'payload_base64', encode('{payload}', 'base64')))"#
        );
        [
            format!("send('a', '{payload}')"),
            format!("send_with_options('a', '{payload}')"),
            format!("send_batch('a', ARRAY['1', '{payload}']::jsonb[])"),
            format!("send_batch_with_options('a', '{listed}')"),
            format!("send_batch_with_options('a', {based})"),
            format!("publish('e', '{payload}')"),
            format!(r#"publish_batch('[{{"event_type": "e", "payload": {payload}}}]')"#),
        ]
        .map(|call| format!("SELECT postrider.{call}"))
    };
    for way in ways(&lists(129)) {
        owner.refuses(&way, "22023", "payload: is more than 128 levels deep").await;
    }
    for way in ways(&lists(128)) {
        owner.run(&way).await;
    }
    let deep_headers = format!("send_with_options('a', '1', p_headers => '{{\"x\": {}}}')", lists(128));
    owner
        .refuses(
            &format!("SELECT postrider.{deep_headers}"),
            "22023",
            "headers: is more than 128 levels deep",
        )
        .await;
    let not_json = r#"SELECT postrider.send_batch_with_options('a', '[{"payload_base64": "e29vcHM=", "content_type": "application/json"}]')"#;
    owner.refuses(not_json, "22023", "messages[0].payload: is not JSON").await;
}

#[tokio::test]
async fn text_that_sqlite_is_given_names_no_header_twice() {
    let shop = Shop::open().await;
    for headers in [r#"{"a":"1","a":"2"}"#, r#"{"a":"1","A":"1"}"#] {
        let sent = "INSERT INTO postrider_send (endpoint, payload, headers) VALUES ('a', '1', ?1)";
        let told = said(&shop.app.execute(sent, [headers]).unwrap_err());
        assert_eq!(told, "22023 headers: a header is given twice; names of headers ignore case");
    }
    let deep = format!("{{\"a\":{}}}", lists(3000));
    for column in ["headers", "options"] {
        let sent = format!("INSERT INTO postrider_send (endpoint, payload, {column}) VALUES ('a', '1', ?1)");
        let told = said(&shop.app.execute(&sent, [&deep]).unwrap_err());
        assert_eq!(told, format!("22023 {column}: is more than 128 levels deep"));
    }
}
