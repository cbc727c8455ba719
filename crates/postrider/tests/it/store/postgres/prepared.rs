//! Two-phase commit: a sender that prepares its transaction, and commits it whenever it likes.

use postrider::MessageId;

use super::Postgres;
use super::post::{Post, until};
use super::prompt::Prompt;
use crate::store::world::{World, to};

const OFF: [&str; 6] = ["off", "false", "no", "0", "'OFF'", "'False'"];
const KEYED: &str = "SELECT postrider.send_with_options('a', '{}', p_ordering_key => 'k')";

/// Sends a message of key `k` and prepares it. Names of prepared transactions are the whole server's.
async fn prepare(app: &Prompt, name: &str) -> MessageId {
    app.run("BEGIN; SET LOCAL postrider.notify = off").await;
    let id = app.number(KEYED).await;
    app.run(&format!("PREPARE TRANSACTION '{name}'")).await;
    MessageId(id)
}

#[tokio::test]
async fn every_way_to_send_can_be_prepared_once_notify_is_off() {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let app = Prompt::new(post.database.connect().await);
    app.run("SELECT postrider.create_event_type('e'), postrider.subscribe('e', 'a')").await;
    app.run("CREATE TABLE orders (id integer); SELECT postrider.capture_rows('orders', 'a')").await;
    // Its holder expires on the way, and lets its own key go.
    app.run("SELECT postrider.send_with_options('a', '{}', p_expires_at => clock_timestamp() + interval '1 microsecond',
               p_idempotency_key => 'i', p_ordering_key => 'j'),
             postrider.send_with_options('a', '{}', p_ordering_key => 'j')").await;
    let ways = [
        "SELECT postrider.send('a', '{}')",
        KEYED,
        "SELECT postrider.send_bytes('a', 'x', 'text/plain')",
        "SELECT postrider.send_batch('a', ARRAY['1', '2']::jsonb[])",
        r#"SELECT postrider.send_batch_with_options('a', '[{"payload": 1, "ordering_key": "k"}]')"#,
        "SELECT postrider.publish('e', '{}')",
        "SELECT postrider.send_with_options('a', '{}', p_idempotency_key => 'i')",
        "INSERT INTO orders VALUES (1)",
        "SELECT postrider.cancel_message(2)",
    ];
    for (n, way) in ways.iter().enumerate() {
        let name = format!("{}_{n}", post.database.name());
        app.run(&format!("BEGIN; SET LOCAL postrider.notify = off; {way}; PREPARE TRANSACTION '{name}'"))
            .await;
        app.run(&format!("COMMIT PREPARED '{name}'")).await;
    }
    let node = post.node("one").await;
    post.until_empty().await;
    node.stop().await;
    assert_eq!(post.letters("one").len(), 9);
    for on in ["SET LOCAL postrider.other = off", "SET LOCAL postrider.notify = on"] {
        app.run(&format!("BEGIN; {on}; SELECT postrider.send('a', '{{}}')")).await;
        app.refuses("PREPARE TRANSACTION 'never'", "0A000", "NOTIFY").await;
    }
}

#[tokio::test]
async fn every_word_for_no_turns_notifications_off() {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let app = Prompt::new(post.database.connect().await);
    for off in OFF {
        let name = post.database.name();
        for way in ["SELECT postrider.send('a', '{}')", KEYED] {
            app.run(&format!(
                "BEGIN; SET LOCAL postrider.notify = {off}; {way}; PREPARE TRANSACTION '{name}'"
            ))
            .await;
            app.run(&format!("ROLLBACK PREPARED '{name}'")).await;
        }
    }
}

#[tokio::test]
async fn what_was_sent_without_a_notification_is_found_by_upkeep() {
    let mut world = World::<Postgres>::start().await;
    let app = Prompt::of(&world).await;
    let name = world.harness().database.name().to_owned();
    let sent = prepare(&app, &name).await;
    postrider::Store::upkeep(world.store(), 10).await.unwrap();
    while world.arrivals.try_recv().is_ok() {}
    app.run(&format!("COMMIT PREPARED '{name}'")).await;
    postrider::Store::upkeep(world.store(), 10).await.unwrap();
    let a = world.a;
    let told = std::iter::from_fn(|| world.arrivals.try_recv().ok());
    assert!(told.into_iter().any(|told| matches!(told, postrider::store::Arrival::Pending(of) if of == a)));
    assert_eq!(world.claim_ids().await, [sent]);
}

/// Also while the node has very much else to do.
#[tokio::test]
async fn a_busy_node_finds_what_was_sent_without_a_notification() {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    post.file_endpoint("busy").await;
    let app = Prompt::new(post.database.connect().await);
    let node = post.node("one").await;
    let name = post.database.name();
    let sent = prepare(&app, name).await;
    app.run(&format!("COMMIT PREPARED '{name}'")).await;
    until("it to be delivered while others are sent", async || {
        post.send_many("busy", 500).await;
        postrider::Operate::story(&*post.store, sent).await.unwrap().finished_at.is_some()
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn a_prepared_message_keeps_its_place_in_its_key_however_late_it_is_committed() {
    let mut world = World::<Postgres>::start().await;
    let (app, other) = (Prompt::of(&world).await, Prompt::of(&world).await);
    let name = world.harness().database.name().to_owned();
    let first = world.send(to("a").ordering_key("k")).await;
    let second = prepare(&app, &name).await;
    // The key is its sender's until that has ended, on whatever connection.
    other.run("SET lock_timeout = '50ms'").await;
    other.refuses(KEYED, "55P03", "").await;
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, first);
    world.complete(ticket).await;
    for _ in 0..60 {
        world.live(60).await;
        postrider::Store::upkeep(world.store(), 10).await.unwrap();
    }
    assert_eq!(world.claim_ids().await, []);
    app.run(&format!("COMMIT PREPARED '{name}'")).await;
    let third = world.send(to("a").ordering_key("k")).await;
    postrider::Store::upkeep(world.store(), 10).await.unwrap();
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, second);
    world.complete(ticket).await;
    assert_eq!(world.claim_one().await.id, third);
}
