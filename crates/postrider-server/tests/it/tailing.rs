//! What happens on a node, as it happens.

use serde_json::{Value, json};

use crate::http::Client;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

/// Reads events from now on.
fn tail(node: &Node, query: &str) -> Client {
    let mut client = node.client();
    client
        .write(format!("GET /v1/tail{query} HTTP/1.1\r\nhost: {}\r\n\r\n", node.address).as_bytes())
        .expect("it is read");
    assert!(client.read_until("listening"), "the tail begins");
    client
}

fn next(client: &mut Client) -> (String, Value) {
    let kind = client.read_line_with("event: ").expect("an event");
    let data = client.read_line_with("data: ").expect("its data");
    (kind, serde_json::from_str(&data).expect("JSON"))
}

#[test]
fn a_tail_tells_what_its_filters_let_through() {
    let receiver = Receiver::start(|received| Some(if received.path.ends_with("good") { 200 } else { 400 }));
    let home = Home::new();
    let node = home.start();
    for name in ["good", "bad"] {
        let url = format!("{}/{name}", receiver.url());
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": { "url": url } }));
    }
    let mut all = tail(&node, "");
    let mut dead = tail(&node, "?state=dead");
    let mut paid = tail(&node, "?event_type=order.paid&endpoint=good");
    let first = node.send("good", &[], "{}");
    let (kind, data) = next(&mut all);
    assert_eq!(
        (kind.as_str(), &data["state"], &data["endpoint"]),
        ("attempt", &json!("completed"), &json!("good"))
    );
    assert_eq!((&data["message_id"], &data["response_status"]), (&json!(first), &json!(200)));
    let second = node.send("bad", &[], "{}");
    let (_, data) = next(&mut dead);
    assert_eq!((&data["message_id"], &data["class"]), (&json!(second), &json!("permanent")));
    let third = node.send("good", &[("postrider-event-type", "order.paid")], "{}");
    let (_, data) = next(&mut paid);
    assert_eq!((&data["message_id"], &data["event_type"]), (&json!(third), &json!("order.paid")));
}

#[test]
fn a_tail_of_nobody_is_refused() {
    let home = Home::new();
    let node = home.start();
    node.get("/v1/tail?endpoint=nobody").expect(404);
    assert_eq!(node.get("/v1/tail?state=asleep").expect(422).json()["field"], "state");
    assert_eq!(node.get("/v1/tail?colour=red").expect(422).json()["field"], "colour");
}
