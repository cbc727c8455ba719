//! What no command asks for, but the library promises: the same answers from a node as from its store.

use std::sync::Arc;

use bytes::Bytes;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{DlqFilter, DlqStatus, Figures, Listing, PubSub, Redrive, Story, SweepAction, Sweeps};
use postrider::{
    Invalid, MessageId, NewEndpoint, NewEvent, NewEventType, NewMessage, NewSubscription, Operate,
    SqliteStore, StoreError,
};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::{self, Api, ApiGate, Stopped};
use crate::failure::Exit;

/// A store with an endpoint `shop`, and the API before it.
struct World {
    store: Arc<SqliteStore>,
    remote: Remote,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = SqliteStore::open(SqliteOptions::tool(folder.path().join("a.db"))).expect("a store");
        let store = Arc::new(store);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let api = Api::new(store.clone(), Arc::new(Stopped), None, CancellationToken::new());
        let gate = ApiGate::new(store.clone(), Vec::new(), address);
        tokio::spawn(api::serve(
            listener,
            api::router(api),
            gate,
            64,
            CancellationToken::new(),
            CancellationToken::new(),
        ));
        let url = Some(format!("http://{address}"));
        let remote = Remote::new(RemoteArgs { url, token_env: "POSTRIDER_NO_TOKEN".to_owned() });
        let world = Self { store, remote: remote.expect("a client"), _folder: folder };
        let shop = NewEndpoint {
            name: "shop".to_owned(),
            protocol: "http".to_owned(),
            config: json!({ "url": "https://example.org/" }).as_object().expect("an object").clone(),
            ..NewEndpoint::default()
        };
        world.remote.create_endpoint(shop).await.expect("an endpoint");
        world
    }
}

#[test]
fn an_address_is_refused_without_repeating_its_password() {
    for bad in ["", "127.0.0.1:7171", "ftp://a/", "http://me:hush@a/", "http://a/?x=hush", "hush@a"] {
        let failure = address(bad).expect_err(bad);
        assert_eq!(failure.exit, Exit::Usage, "{bad}");
        assert!(!failure.error.contains("hush"), "{}", failure.error);
    }
    assert!(address("https://example.org/postrider/").is_ok());
}

#[tokio::test]
async fn a_batch_arrives_whole_and_byte_for_byte_or_not_at_all() {
    let World { store, remote, .. } = &World::new().await;
    let binary = NewMessage {
        content_type: "application/octet-stream".to_owned(),
        headers: [("X-Shop".to_owned(), " 7 ".to_owned())].into(),
        ..NewMessage::new("shop", Bytes::from_static(b"\xff\n\x00"))
    };
    let keyed =
        NewMessage { priority: 3, ..NewMessage::new("shop", "7").idempotency_key("k").ordering_key(" o ") };
    let messages =
        [NewMessage::new("shop", "{\"a\":\n1}\n"), binary, keyed.clone(), NewMessage::new("shop", "null")];
    let sent = remote.send_batch(messages.to_vec()).await.expect("all of them");
    assert_eq!(sent.len(), messages.len());
    for (sent, message) in sent.iter().zip(&messages) {
        let story = store.story(sent.id).await.expect("a story");
        assert_eq!(story.payload.as_ref(), Some(&message.payload));
        assert_eq!((&story.content_type, &story.headers), (&message.content_type, &message.headers));
        assert_eq!((story.priority, &story.ordering_key), (message.priority, &message.ordering_key));
        // What a node adds to the reason from this, it has added.
        let told = Story { waits_for_receiver: false, ..story };
        assert_eq!(remote.story(sent.id).await.expect("the same story"), told);
    }
    let again = remote.send_batch_fast(vec![keyed]).await.expect("the one that is queued");
    assert_eq!((again[0].id, again[0].duplicate), (sent[2].id, true));
    let refused = remote.send_batch(vec![messages[0].clone(), NewMessage::new("nobody", "1")]).await;
    assert!(matches!(refused, Err(StoreError::Unknown { what: "endpoint", .. })), "{refused:?}");
    assert_eq!(remote.send_batch(Vec::new()).await.expect("nothing to do"), []);
    assert_eq!(store.status().await.expect("figures").pending, 4);
}

