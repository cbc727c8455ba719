use std::time::Duration;

use postrider::endpoint::{DisabledBy, EndpointChange, KeyScope, NewEndpoint, OnDead};
use postrider::error::StoreError;
use postrider::store::{Arrival, EndpointHealth, Results, Snapshot};
use postrider::{Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, new_endpoint, to};

async fn kinds<H: Harness>(world: &World<H>, subject: &str) -> Vec<String> {
    let about = |event: &postrider::store::EventRecord| event.subject.as_deref() == Some(subject);
    let mut kinds: Vec<_> = world.events().await.into_iter().filter(about).map(|event| event.kind).collect();
    kinds.reverse();
    kinds
}

pub(crate) async fn an_endpoint_is_kept_as_it_was_created<H: Harness>(world: World<H>) {
    let endpoint = NewEndpoint {
        retry_policy: Some(json!({"max_attempts": 3, "schedule_seconds": [1, 2.5], "jitter": 0.1})),
        ..new_endpoint(
            "full",
            json!({"max_in_flight": 7, "on_dead": "hold", "key_scope": "global",
            "rate_limit": {"limit": 5, "interval": "minute"}, "max_queue_size": 9}),
        )
    };
    let created = world.store().create_endpoint(endpoint.clone()).await.unwrap();
    assert_eq!(created.created_at, world.now());
    for read in [created.clone(), world.store().endpoint("full").await.unwrap()] {
        assert_eq!((read.id, &*read.name, &*read.config), (created.id, "full", &endpoint.config));
        assert_eq!(read.retry.max_attempts, Some(3));
        assert_eq!(read.retry.schedule_seconds, Some(vec![1.0, 2.5]));
        assert_eq!((read.options.max_in_flight, read.max_in_flight()), (Some(7), 7));
        assert_eq!((read.options.on_dead, read.options.key_scope), (OnDead::Hold, KeyScope::Global));
        assert_eq!((read.options.max_queue_size, &read.options), (Some(9), &created.options));
        assert_eq!((read.disabled, read.paused, read.held_until), (None, false, None));
    }
}

pub(crate) async fn a_bad_endpoint_is_refused_by_field_and_leaves_nothing<H: Harness>(world: World<H>) {
    let good = new_endpoint("x", json!({}));
    let table = [
        (NewEndpoint { name: "a b".into(), ..good.clone() }, "name"),
        (NewEndpoint { name: ".".into(), ..good.clone() }, "name"),
        (NewEndpoint { name: "..".into(), ..good.clone() }, "name"),
        (NewEndpoint { protocol: "smtp".into(), ..good.clone() }, "protocol"),
        (NewEndpoint { options: Some(json!({"on_dead": "stop"})), ..good.clone() }, "options.on_dead"),
        (NewEndpoint { retry_policy: Some(json!({"jitter": 2})), ..good.clone() }, "retry_policy.jitter"),
    ];
    for (endpoint, field) in table {
        let refused = world.store().create_endpoint(endpoint).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.field == field), "{refused:?}");
    }
    let taken = world.store().create_endpoint(new_endpoint("a", json!({}))).await.unwrap_err();
    assert!(matches!(&taken, StoreError::Exists { what: "endpoint", name } if name == "a"), "{taken:?}");
    assert_eq!(world.store().endpoints(None, 10).await.unwrap().len(), 1);
}

pub(crate) async fn endpoints_are_listed_by_name_from_a_cursor<H: Harness>(world: World<H>) {
    for name in ["d", "b", "c"] {
        world.endpoint(name, json!({})).await;
    }
    let list = async |after: Option<&str>, limit| {
        let endpoints = world.store().endpoints(after, limit).await.unwrap();
        endpoints.iter().map(|endpoint| endpoint.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 10).await, ["a", "b", "c", "d"]);
    assert_eq!(list(None, 2).await, ["a", "b"]);
    assert_eq!(list(Some("b"), 10).await, ["c", "d"]);
    assert_eq!(list(Some("d"), 10).await, [""; 0]);
}

