//! Events of `postrider_publish` that wait for their turn or for room, and who goes behind them.

use postrider::store::{Figures, Redrive};
use postrider::{NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PubSub, StoreError};
use serde_json::json;

use super::super::world::new_endpoint;
use super::publishing::MINIMAL;
use super::{Shop, refusal};

#[tokio::test]
async fn events_are_fanned_out_in_commit_order_and_before_what_is_published_later() {
    let shop = Shop::with_orders().await;
    let stored = "INSERT INTO postrider_publish (event_type, payload, ordering_key)
                  SELECT 'orders', value, 'k' FROM json_each('[\"1\", \"2\", \"3\"]')";
    shop.run(stored);
    shop.store.publish(NewEvent::new("orders", "4").ordering_key("k")).await.unwrap();
    shop.run(&stored.replace("\"1\", \"2\", \"3\"", "\"5\""));
    shop.store.send(NewMessage::new("a", "6").ordering_key("k")).await.unwrap();
    assert_eq!(shop.payloads(), ["1", "2", "3", "4", "5", "6"]);
}

/// The writer takes a few hundred in a turn, and others have their turn in between.
#[tokio::test]
async fn whoever_sends_under_a_key_goes_behind_all_the_events_that_were_stored_before() {
    let shop = Shop::with_orders().await;
    for (round, last) in [(1, 2000), (2, 1000)] {
        shop.run(&format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {last})
             INSERT INTO postrider_publish (event_type, payload, ordering_key) SELECT 'orders', CAST({round}000000 + n AS TEXT), 'k' FROM n"
        ));
        let keyed = |payload: String| NewMessage::new("a", payload).ordering_key("k");
        let event = NewEvent::new("orders", format!("{round}900003")).ordering_key("k");
        let (first, batch, published, free) = tokio::join!(
            shop.store.send(keyed(format!("{round}900001"))),
            shop.store.send_batch(vec![NewMessage::new("a", "0"), keyed(format!("{round}900002"))]),
            shop.store.publish(event),
            shop.store.send(NewMessage::new("a", "0")),
        );
        assert!(first.is_ok() && batch.is_ok() && published.is_ok() && free.is_ok());
    }
    let sent: Vec<u64> = shop.payloads().iter().map(|payload| payload.parse().unwrap()).collect();
    let sent: Vec<u64> = sent.into_iter().filter(|payload| *payload > 0).collect();
    assert_eq!(sent.len(), 3006);
    assert!(sent.is_sorted(), "{sent:?}");
}

#[tokio::test]
async fn whoever_would_go_behind_events_that_do_not_fit_is_told_so() {
    let shop = Shop::with_orders().await;
    shop.store.subscribe(NewSubscription::new("*", "a")).await.unwrap();
    shop.configure("max_queue_size", "3").await;
    shop.store.send_batch(vec![NewMessage::new("a", "1"), NewMessage::new("a", "2")]).await.unwrap();
    shop.run(&format!("INSERT {MINIMAL}"));
    let refused = shop.store.send(NewMessage::new("a", "4").ordering_key("k")).await.unwrap_err();
    assert!(matches!(refused, StoreError::QueueFull { endpoint: None, .. }), "{refused}");
    shop.store.send(NewMessage::new("a", "3")).await.unwrap();
    assert_eq!(
        (shop.payloads().as_slice(), shop.stored_events()),
        (["1", "2", "3"].map(str::to_owned).as_slice(), 1)
    );
    shop.configure("max_queue_size", "0").await;
    shop.fanned_out().await;
    shop.store.send(NewMessage::new("a", "4").ordering_key("k")).await.unwrap();
    assert_eq!((shop.payloads().len(), shop.payloads().last().map(String::as_str)), (6, Some("4")));
}

#[tokio::test]
async fn a_full_queue_lets_events_wait_and_refuses_more() {
    let shop = Shop::with_orders().await;
    shop.store.subscribe(NewSubscription::new("*", "a")).await.unwrap();
    shop.configure("max_queue_size", "3").await;
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    shop.run(&format!("INSERT {MINIMAL}"));
    let refused = refusal(&shop.app, &format!("INSERT {MINIMAL}"));
    assert!(refused.starts_with("53400 max_queue_size: the queue is full"), "{refused}");
    // The node has looked at it in this transaction, and left it.
    shop.store.set_endpoint_paused("a", true).await.unwrap();
    assert_eq!((shop.stored_events(), shop.queued().await), (1, 2));
    assert_eq!(shop.letters().await, [], "it is not invalid");
    let first = shop.number("SELECT min(id) FROM postrider_queue");
    shop.store.cancel(postrider::MessageId(first)).await.unwrap();
    shop.fanned_out().await;
    assert_eq!(shop.queued().await, 3);
}

