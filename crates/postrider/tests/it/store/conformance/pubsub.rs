use std::collections::BTreeMap;

use postrider::store::{Figures, Redrive};
use postrider::{
    Json, MessageId, NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PubSub, StoreError,
};
use serde_json::json;

use crate::store::world::{Harness, World};

impl<H: Harness> World<H> {
    async fn event_type(&self, name: &str) {
        self.store().create_event_type(NewEventType::new(name)).await.expect("a valid event type");
    }

    async fn subscribe(&self, pattern: &str, endpoint: &str) -> i64 {
        self.subscribe_as(NewSubscription::new(pattern, endpoint)).await
    }

    /// Endpoint `a`; each makes a message of its own of an event.
    async fn subscribe_often(&self, pattern: &str, times: usize) {
        for number in 0..times {
            self.subscribe_as(NewSubscription::new(pattern, "a").template(json!(number))).await;
        }
    }

    async fn subscribe_as(&self, new: NewSubscription) -> i64 {
        self.store().subscribe(new).await.expect("a valid subscription").subscription.id
    }

    async fn publish(&self, event: NewEvent) -> u64 {
        self.store().publish(event).await.expect("a valid event")
    }

    async fn refused_event(&self, event: NewEvent) -> StoreError {
        self.store().publish(event).await.expect_err("it is refused")
    }
}