pub(crate) async fn a_change_touches_only_what_it_names<H: Harness>(world: World<H>) {
    world.endpoint("x", json!({"max_in_flight": 7})).await;
    let before = world.store().endpoint("x").await.unwrap();
    let change =
        EndpointChange { retry_policy: Some(json!({"max_attempts": 2})), ..EndpointChange::default() };
    let after = world.store().alter_endpoint("x", change).await.unwrap();
    assert_eq!((after.id, &*after.config, &after.options), (before.id, &*before.config, &before.options));
    assert_eq!(after.retry.max_attempts, Some(2));
    assert!(after.revision > before.revision, "sinks are connected anew");

    let bad = EndpointChange { options: Some(json!({"on_dead": "stop"})), ..EndpointChange::default() };
    let refused = world.store().alter_endpoint("x", bad).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "options.on_dead"),
        "{refused:?}"
    );
    assert_eq!(world.store().endpoint("x").await.unwrap().revision, after.revision);
    // Config and options have to fit, whichever of them is changed.
    let auth = || json!({"auth": {"type": "bearer", "token": "t"}}).as_object().cloned();
    let listed = || Some(json!({"override_headers": ["authorization"]}));
    for (first, then) in [((None, listed()), (auth(), None)), ((auth(), None), (None, listed()))] {
        let alter = async |(config_changes, options)| {
            let change = EndpointChange { config_changes, options, ..EndpointChange::default() };
            world.store().alter_endpoint("x", change).await
        };
        let plain = json!({"auth": null}).as_object().cloned();
        alter((plain, Some(json!(null)))).await.unwrap();
        alter(first).await.unwrap();
        let refused = alter(then).await.unwrap_err();
        assert!(
            matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "options.override_headers[0]"),
            "{refused:?}"
        );
    }
    let unknown = world.store().alter_endpoint("y", EndpointChange::default()).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "endpoint", .. }), "{unknown:?}");
}

pub(crate) async fn single_keys_of_a_config_are_changed_and_taken_out<H: Harness>(world: World<H>) {
    let object = |json: serde_json::Value| json.as_object().cloned();
    let config =
        json!({ "url": "https://a.example/", "timeout": 3, "auth": { "type": "bearer", "token": "hush" } });
    let whole = EndpointChange { config: object(config), ..EndpointChange::default() };
    let before = world.store().alter_endpoint("a", whole).await.unwrap();
    let config_changes = object(json!({ "url": "https://b.example/", "timeout": null, "http2": true }));
    let change = EndpointChange { config_changes, ..EndpointChange::default() };
    let after = world.store().alter_endpoint("a", change).await.unwrap();
    let kept = json!({ "type": "bearer", "token": "hush" });
    let expected = json!({ "url": "https://b.example/", "auth": kept, "http2": true });
    assert_eq!(json!(after.config), expected);
    assert!(after.revision > before.revision, "sinks are connected anew");
    // A key of an object leaves the object's other keys.
    let config_changes = object(json!({ "auth.token": "sh", "headers.x-a.b": "1" }));
    let change = EndpointChange { config_changes, ..EndpointChange::default() };
    let after = world.store().alter_endpoint("a", change).await.unwrap();
    let expected = json!({
        "url": "https://b.example/", "auth": { "type": "bearer", "token": "sh" }, "http2": true,
        "headers": { "x-a.b": "1" },
    });
    assert_eq!(json!(after.config), expected);
    for (changes, field) in [
        (json!({ "colour": 1 }), "config.colour"),
        (json!({ "url": null }), "config.url"),
        (json!({ "url.host": "x" }), "config.url"),
        (json!({ "auth.type": null }), "config.auth.type"),
    ] {
        let bad = EndpointChange { config_changes: object(changes), ..EndpointChange::default() };
        let refused = world.store().alter_endpoint("a", bad).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.field == field), "{refused:?}");
    }
    assert_eq!(json!(world.store().endpoint("a").await.unwrap().config), expected);
}

