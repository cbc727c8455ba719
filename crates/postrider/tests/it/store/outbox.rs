//! Sending inside the application's own transaction on the SQLite file.

use std::time::Duration;

use postrider::error::StoreError;
use postrider::rusqlite::{Transaction, TransactionBehavior};
use postrider::store::sqlite::{SqliteOptions, publish_batch_in, publish_in, send_batch_in, send_in};
use postrider::store::{Arrival, NoDirectClaims};
use postrider::{
    NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PubSub, SqliteStore, State, Store,
};

use super::shop::Shop;
use super::world::{join, to};

impl Shop {
    fn begin(&mut self) -> Transaction<'_> {
        self.app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
    }

    fn orders(&self) -> i64 {
        self.app.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
    }
}

fn order(transaction: &Transaction<'_>) {
    transaction.execute("INSERT INTO orders (total) VALUES (4200)", []).unwrap();
}

#[tokio::test]
async fn a_message_commits_with_the_data_it_belongs_to() {
    let mut shop = Shop::open().await;
    let transaction = shop.begin();
    order(&transaction);
    let sent = send_in(&transaction, &to("a").ordering_key("k")).unwrap();
    transaction.commit().unwrap();
    assert_eq!((shop.orders(), shop.queued().await), (1, 1));
    let story = shop.store.story(sent.id).await.unwrap();
    assert_eq!((story.state, story.ordering_key.as_deref()), (State::Pending, Some("k")));
    assert_eq!(story.payload, Some(to("a").payload));
}

#[tokio::test]
async fn a_rolled_back_message_never_existed() {
    let mut shop = Shop::open().await;
    let transaction = shop.begin();
    order(&transaction);
    let sent = send_in(&transaction, &to("a").ordering_key("k").idempotency_key("i")).unwrap();
    transaction.rollback().unwrap();
    assert_eq!((shop.orders(), shop.queued().await), (0, 0));
    assert!(matches!(shop.store.story(sent.id).await, Err(StoreError::Unknown { .. })));
    let again = shop.store.send(to("a").ordering_key("k").idempotency_key("i")).await.unwrap();
    assert!(!again.duplicate, "its idempotency key was never taken");
    let waiting = shop.store.waiting().await.unwrap();
    assert_eq!(waiting.len(), 1, "nor does it stand before others of its ordering key");
}

#[tokio::test]
async fn a_refused_batch_leaves_the_callers_transaction_as_it_was() {
    let mut shop = Shop::open().await;
    let transaction = shop.begin();
    order(&transaction);
    let kept = send_in(&transaction, &to("a").idempotency_key("kept")).unwrap();
    let batch = [to("a").idempotency_key("lost"), to("a"), NewMessage { priority: 11, ..to("a") }];
    let refused = send_batch_in(&transaction, &batch).unwrap_err();
    assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "priority"), "{refused:?}");
    order(&transaction);
    let sent = send_batch_in(&transaction, &batch[..2]).unwrap();
    assert!(sent.iter().all(|sent| !sent.duplicate), "{sent:?}");
    transaction.commit().unwrap();
    assert_eq!((shop.orders(), shop.queued().await), (2, 3));
    assert_eq!(shop.store.story(kept.id).await.unwrap().state, State::Pending);
}

#[tokio::test]
async fn the_rules_are_those_of_every_other_way_in() {
    let mut shop = Shop::open().await;
    let held = shop.store.send(to("a").idempotency_key("i")).await.unwrap();
    shop.store.configure(vec![("max_queue_size".into(), "2".into())]).await.unwrap();
    let transaction = shop.begin();
    let duplicate = send_in(&transaction, &to("a").idempotency_key("i")).unwrap();
    assert_eq!((duplicate.id, duplicate.duplicate), (held.id, true));
    let other = NewMessage::new("a", "2").idempotency_key("i");
    let refused = |message: &NewMessage| send_in(&transaction, message).unwrap_err().sqlstate();
    assert_eq!(refused(&other), "23505");
    assert_eq!(refused(&to("nowhere")), "42704");
    assert_eq!(refused(&to("a").ordering_key("k".repeat(257))), "54000");
    assert_eq!(refused(&NewMessage { payload: vec![b'1'; 1_048_577].into(), ..to("a") }), "54000");
    send_in(&transaction, &to("a")).unwrap();
    assert_eq!(refused(&to("a")), "53400");
    transaction.commit().unwrap();
    assert_eq!(shop.queued().await, 2);
    assert_eq!(shop.store.send(to("a")).await.unwrap_err().sqlstate(), "53400", "both ways count together");
}