fn orders() -> NewEvent {
    NewEvent::new("orders", r#"{"n":1}"#)
}

fn said(refused: &StoreError) -> (&'static str, String) {
    (refused.sqlstate(), refused.to_string())
}

pub(crate) async fn event_types_are_kept_listed_and_dropped<H: Harness>(mut world: World<H>) {
    let schema = Json::parse(br#"{"minimum": 12345678901234567890123, "type": "number"}"#).unwrap();
    let new = NewEventType {
        name: "b.made".into(),
        description: Some("It was made".into()),
        schema: Some(schema.clone()),
    };
    let made = world.store().create_event_type(new.clone()).await.unwrap();
    assert_eq!((made.name.as_str(), made.description.as_deref()), ("b.made", Some("It was made")));
    assert_eq!((made.schema.as_ref(), made.created_at), (Some(&schema), world.now()));
    for name in ["c", "B", "a"] {
        world.event_type(name).await;
    }
    world.crash().await;
    let store = world.store();
    assert_eq!(store.event_type("b.made").await.unwrap(), made);
    let names = async |after: Option<&str>, limit: usize| -> Vec<String> {
        let page = store.event_types(after, limit).await.unwrap();
        page.into_iter().map(|event_type| event_type.name).collect()
    };
    assert_eq!(names(None, 10).await, ["B", "a", "b.made", "c"]);
    assert_eq!(names(Some("a"), 1).await, ["b.made"]);
    let again = store.create_event_type(new).await.unwrap_err();
    assert_eq!(said(&again), ("42710", "event type \"b.made\" exists already".into()));
    store.drop_event_type("b.made").await.unwrap();
    for gone in
        [store.drop_event_type("b.made").await.unwrap_err(), store.event_type("b.made").await.unwrap_err()]
    {
        assert_eq!(said(&gone), ("42704", "there is no event type \"b.made\"".into()));
    }
    assert_eq!(store.event_type("\0").await.unwrap_err().sqlstate(), "42704");
}

pub(crate) async fn subscriptions_are_kept_listed_and_dropped<H: Harness>(mut world: World<H>) {
    let filter = Json::parse(br#"{"total": 12345678901234567890123}"#).unwrap();
    let new = NewSubscription::new("orders.*", "a").filter(filter.clone()).template(json!("{{/total}}"));
    let made = world.store().subscribe(new.clone()).await.unwrap().subscription;
    assert_eq!((made.pattern.as_str(), made.endpoint.as_str(), made.enabled), ("orders.*", "a", true));
    assert_eq!((made.filter.clone(), made.template.clone()), (Some(filter), new.template.clone()));
    assert_eq!(made.created_at, world.now());
    let other = world.subscribe("*", "a").await;
    world.crash().await;
    let store = world.store();
    assert_eq!(store.subscription(made.id).await.unwrap(), made);
    let ids = async |after: Option<i64>, limit: usize| -> Vec<i64> {
        let page = store.subscriptions(after, limit).await.unwrap();
        page.into_iter().map(|subscription| subscription.id).collect()
    };
    assert_eq!(ids(None, 10).await, [made.id, other]);
    assert_eq!(ids(Some(made.id), 10).await, [other]);
    assert_eq!(ids(None, 1).await, [made.id]);
    store.set_subscription_enabled(made.id, false).await.unwrap();
    assert!(!store.subscription(made.id).await.unwrap().enabled);
    store.unsubscribe(made.id).await.unwrap();
    for gone in [
        store.unsubscribe(made.id).await.unwrap_err(),
        store.subscription(made.id).await.unwrap_err(),
        store.set_subscription_enabled(made.id, true).await.unwrap_err(),
    ] {
        assert_eq!(said(&gone), ("42704", format!("there is no subscription \"{}\"", made.id)));
    }
    assert!(world.subscribe_as(new).await > other, "ids are not given again");
}

pub(crate) async fn subscribing_twice_is_one_subscription<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.endpoint("b", json!({})).await;
    let json = |text: &str| Some(Json::parse(text.as_bytes()).unwrap());
    let plain = NewSubscription::new("orders", "a");
    let others = [
        plain.clone(),
        NewSubscription::new("orders", "b"),
        NewSubscription::new("*", "a"),
        NewSubscription { filter: json(r#"{"n": 1, "m": 2}"#), ..plain.clone() },
        NewSubscription { filter: json(r#"{"n": 2}"#), ..plain.clone() },
        NewSubscription { template: json(r#"{"n": "{{/n}}"}"#), ..plain.clone() },
        NewSubscription { filter: json("{}"), template: json("{}"), ..plain.clone() },
        NewSubscription { filter: json("null"), ..plain.clone() },
        NewSubscription { template: json("null"), ..plain },
    ];
    let mut made = Vec::new();
    for new in &others {
        made.push(world.subscribe_as(new.clone()).await);
    }
    let known = world.events().await.len();
    world.store().set_subscription_enabled(made[1], false).await.unwrap();
    for (new, id) in others.iter().zip(&made) {
        let again = world.store().subscribe(new.clone()).await.unwrap();
        assert_eq!((again.subscription.id, again.existed), (*id, true), "{new:?}");
    }
    let reordered = NewSubscription { filter: json(r#"{"m":2,"n":1}"#), ..others[0].clone() };
    assert_eq!(world.subscribe_as(reordered).await, made[3], "the same JSON");
    assert_eq!(world.store().subscriptions(None, 100).await.unwrap().len(), made.len());
    assert!(!world.store().subscription(made[1]).await.unwrap().enabled, "it stays as it is");
    assert_eq!(world.events().await.len(), known + 1, "only the one that was disabled");
    world.store().unsubscribe(made[0]).await.unwrap();
    assert!(!made.contains(&world.subscribe("orders", "a").await), "one that is gone does not come back");
}

pub(crate) async fn racing_subscribers_share_one_subscription<H: Harness>(world: World<H>) {
    let subscribe = async || world.subscribe("*", "a").await;
    let ids = futures_util::future::join_all((0..8).map(|_| subscribe())).await;
    assert_eq!(ids, [ids[0]; 8]);
    assert_eq!(world.store().subscriptions(None, 100).await.unwrap().len(), 1);
}

pub(crate) async fn a_bad_event_type_or_subscription_is_refused_by_field_and_leaves_nothing<H: Harness>(
    world: World<H>,
) {
    let store = world.store();
    let types = [
        (NewEventType::new("a..b"), "name: must be 1 to 128 letters"),
        (NewEventType::new("a\0"), "name: must be 1 to 128 letters"),
        (
            NewEventType { description: Some("\0".into()), ..NewEventType::new("a") },
            "description: must not contain the character U+0000",
        ),
        (
            NewEventType { schema: Some(json!({"const": "\0"}).into()), ..NewEventType::new("a") },
            "schema: must not contain the character U+0000",
        ),
        (
            NewEventType { schema: Some(json!({"pattern": "a"}).into()), ..NewEventType::new("a") },
            "schema.pattern: unknown field",
        ),
    ];
    for (new, says) in types {
        let (code, message) = said(&store.create_event_type(new).await.unwrap_err());
        assert!(code == "22023" && message.starts_with(says), "{message}");
    }
    let subscriptions = [
        (NewSubscription::new("*.created", "a"), "22023", "pattern: must be "),
        (NewSubscription::new("orders\0", "a"), "22023", "pattern: must be "),
        (NewSubscription::new("*", "a").filter(json!("\0")), "22023", "filter: must not contain "),
        (NewSubscription::new("*", "a").template(json!({"\0": 1})), "22023", "template: must not contain "),
        (NewSubscription::new("orders", "a"), "42704", "there is no event type \"orders\""),
        (NewSubscription::new("*", "nobody"), "42704", "there is no endpoint \"nobody\""),
        (NewSubscription::new("*", "\0"), "42704", "there is no endpoint "),
    ];
    for (new, expected, says) in subscriptions {
        let (code, message) = said(&store.subscribe(new).await.unwrap_err());
        assert!(code == expected && message.starts_with(says), "{message}");
    }
    assert_eq!(store.event_types(None, 10).await.unwrap(), []);
    assert_eq!(store.subscriptions(None, 10).await.unwrap(), []);
}

pub(crate) async fn what_changes_is_logged<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    let id = world.subscribe("orders", "a").await;
    for enabled in [true, false, false, true] {
        world.store().set_subscription_enabled(id, enabled).await.unwrap();
    }
    world.store().unsubscribe(id).await.unwrap();
    world.store().drop_event_type("orders").await.unwrap();
    let mut events = world.events().await;
    events.retain(|event| event.subject.as_deref() == Some("orders"));
    events.reverse();
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "event_type.created",
            "subscription.created",
            "subscription.disabled",
            "subscription.enabled",
            "subscription.dropped",
            "event_type.dropped"
        ]
    );
    assert_eq!(events[1].detail, json!({"subscription": id, "endpoint": "a"}));
    assert!(events[2..5].iter().all(|event| event.detail == json!({"subscription": id})));
}

pub(crate) async fn an_event_is_delivered_byte_for_byte<H: Harness>(mut world: World<H>) {
    world.event_type("orders").await;
    world.subscribe("orders", "a").await;
    world.subscribe_as(NewSubscription::new("orders", "a").template(json!({"bb": "{{/a}}", "a": 1}))).await;
    let payload = " {\"b\":1.50,\n \"a\" : 1e2, \"b\":\"\\u00e5\"} ";
    assert_eq!(world.publish(NewEvent::new("orders", payload)).await, 2);
    let mut payloads = Vec::new();
    for id in world.claim_ids().await {
        let story = world.story(id).await;
        assert_eq!(
            (story.content_type.as_str(), story.event_type.as_deref()),
            ("application/json", Some("orders"))
        );
        payloads.push(String::from_utf8(story.payload.unwrap().to_vec()).unwrap());
    }
    assert_eq!(payloads[0], payload);
    let filled: serde_json::Value = serde_json::from_str(&payloads[1]).unwrap();
    assert_eq!(filled["bb"].as_f64(), Some(100.0));
}

pub(crate) async fn an_event_that_is_no_json_is_refused<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.subscribe("*", "a").await;
    let bad: [(&[u8], &str); 6] = [
        (b"", "payload: is not JSON: "),
        (b"{", "payload: is not JSON: "),
        (b"\"\xff\"", "payload: is not JSON: "),
        (br#"{"a":"\u0000"}"#, "payload: must not contain the character U+0000"),
        (br#""\ud800""#, "payload: is not JSON: "),
        (b"1e200000", "payload: has a number that is out of range"),
    ];
    for (payload, says) in bad {
        let bad = NewEvent::new("orders", payload);
        let (code, message) = said(&world.refused_event(bad.clone()).await);
        assert!(code == "22023" && message.starts_with(says), "{message}");
        let (code, message) = said(&world.store().publish_batch(vec![orders(), bad]).await.unwrap_err());
        assert!(code == "22023" && message.starts_with(&format!("events[1].{says}")), "{message}");
    }
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn what_is_disabled_is_skipped_and_counted_and_what_is_gone_is_kept<H: Harness>(
    mut world: World<H>,
) {
    world.event_type("orders").await;
    for name in ["open", "closed", "gone", "paused"] {
        world.endpoint(name, json!({})).await;
        world.subscribe("*", name).await;
    }
    let gone = world.store().endpoint("gone").await.unwrap().id;
    world.send(NewMessage::new("gone", "1")).await;
    let ticket = world.claim(gone, 1).await[0];
    let verdict = postrider::verdict::Verdict::Dead {
        reason: postrider::verdict::DeadReason::Gone,
        disable_endpoint: true,
    };
    world.settle(ticket, verdict).await;
    world.store().set_endpoint_enabled("closed", false).await.unwrap();
    world.store().set_endpoint_paused("paused", true).await.unwrap();
    let silent = world.subscribe("*", "a").await;
    world.store().set_subscription_enabled(silent, false).await.unwrap();
    assert_eq!(world.publish(orders()).await, 3);
    assert_eq!(world.store().publish_skipped().await.unwrap(), 1, "of the disabled endpoint");
    let status = world.store().status().await.unwrap().endpoints.into_iter();
    let pending: BTreeMap<String, u64> = status.map(|endpoint| (endpoint.name, endpoint.pending)).collect();
    let expected = [("a", 0), ("closed", 0), ("gone", 1), ("open", 1), ("paused", 1)];
    assert_eq!(pending, expected.map(|(name, pending)| (name.to_owned(), pending)).into());
    world.store().set_subscription_enabled(silent, true).await.unwrap();
    world.store().set_endpoint_enabled("closed", true).await.unwrap();
    assert_eq!(world.publish(orders()).await, 5);
    assert_eq!(world.store().publish_skipped().await.unwrap(), 1);
    let figures = world.store().figures().await.unwrap();
    let figure = figures.iter().find(|figure| figure.name == "postrider_publish_skipped_total");
    assert_eq!(figure.map(|figure| figure.value), Some(1.0), "as metrics tell it");
}

pub(crate) async fn an_event_that_nobody_wants_is_not_an_error<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    assert_eq!(world.publish(orders()).await, 0);
    assert_eq!(world.store().publish_batch(Vec::new()).await.unwrap(), 0);
    world.subscribe("*", "a").await;
    world.store().drop_endpoint("a", false).await.unwrap();
    assert_eq!(world.publish(orders()).await, 0);
    assert_eq!(world.store().subscriptions(None, 10).await.unwrap(), [], "they go with their endpoint");
    let unknown = world.refused_event(NewEvent::new("nothing", "1")).await;
    assert_eq!(said(&unknown), ("42704", "there is no event type \"nothing\"".into()));
    let unknown = world.refused_event(NewEvent::new("\0", "1")).await;
    assert_eq!(unknown.sqlstate(), "42704");
}

pub(crate) async fn every_option_of_send_reaches_every_message<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.endpoint("b", json!({})).await;
    let subscriptions = [world.subscribe("*", "a").await, world.subscribe("orders", "b").await];
    let event = NewEvent {
        headers: BTreeMap::from([("x-a".into(), "b".into())]),
        options: json!({"max_attempts": 2}).as_object().unwrap().clone(),
        priority: 4,
        scheduled_at: Some(world.in_seconds(60)),
        expires_at: Some(world.in_seconds(120)),
        correlation_id: Some(uuid::Uuid::from_u128(7)),
        ..orders().idempotency_key("i").ordering_key("k")
    };
    let first = world.send(NewMessage::new("a", "1")).await.0;
    assert_eq!(world.publish(event.clone()).await, 2);
    assert_eq!(world.store().publish_batch(vec![event.clone().idempotency_key("j")]).await.unwrap(), 2);
    for (at, id) in (first + 1..first + 5).enumerate() {
        let story = world.story(MessageId(id)).await;
        assert_eq!(story.endpoint, ["a", "b"][at % 2]);
        assert_eq!((&story.headers, &story.options), (&event.headers, &event.options));
        assert_eq!((story.scheduled_at, story.expires_at), (event.scheduled_at, event.expires_at));
        assert_eq!((story.priority, story.correlation_id), (4, event.correlation_id));
        assert_eq!((story.ordering_key.as_deref(), story.event_type.as_deref()), (Some("k"), Some("orders")));
        let key = postrider::event::key_of_subscription(["i", "j"][at / 2], subscriptions[at % 2]);
        assert_eq!(story.idempotency_key, Some(key));
    }
}

pub(crate) async fn a_mistake_is_one_even_where_nobody_listens<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.configure("max_headers_bytes", 1024).await;
    let wide: BTreeMap<String, String> = BTreeMap::from([("x-a".into(), "b".repeat(1024))]);
    let mistakes = [
        (NewEvent { priority: 11, ..orders() }, "22023", "priority: must be from 0 to 10"),
        (orders().ordering_key(""), "22023", "ordering_key: must not be empty"),
        (orders().idempotency_key(""), "22023", "idempotency_key: must not be empty"),
        (orders().idempotency_key("a\n"), "22023", "idempotency_key: must not be empty"),
        (orders().ordering_key("k".repeat(257)), "54000", "ordering_key: 257 is more than max_key_bytes"),
        // Behind it stands the number of a subscription.
        (
            orders().idempotency_key("k".repeat(237)),
            "54000",
            "idempotency_key: 257 is more than max_key_bytes",
        ),
        (NewEvent { headers: wide, ..orders() }, "54000", "headers: 1027 is more than max_headers_bytes"),
        (
            NewEvent::new("orders", format!("\"{}\"", "x".repeat(1 << 20))),
            "54000",
            "payload: 1048578 is more than max_payload_bytes",
        ),
        (
            NewEvent {
                scheduled_at: Some(world.in_seconds(60)),
                expires_at: Some(world.in_seconds(60)),
                ..orders()
            },
            "22023",
            "expires_at: must be later than scheduled_at",
        ),
    ];
    for (event, expected, says) in mistakes {
        let (code, message) = said(&world.refused_event(event).await);
        assert!(code == expected && message.starts_with(says), "{message}");
    }
    assert_eq!(
        world.publish(orders().idempotency_key("k".repeat(236)).ordering_key("k".repeat(256))).await,
        0
    );
}

pub(crate) async fn what_one_receiver_cannot_take_refuses_the_event<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    let file = postrider::NewEndpoint {
        name: "file".into(),
        protocol: "file".into(),
        config: json!({"path": "orders.jsonl"}).as_object().unwrap().clone(),
        ..postrider::NewEndpoint::default()
    };
    world.store().create_endpoint(file).await.unwrap();
    world.subscribe("*", "a").await;
    let suffix = NewEvent { options: json!({"url_suffix": "/x"}).as_object().unwrap().clone(), ..orders() };
    assert_eq!(world.publish(suffix.clone()).await, 1);
    world.subscribe("*", "file").await;
    let (code, message) = said(&world.refused_event(suffix).await);
    assert!(code == "22023" && message.starts_with("options.url_suffix: unknown field"), "{message}");
    assert_eq!(world.queued().await, 1, "nor did the others get it");
    let large = NewSubscription::new("*", "a").template(json!(["x".repeat(1 << 20)]));
    world.subscribe_as(large).await;
    assert_eq!(world.refused_event(orders()).await.sqlstate(), "54000");
    assert_eq!(world.queued().await, 1);
}

pub(crate) async fn an_event_published_twice_under_one_key_is_sent_once<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.subscribe("*", "a").await;
    let event = orders().idempotency_key("i");
    assert_eq!((world.publish(event.clone()).await, world.publish(event.clone()).await), (1, 0));
    let other = NewEvent { payload: "2".into(), ..event.clone() };
    assert_eq!(world.refused_event(other.clone()).await.sqlstate(), "23505");
    let both = vec![event.clone().idempotency_key("j"), other.idempotency_key("j")];
    assert_eq!(world.store().publish_batch(both).await.unwrap_err().sqlstate(), "23505");
    let twice = vec![event.clone().idempotency_key("k"); 2];
    assert_eq!(world.store().publish_batch(twice).await.unwrap(), 1);
    assert_eq!(world.queued().await, 2);
    world.subscribe("orders", "a").await;
    assert_eq!(world.publish(event).await, 1, "who came later has not had it");
}

pub(crate) async fn two_templates_for_one_endpoint_share_an_idempotency_key<H: Harness>(mut world: World<H>) {
    world.event_type("orders").await;
    for template in [json!(["{{/n}}"]), json!({"n": "{{/n}}"})] {
        world.subscribe_as(NewSubscription::new("orders", "a").template(template)).await;
    }
    world.subscribe("*", "a").await;
    world.subscribe("orders", "a").await;
    let event = orders().idempotency_key("i");
    assert_eq!(world.publish(event.clone()).await, 4);
    assert_eq!(world.publish(event).await, 0);
    let mut payloads = Vec::new();
    for id in world.claim_ids().await {
        payloads.push(String::from_utf8(world.story(id).await.payload.unwrap().to_vec()).unwrap());
    }
    assert_eq!(payloads, ["[1]", "{\"n\": 1}", "{\"n\":1}", "{\"n\":1}"]);
}

pub(crate) async fn events_of_one_key_keep_their_order<H: Harness>(mut world: World<H>) {
    world.event_type("orders").await;
    world.subscribe("*", "a").await;
    let events = [1, 2, 3].map(|n| NewEvent::new("orders", n.to_string()).ordering_key("k"));
    assert_eq!(world.store().publish_batch(events.to_vec()).await.unwrap(), 3);
    world.publish(NewEvent::new("orders", "4").ordering_key("k")).await;
    for n in ["1", "2", "3", "4"] {
        let ticket = world.claim_one().await;
        assert_eq!(world.story(ticket.id).await.payload.as_deref(), Some(n.as_bytes()));
        world.complete(ticket).await;
    }
}

pub(crate) async fn a_batch_of_events_is_all_or_nothing<H: Harness>(mut world: World<H>) {
    for name in ["orders", "users"] {
        world.event_type(name).await;
    }
    let checked =
        NewEventType { schema: Some(json!({"type": "object"}).into()), ..NewEventType::new("checked") };
    world.store().create_event_type(checked).await.unwrap();
    world.subscribe("orders", "a").await;
    world.subscribe("checked", "a").await;
    let batch = vec![NewEvent::new("orders", "1"), NewEvent::new("users", "2"), NewEvent::new("orders", "3")];
    assert_eq!(world.store().publish_batch(batch).await.unwrap(), 2);
    let mut payloads = Vec::new();
    for ticket in world.claim(world.a, 10).await {
        payloads.push(world.story(ticket.id).await.payload.unwrap());
        world.complete(ticket).await;
    }
    assert_eq!(payloads, ["1", "3"]);
    let headers = [("te".to_owned(), "x".to_owned())].into();
    let options = json!({"colour": 1}).as_object().unwrap().clone();
    let refused = [
        (NewEvent::new("nothing", "1"), "42704", "there is no event type \"nothing\""),
        (NewEvent::new("checked", "1"), "22023", "events[1].payload: must be of type object"),
        (NewEvent { priority: 11, ..orders() }, "22023", "events[1].priority: must be from 0 to 10"),
        (
            NewEvent { ordering_key: Some(String::new()), ..orders() },
            "22023",
            "events[1].ordering_key: must not",
        ),
        (NewEvent { headers, ..orders() }, "22023", "events[1].headers.te: belongs to the connection"),
        (NewEvent { options, ..orders() }, "22023", "events[1].options.colour: unknown field"),
    ];
    for (bad, expected, says) in refused {
        let (code, message) = said(&world.store().publish_batch(vec![orders(), bad]).await.unwrap_err());
        assert!(code == expected && message.starts_with(says), "{message}");
    }
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn the_whole_fan_out_has_to_fit_into_the_queue<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.event_type("users").await;
    world.endpoint("small", json!({"max_queue_size": 1})).await;
    world.subscribe_often("orders", 30).await;
    world.configure("max_queue_size", 50).await;
    assert_eq!(world.publish(orders()).await, 30);
    world.live(2).await;
    let full = world.refused_event(orders()).await;
    assert_eq!(full.sqlstate(), "53400", "{full}");
    assert_eq!(world.queued().await, 30, "not even the part that had room");
    let batch = vec![NewEvent::new("users", "1"), orders()];
    assert_eq!(world.store().publish_batch(batch).await.unwrap_err().sqlstate(), "53400");
    world.configure("max_queue_size", 1000).await;
    world.subscribe("users", "small").await;
    world.subscribe("users", "a").await;
    world.subscribe("*", "small").await;
    let full = world.refused_event(NewEvent::new("users", "1")).await;
    assert!(matches!(&full, StoreError::QueueFull { endpoint: Some(name), .. } if name == "small"), "{full}");
    assert_eq!(world.queued().await, 30);
}

pub(crate) async fn a_duplicate_needs_no_room_in_a_fan_out<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.subscribe_often("orders", 20).await;
    world.configure("max_queue_size", 20).await;
    let event = orders().idempotency_key("i");
    assert_eq!(world.publish(event.clone()).await, 20);
    world.live(2).await;
    assert_eq!(world.publish(event).await, 0);
    assert_eq!(world.refused_event(orders()).await.sqlstate(), "53400");
}

pub(crate) async fn one_event_becomes_no_more_messages_than_max_fanout<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.event_type("users").await;
    world.subscribe_often("orders", 3).await;
    world.subscribe("users", "a").await;
    world.configure("max_fanout", 2).await;
    let says = ("54000", "event_type: 3 is more than max_fanout allows, which is 2".to_owned());
    assert_eq!(said(&world.refused_event(orders()).await), says);
    // Each event by itself, whatever else is in its batch.
    let quiet = NewEvent::new("users", "1");
    let batch = vec![quiet.clone(), orders(), quiet.clone()];
    assert_eq!(said(&world.store().publish_batch(batch).await.unwrap_err()), says);
    assert_eq!(world.queued().await, 0);
    assert_eq!(world.store().publish_batch(vec![quiet; 3]).await.unwrap(), 3);
    world.configure("max_fanout", 3).await;
    assert_eq!(world.publish(orders()).await, 3);
}

/// The limit of a batch is about what is written, not about what it becomes.
pub(crate) async fn a_fan_out_may_be_wider_than_a_batch<H: Harness>(world: World<H>) {
    world.event_type("orders").await;
    world.configure("max_batch_messages", 2).await;
    world.subscribe_often("orders", 5).await;
    assert_eq!(world.publish(orders()).await, 5);
    assert_eq!(world.store().publish_batch(vec![orders(); 2]).await.unwrap(), 10);
    let refused = world.store().publish_batch(vec![orders(); 3]).await.unwrap_err();
    let says = "events: 3 is more than max_batch_messages allows, which is 2".to_owned();
    assert_eq!(said(&refused), ("54000", says));
    assert_eq!(world.queued().await, 15);
}

pub(crate) async fn what_was_published_survives_a_crash<H: Harness>(mut world: World<H>) {
    world.event_type("orders").await;
    world.subscribe("*", "a").await;
    world.publish(orders()).await;
    world.crash().await;
    let ticket = world.claim_one().await;
    world.die(ticket).await;
    let letter = world.letter_of(ticket.id).await;
    assert_eq!(letter.event_type.as_deref(), Some("orders"));
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    assert_eq!(world.claim_one().await.id, ticket.id);
}
