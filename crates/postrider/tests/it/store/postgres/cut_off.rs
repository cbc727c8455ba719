//! Nodes that cannot reach the database, or hear nothing of it.

use std::collections::HashSet;
use std::time::Duration;

use postrider::engine::EngineEventKind;
use postrider::{NewMessage, Operate, State};
use serde_json::json;

use super::post::{PATIENCE, Post, until};
use super::proxy::Network;
use crate::engine::receiver::Answer;

fn through(network: &Network, post: &Post) -> String {
    let (owner, name) = (post.database.owner(), post.database.name());
    format!("postgres://{owner}@127.0.0.1:{}/{name}", network.port())
}

#[tokio::test]
async fn nodes_whose_connections_are_cut_again_and_again_lose_nothing() {
    let post = Post::open().await;
    post.endpoint("a", json!({})).await;
    let nodes = [post.node("one").await, post.node("two").await];
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'postrider' AND pid <> pg_backend_pid()";
    let app = post.database.connect().await;
    let mut cuts = 0;
    for _ in 0..10 {
        for _ in 0..20 {
            app.query("SELECT postrider.send('a', '{}')", &[]).await.unwrap();
        }
        cuts += post.number(cut).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(cuts > 20, "only {cuts} connections were cut");
    until("an empty queue", async || post.number("SELECT count(*) FROM postrider.queue").await == 0).await;
    let arrivals = post.receiver.arrivals();
    let distinct: HashSet<&str> = arrivals.iter().map(|arrival| &*arrival.id).collect();
    assert_eq!(distinct.len(), 200);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn late_results_of_a_node_that_was_cut_off_are_fenced_but_for_deliveries() {
    let post = Post::open().await;
    post.configure("node_lease", "5").await;
    post.endpoint("a", json!({})).await;
    let network = Network::before(post.database.port()).await;
    let cut_off = post.node_at("cut off", &through(&network, &post)).await;
    post.receiver.script(|arrival| match (&*arrival.payload, arrival.attempt) {
        ("retried", 1) => Answer::status(500).held(),
        ("dead", 1) => Answer::status(400).held(),
        _ => Answer::ok().held(),
    });
    let mut ids = Vec::new();
    for payload in ["delivered", "retried", "dead"] {
        ids.push(post.send("a", payload).await);
    }
    post.receiver.until("all of them", |receiver| receiver.running("a") == 3).await;
    network.freeze();
    post.store.set_endpoint_paused("a", true).await.unwrap();
    let other = post.node("other").await;
    let lost = "SELECT count(*) FROM postrider.queue WHERE losses = 1";
    until("the other node to take over", async || post.number(lost).await == 3).await;
    assert!(!cut_off.is_progressing(), "its lease could not be confirmed");

    let mut events = cut_off.events();
    post.receiver.release();
    post.receiver.until("its results", |receiver| receiver.running("a") == 0).await;
    network.thaw();
    post.until_state(ids[0], State::Completed).await;
    until("the node to work again", async || cut_off.is_progressing()).await;
    for id in &ids[1..] {
        let story = post.store.story(*id).await.unwrap();
        assert_eq!((story.state, story.attempt_count), (State::Pending, 1), "{story:?}");
        assert!(
            story.last_error.as_deref().is_some_and(|error| error.contains("lease expired")),
            "{story:?}"
        );
    }
    post.store.set_endpoint_paused("a", false).await.unwrap();
    for id in &ids[1..] {
        post.until_state(*id, State::Completed).await;
    }
    assert_eq!(post.store.status().await.unwrap().dead, 0);
    assert_eq!(post.receiver.count(), 5, "only what was not delivered is tried again");
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let EngineEventKind::Attempted { message, state, .. } = event.kind {
            told.push((message, state));
        }
    }
    assert!(told.contains(&(ids[0], State::Completed)), "{told:?}");
    cut_off.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_answered_after_the_lease_starts_nothing() {
    let post = Post::open().await;
    post.configure("node_lease", "5").await;
    post.endpoint("a", json!({ "max_in_flight": 1 })).await;
    let network = Network::before(post.database.port()).await;
    let cut_off = post.node_at("cut off", &through(&network, &post)).await;
    post.receiver.answer(Answer::ok().held());
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(post.send("a", &n.to_string()).await);
    }
    post.receiver.until("the first", |receiver| receiver.running("a") == 1).await;
    network.freeze_answers();
    post.receiver.release();
    post.until_state(ids[0], State::Completed).await;
    post.until_state(ids[1], State::Processing).await;
    let other = post.node("other").await;
    post.until_empty().await;
    assert_eq!(post.receiver.count(), 3, "the other node did the rest");
    assert!(!cut_off.is_progressing());
    network.thaw();
    until("the node to work again", async || cut_off.is_progressing()).await;
    let last = post.send("a", "last").await;
    post.until_state(last, State::Completed).await;
    assert_eq!(post.receiver.count(), 4, "and nothing was sent twice");
    cut_off.stop().await;
    other.stop().await;
}

/// A server that froze is worse than one that is gone: the network still answers for it.
#[tokio::test]
async fn a_node_leaves_a_frozen_server_for_another_one() {
    let post = Post::open().await;
    post.configure("node_lease", "5").await;
    post.endpoint("a", json!({})).await;
    let network = Network::before(post.database.port()).await;
    let (owner, name) = (post.database.owner(), post.database.name());
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", network.port(), post.database.port());
    let patience = "connect_timeout=1&tcp_user_timeout=1";
    let node = post.node_at("one", &format!("postgres://{owner}@{hosts}/{name}?{patience}")).await;
    let first = post.send("a", "1").await;
    post.until_state(first, State::Completed).await;
    network.freeze();
    let second = post.send("a", "2").await;
    post.until_state(second, State::Completed).await;
    assert!(tokio::time::timeout(PATIENCE, node.stop()).await.is_ok());
}

#[tokio::test]
async fn whoever_does_not_wait_for_an_answer_leaves_nobody_waiting_behind_the_question() {
    let post = Post::open().await;
    post.endpoint("a", json!({})).await;
    let app = post.database.connect().await;
    app.batch_execute("BEGIN; LOCK TABLE postrider.event_log").await.unwrap();
    let left = tokio::time::timeout(Duration::from_millis(200), post.store.events(None, 1)).await;
    assert!(left.is_err(), "nobody can read the event log now");

    let message = NewMessage::new("a", &b"{}"[..]);
    tokio::time::timeout(PATIENCE, post.store.send(message)).await.expect("not behind it").unwrap();
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'postrider.event_log'::regclass";
    until("the question to be taken back", async || post.number(waiting).await == 0).await;
    app.batch_execute("COMMIT").await.unwrap();
}