#[tokio::test]
async fn an_event_commits_or_rolls_back_with_the_data_it_belongs_to() {
    let mut shop = Shop::open().await;
    shop.store.create_event_type(NewEventType::new("orders")).await.unwrap();
    for pattern in ["orders", "*"] {
        shop.store.subscribe(NewSubscription::new(pattern, "a")).await.unwrap();
    }
    let event = NewEvent::new("orders", "1").idempotency_key("i");
    let transaction = shop.begin();
    order(&transaction);
    assert_eq!(publish_in(&transaction, &event).unwrap(), 2);
    transaction.rollback().unwrap();
    assert_eq!((shop.orders(), shop.queued().await), (0, 0));
    let transaction = shop.begin();
    order(&transaction);
    assert_eq!(publish_in(&transaction, &event).unwrap(), 2);
    let bad = [NewEvent::new("orders", "2"), NewEvent { priority: 11, ..NewEvent::new("orders", "3") }];
    assert_eq!(publish_batch_in(&transaction, &bad).unwrap_err().sqlstate(), "22023");
    let conflict = [NewEvent::new("orders", "2"), NewEvent { payload: "4".into(), ..event.clone() }];
    assert_eq!(publish_batch_in(&transaction, &conflict).unwrap_err().sqlstate(), "23505");
    assert_eq!(publish_batch_in(&transaction, &[event, bad[0].clone()]).unwrap(), 2, "one was there already");
    transaction.commit().unwrap();
    assert_eq!((shop.orders(), shop.queued().await), (1, 4));
}

#[tokio::test]
async fn a_running_node_notices_the_commit() {
    let mut shop = Shop::open().await;
    let (_, mut arrivals) = join(&shop.store, std::sync::Arc::new(NoDirectClaims)).await;
    let a = shop.store.endpoint("a").await.unwrap().id;
    while arrivals.try_recv().is_ok() {}
    let transaction = shop.begin();
    send_in(&transaction, &to("a")).unwrap();
    transaction.commit().unwrap();
    let told = async {
        while !matches!(arrivals.recv().await, Some(Arrival::Pending(endpoint)) if endpoint == a) {}
    };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("the node is told without being asked");
}

#[tokio::test]
async fn both_ways_in_share_the_order_of_a_key() {
    let mut shop = Shop::open().await;
    let mut ids = Vec::new();
    for round in 0..4 {
        if round % 2 == 0 {
            ids.push(shop.store.send(to("a").ordering_key("k")).await.unwrap().id);
        } else {
            let transaction = shop.begin();
            ids.push(send_in(&transaction, &to("a").ordering_key("k")).unwrap().id);
            transaction.commit().unwrap();
        }
    }
    assert!(ids.is_sorted_by(|left, right| left < right), "{ids:?}");
    for _ in 0..ids.len() {
        let id = ids.remove(0);
        let head = shop.store.story(id).await.unwrap().reason.unwrap_or_default();
        assert!(!head.contains("behind"), "{id}: {head}");
        for behind in &ids {
            let reason = shop.store.story(*behind).await.unwrap().reason.unwrap_or_default();
            assert!(reason.contains("behind"), "{behind}: {reason}");
        }
        shop.store.cancel(id).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_has_one_node_and_any_number_of_tools() {
    let shop = Shop::open().await;
    let path = shop.path();
    let second = SqliteStore::open(SqliteOptions::node(&path));
    assert!(matches!(second, Err(StoreError::Unusable(_))), "a second owner is told so");
    let tool = SqliteStore::open(SqliteOptions::tool(&path)).unwrap();
    tool.send(to("a")).await.unwrap();
    assert_eq!(shop.queued().await, 1);
    let hello = postrider::store::Hello {
        name: "tool".into(),
        arrivals: tokio::sync::mpsc::unbounded_channel().0,
        direct: std::sync::Arc::new(NoDirectClaims),
    };
    assert!(tool.join(hello).await.is_err(), "a tool does not dispatch");
    drop(shop.store);
    SqliteStore::open(SqliteOptions::node(&path)).expect("the next node takes over at once");
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_to_a_store_is_that_store() {
    let shop = Shop::open().await;
    let link = shop.folder.path().join("link.db");
    std::os::unix::fs::symlink(shop.path(), &link).unwrap();
    let second = SqliteStore::open(SqliteOptions::node(&link));
    assert!(matches!(second, Err(StoreError::Unusable(_))), "one file has one node, whatever its name");
    SqliteStore::open(SqliteOptions::tool(&link)).unwrap().send(to("a")).await.unwrap();
    assert_eq!(shop.queued().await, 1);
}