pub(crate) async fn an_endpoint_with_messages_is_dropped_by_force_only<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a").ordering_key("k").idempotency_key("i")).await;
    let scheduled = postrider::NewMessage { scheduled_at: Some(world.in_seconds(60)), ..to("a") };
    let scheduled = world.send(scheduled).await;
    let refused = world.store().drop_endpoint("a", false).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict(_)), "{refused:?}");
    assert_eq!(world.state(id).await, State::Pending);
    world.store().drop_endpoint("a", true).await.unwrap();
    assert_eq!(world.states(&[id, scheduled]).await, [State::Cancelled; 2]);
    assert_eq!(world.story(id).await.endpoint, "a", "the record names it still");
    assert_eq!(world.queued().await, 0);
    let unknown = world.store().endpoint("a").await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { .. }), "{unknown:?}");

    let again = world.endpoint("a", json!({})).await;
    assert_ne!(again, world.a, "another endpoint, though it has the name");
    let fresh = world.send(to("a").ordering_key("k").idempotency_key("i")).await;
    assert_eq!(world.claim(again, 10).await[0].id, fresh);
}

pub(crate) async fn a_forced_drop_fences_what_runs<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    assert!(world.store().drop_endpoint("a", false).await.is_err());
    world.store().drop_endpoint("a", true).await.unwrap();
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempt_count), (State::Cancelled, 1), "it was tried");
    world.retry(ticket, 0).await;
    assert_eq!(world.state(id).await, State::Cancelled);
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn an_empty_endpoint_is_dropped_without_force<H: Harness>(mut world: World<H>) {
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.store().drop_endpoint("a", false).await.unwrap();
    assert_eq!(world.state(ticket.id).await, State::Completed);
    assert!(world.store().endpoints(None, 10).await.unwrap().is_empty());
}

pub(crate) async fn switches_are_remembered_and_logged<H: Harness>(world: World<H>) {
    world.store().set_endpoint_paused("a", true).await.unwrap();
    assert!(world.store().endpoint("a").await.unwrap().paused);
    world.store().set_endpoint_paused("a", false).await.unwrap();
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    assert_eq!(world.store().endpoint("a").await.unwrap().disabled, Some(DisabledBy::Operator));
    world.store().set_endpoint_enabled("a", true).await.unwrap();
    assert_eq!(world.store().endpoint("a").await.unwrap().disabled, None);
    world
        .store()
        .alter_endpoint(
            "a",
            EndpointChange { options: Some(json!({"max_in_flight": 1})), ..EndpointChange::default() },
        )
        .await
        .unwrap();
    assert_eq!(
        kinds(&world, "a").await,
        [
            "endpoint.created",
            "endpoint.paused",
            "endpoint.resumed",
            "endpoint.disabled",
            "endpoint.enabled",
            "endpoint.changed"
        ]
    );
    for name in ["nowhere"] {
        assert!(world.store().set_endpoint_paused(name, true).await.is_err());
        assert!(world.store().set_endpoint_enabled(name, true).await.is_err());
    }
}

pub(crate) async fn a_snapshot_is_news_only_when_something_changed<H: Harness>(mut world: World<H>) {
    let first = world.store().snapshot(None).await.unwrap().expect("the first look");
    assert_eq!(first.endpoints.len(), 1);
    assert!(world.store().snapshot(Some(first.version)).await.unwrap().is_none());
    world.send(to("a")).await;
    world.claim_one().await;
    assert!(world.store().snapshot(Some(first.version)).await.unwrap().is_none(), "traffic is no news");

    let mut version = first.version;
    let store = world.store();
    store.set_endpoint_paused("a", true).await.unwrap();
    let snapshot = store.snapshot(Some(version)).await.unwrap().expect("news");
    assert!(snapshot.version > version && snapshot.endpoints[0].paused);
    version = snapshot.version;
    store.configure(vec![("node_lease".into(), "20".into())]).await.unwrap();
    let snapshot = store.snapshot(Some(version)).await.unwrap().expect("news");
    assert_eq!(snapshot.settings.node_lease.as_secs(), 20);
    version = snapshot.version;
    store.pause("why").await.unwrap();
    let snapshot = store.snapshot(Some(version)).await.unwrap().expect("news");
    assert_eq!(snapshot.paused.as_deref(), Some("why"));
}