#[tokio::test]
async fn a_full_endpoint_holds_up_no_events_but_its_own() {
    let shop = Shop::with_orders().await;
    let small = new_endpoint("small", json!({"max_queue_size": 1}));
    shop.store.create_endpoint(small).await.unwrap();
    shop.store.create_event_type(NewEventType::new("both")).await.unwrap();
    for endpoint in ["a", "small"] {
        shop.store.subscribe(NewSubscription::new("both", endpoint)).await.unwrap();
    }
    for payload in ["1", "2"] {
        shop.run(&format!(
            "INSERT INTO postrider_publish (event_type, payload) VALUES ('both', '{payload}')"
        ));
    }
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    assert_eq!(shop.payloads(), ["1", "1", r#"{"total": 4200}"#], "all of an event, or nothing");
    let letters = shop.letters().await;
    let told: Vec<_> = letters.iter().map(|letter| letter.last_error.as_deref().unwrap()).collect();
    let full = "[PERMANENT] the queue is full: 1 messages of 1 (endpoint \"small\"); try again later or raise max_queue_size";
    assert_eq!(told, [full]);
    let first = shop.number("SELECT id FROM postrider_queue WHERE endpoint = 'small'");
    shop.store.cancel(postrider::MessageId(first)).await.unwrap();
    assert_eq!(shop.store.redrive(Redrive::One(letters[0].id)).await.unwrap(), 1);
    assert_eq!(shop.payloads(), ["1", r#"{"total": 4200}"#, "2", "2"]);
}

#[tokio::test]
async fn an_event_that_can_never_fit_waits_for_nothing() {
    let shop = Shop::with_orders().await;
    shop.configure("max_queue_size", "2").await;
    shop.store.create_event_type(NewEventType::new("wide")).await.unwrap();
    for part in 0..3 {
        shop.store.subscribe(NewSubscription::new("wide", "a").template(json!(part))).await.unwrap();
    }
    shop.store.send(NewMessage::new("a", "1")).await.unwrap();
    shop.run("INSERT INTO postrider_publish (event_type, payload) VALUES ('wide', '2')");
    shop.fanned_out().await;
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    assert_eq!(shop.payloads(), ["1", r#"{"total": 4200}"#]);
    let error = shop.letters().await[0].last_error.clone().unwrap();
    assert_eq!(error, "[PERMANENT] event_type: 3 is more than max_queue_size allows, which is 2");
}

#[tokio::test]
async fn events_that_wait_are_counted() {
    let shop = Shop::with_orders().await;
    for part in 0..2 {
        shop.store.subscribe(NewSubscription::new("orders", "a").template(json!(part))).await.unwrap();
    }
    shop.configure("max_queue_size", "3").await;
    let figures = async || {
        let figures = shop.store.figures().await.unwrap();
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).unwrap().value;
        (value("postrider_stored_events"), value("postrider_oldest_stored_event_age_seconds"))
    };
    assert_eq!(figures().await, (0.0, 0.0));
    let holding = shop.store.send(NewMessage::new("a", "1")).await.unwrap().id;
    shop.run(&format!(
        "BEGIN IMMEDIATE; INSERT {MINIMAL}; INSERT {MINIMAL};
         UPDATE _postrider_events SET created_at = created_at - 3600000000; COMMIT"
    ));
    let (waiting, age) = figures().await;
    assert!(waiting == 2.0 && (3600.0..3700.0).contains(&age), "{waiting} for {age}");
    let status = shop.store.status().await.unwrap();
    assert_eq!((status.stored_events, status.oldest_stored_event.is_some()), (2, true));
    shop.store.cancel(holding).await.unwrap();
    shop.configure("max_queue_size", "0").await;
    shop.fanned_out().await;
    assert_eq!(figures().await, (0.0, 0.0));
    assert_eq!(shop.store.status().await.unwrap().oldest_stored_event, None);
}

#[tokio::test]
async fn many_events_are_fanned_out_in_short_transactions() {
    let shop = Shop::with_orders().await;
    for number in 0..20 {
        let endpoint = format!("e{number}");
        shop.store.create_endpoint(new_endpoint(&endpoint, json!({}))).await.unwrap();
        shop.store.subscribe(NewSubscription::new("*", endpoint)).await.unwrap();
    }
    shop.run(
        "INSERT INTO postrider_publish (event_type, payload)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) SELECT 'orders', CAST(i AS TEXT) FROM n",
    );
    shop.fanned_out().await;
    assert_eq!(shop.queued().await, 300 * 21);
    let order = shop.number(
        "SELECT count(*) FROM (SELECT CAST(payload AS TEXT) + 0 AS n, lag(CAST(payload AS TEXT) + 0) OVER (ORDER BY id) AS before
           FROM postrider_queue) WHERE before > n",
    );
    assert_eq!(order, 0, "in their order");
}
