//! Whole nodes on one database, by the real clock.

use std::collections::HashMap;
use std::time::Duration;

use postrider::NewMessage;
use postrider::store::postgres::send_in;
use tokio::time::Instant;

use super::post::{PATIENCE, Post};

fn numbered(n: usize) -> NewMessage {
    NewMessage::new("a", format!(r#"{{"n":{n}}}"#)).ordering_key(format!("k{}", n % 10))
}

#[tokio::test]
async fn two_nodes_deliver_everything_once_and_every_key_in_order() {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let nodes = [post.node("one").await, post.node("two").await];
    let app = post.database.connect().await;
    for n in 0..300 {
        send_in(&app, &numbered(n)).await.unwrap();
    }
    post.until_empty().await;
    for node in nodes {
        node.stop().await;
    }
    let mut all: Vec<String> = Vec::new();
    for node in ["one", "two"] {
        let mut last: HashMap<String, u64> = HashMap::new();
        for letter in post.letters(node) {
            let n = letter["payload"]["n"].as_u64().unwrap();
            let key = format!("k{}", n % 10);
            let before = last.insert(key.clone(), n);
            assert!(before.is_none_or(|before| before < n), "{key}: {before:?} then {n}");
            all.push(letter["id"].to_string());
        }
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 300, "each of them");
    assert_eq!(post.letters("one").len() + post.letters("two").len(), 300, "and once");
}

/// While nodes are upgraded one by one.
#[tokio::test]
async fn an_endpoint_that_only_newer_nodes_know_is_left_to_them() {
    let post = Post::open().await;
    for endpoint in ["a", "newer"] {
        post.file_endpoint(endpoint).await;
    }
    let app = post.database.connect().await;
    let set_protocol = async |protocol: &str| {
        let sql = format!(
            "ALTER TABLE postrider.endpoints DISABLE TRIGGER USER;
             UPDATE postrider.endpoints SET protocol = '{protocol}' WHERE name = 'newer';
             ALTER TABLE postrider.endpoints ENABLE TRIGGER USER;
             SELECT postrider.pause_endpoint('newer'), postrider.resume_endpoint('newer')"
        );
        app.batch_execute(&sql).await.unwrap();
    };
    set_protocol("pigeon").await;
    let node = post.node("one").await;
    send_in(&app, &NewMessage::new("newer", "1")).await.unwrap();
    send_in(&app, &numbered(1)).await.unwrap();
    let begun = Instant::now();
    while post.letters("one").is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    set_protocol("file").await;
    post.until_empty().await;
    node.stop().await;
    assert_eq!(post.letters("one").len(), 2);
}

#[tokio::test]
async fn the_first_message_after_a_rest_is_delivered_at_once() {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let node = post.node("one").await;
    let app = post.database.connect().await;
    send_in(&app, &numbered(0)).await.unwrap();
    post.until_empty().await;
    let begun = Instant::now();
    send_in(&app, &numbered(1)).await.unwrap();
    while post.letters("one").len() < 2 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Well before anybody would look without being told.
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    node.stop().await;
}