pub(crate) async fn an_endpoint_that_did_not_change_keeps_its_typed_config<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({})).await;
    let before = world.store().snapshot(None).await.unwrap().expect("a snapshot");
    let config_changes = json!({ "timeout": 7 }).as_object().cloned();
    let change = EndpointChange { config_changes, ..EndpointChange::default() };
    world.store().alter_endpoint("b", change).await.unwrap();
    let after = world.store().snapshot(Some(before.version)).await.unwrap().expect("news");
    let config = |snapshot: &Snapshot, name: &str| {
        let found = snapshot.endpoints.iter().find(|endpoint| &*endpoint.name == name);
        found.expect("both are there").config.clone()
    };
    let (a, same) = (config(&before, "a"), config(&after, "a"));
    assert!(std::ptr::addr_eq(a.typed().unwrap(), same.typed().unwrap()));
    assert_eq!(config(&after, "b").timeout(), Duration::from_secs(7));
}

pub(crate) async fn a_node_is_told_of_every_change<H: Harness>(mut world: World<H>) {
    while world.arrivals.try_recv().is_ok() {}
    world.store().set_endpoint_paused("a", true).await.unwrap();
    let told = async {
        loop {
            if matches!(world.arrivals.recv().await.expect("the store lives"), Arrival::Reconfigured) {
                return;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), told).await.expect("within a second");
}

pub(crate) async fn what_nodes_tell_of_attempts_adds_up<H: Harness>(mut world: World<H>) {
    let b = world.endpoint("b", json!({})).await;
    let tell = async |world: &World<H>, results: Results| {
        let noted =
            world.store().note_results(vec![(b, Results::default()), (world.a, results)]).await.unwrap();
        assert_eq!(noted.len(), 2);
        world.store().endpoint_health("a").await.unwrap()
    };
    assert_eq!(world.store().endpoint_health("a").await.unwrap(), EndpointHealth::default());
    let failed = |failed_since: u64, error: &str| Results {
        retryable: failed_since,
        failed_since,
        last_failure: Some((world.now(), error.to_owned())),
        ..Results::default()
    };
    let (first, then) = (failed(2, "[RETRYABLE] first"), failed(3, "[RETRYABLE] then \0"));
    let began = world.now();
    tell(&world, Results { permanent: 1, gone: 1, lost: 1, ..first }).await;
    world.live(5).await;
    let then = Results { last_failure: then.last_failure.map(|(_, error)| (world.now(), error)), ..then };
    let failing = tell(&world, then).await;
    let counts = |health: &EndpointHealth| (health.delivered, health.failed, health.consecutive_failures);
    assert_eq!(counts(&failing), (0, 8, 5), "a lost claim fails, and is not the endpoint's failure");
    assert_eq!((failing.last_success_at, failing.last_failure_at), (None, Some(world.now())));
    assert!(failing.last_error.as_deref().is_some_and(|error| error.starts_with("[RETRYABLE] then")));
    let better = Results {
        delivered: 7,
        retryable: 2,
        failed_since: 1,
        last_success_at: Some(began),
        last_failure: Some((began, "[RETRYABLE] again".to_owned())),
        ..Results::default()
    };
    let health = tell(&world, better).await;
    assert_eq!(counts(&health), (7, 10, 1), "only what failed since");
    assert_eq!(
        (health.last_success_at, health.last_error.as_deref()),
        (Some(began), Some("[RETRYABLE] again"))
    );
    world.crash().await;
    let statuses = world.store().status().await.unwrap().endpoints;
    assert_eq!((&statuses[0].health, &statuses[1].health), (&health, &EndpointHealth::default()));
    assert_eq!(world.store().endpoint_health("nowhere").await.unwrap_err().sqlstate(), "42704");
}