#[tokio::test]
async fn what_is_looked_at_is_the_same() {
    let World { store, remote, .. } = &World::new().await;
    remote.pause("a release").await.expect("paused");
    assert_eq!(store.status().await.expect("figures").paused.as_deref(), Some("a release"));
    let refused = remote.pause("").await;
    assert!(matches!(refused, Err(StoreError::Invalid(Invalid { field, .. })) if field == "reason"));
    remote.resume().await.expect("resumed");
    remote.send_fast(NewMessage::new("shop", "1")).await.expect("sent");
    assert_eq!(remote.release_key("k", Some("shop")).await.expect("no such key"), 0);
    assert_eq!(remote.status().await.expect("figures"), store.status().await.expect("figures"));
    assert_eq!(remote.settings().await.expect("settings"), store.settings().await.expect("settings"));
    let log = store.events(None, 10).await.expect("the log");
    assert_eq!(remote.events(None, 10).await.expect("the log"), log);
    let older = remote.events(Some(log[0].id), 1).await.expect("the log");
    assert_eq!(older, log[1..2], "newest first, older than the first");
    assert_eq!(remote.nodes(None, 5).await.expect("nodes"), store.nodes(None, 5).await.expect("nodes"));
    let names = |figures: Vec<postrider::store::Figure>| -> Vec<String> {
        figures.into_iter().map(|figure| figure.name).collect()
    };
    let figures = names(remote.figures().await.expect("figures"));
    assert_eq!(figures, names(store.figures().await.expect("figures")));
}

#[tokio::test]
async fn events_are_published_one_at_a_time() {
    let World { remote, .. } = &World::new().await;
    remote.create_event_type(NewEventType::new("paid")).await.expect("a type");
    let subscribe =
        async || remote.subscribe(NewSubscription::new("*", "shop")).await.expect("a subscription");
    let (made, again) = (subscribe().await, subscribe().await);
    assert_eq!((made.existed, again.existed), (false, true));
    assert_eq!(again.subscription, made.subscription);
    assert_eq!(remote.subscription(made.subscription.id).await.expect("the same"), made.subscription);
    let paid = || NewEvent::new("paid", "1");
    assert_eq!(remote.publish_batch(vec![paid()]).await.expect("one"), 1);
    assert_eq!(remote.publish_batch(Vec::new()).await.expect("none"), 0);
    let refused = remote.publish_batch(vec![paid(), paid()]).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    remote.set_endpoint_enabled("shop", false).await.expect("disabled");
    assert_eq!(remote.publish(paid()).await.expect("it is skipped"), 0);
    assert_eq!(remote.publish_skipped().await.expect("and counted"), 1);
    for null in [
        NewSubscription::new("*", "shop").filter(json!(null)),
        NewSubscription::new("*", "shop").template(json!(null)),
    ] {
        let refused = remote.subscribe(null).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "it would be left out: {refused:?}");
    }
}

#[tokio::test]
async fn no_part_of_a_selection_is_left_out() {
    let World { remote, .. } = &World::new().await;
    assert_eq!(remote.redrive(Redrive::All).await.expect("there are none"), 0);
    assert_eq!(remote.redrive(Redrive::Endpoint("shop".to_owned())).await.expect("there are none"), 0);
    let of_message = DlqFilter { message: Some(MessageId(7)), ..DlqFilter::default() };
    assert_eq!(remote.redrive(Redrive::Matching(of_message.clone())).await.expect("there are none"), 0);
    assert_eq!(remote.dlq(of_message.clone()).await.expect("there are none"), []);
    let beside_id = DlqFilter { id: Some(1), ..of_message };
    let refused = remote.dlq(beside_id).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    let filters = [
        ("id", DlqFilter { id: Some(1), ..DlqFilter::default() }),
        ("status", DlqFilter { status: Some(DlqStatus::Failed), ..DlqFilter::default() }),
        ("after", DlqFilter { after: Some(1), ..DlqFilter::default() }),
        ("limit", DlqFilter { limit: 1, ..DlqFilter::default() }),
    ];
    for (field, filter) in filters {
        let refused = remote.sweep(SweepAction::Discard, filter, None).await;
        assert!(
            matches!(&refused, Err(StoreError::Invalid(invalid)) if invalid.field == field),
            "{refused:?}"
        );
    }
}
