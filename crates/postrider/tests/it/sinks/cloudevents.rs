//! CloudEvents 1.0 over HTTP.

use bytes::Bytes;
use postrider::message::Message;
use serde_json::{Value, json};

use super::server::{Received, Server, header};
use super::support::*;

async fn sent(mode: &str, message: Message) -> Received {
    let server = Server::ok().await;
    http_sink(json!({"url": server.url("/"), "cloudevents": mode}))
        .deliver(&delivery(message))
        .await
        .unwrap();
    server.only()
}

#[tokio::test]
async fn binary_mode_puts_attributes_into_headers_and_leaves_the_body_alone() {
    let message = Message {
        event_type: Some("order.créé 100%".to_owned()),
        content_type: "text/plain".to_owned(),
        ..message(9, "as it is")
    };
    let request = sent("binary", message).await;
    assert_eq!(header(&request, "ce-specversion"), "1.0");
    assert_eq!(header(&request, "ce-id"), "msg_k3x9_9");
    assert_eq!(header(&request, "ce-source"), "/postrider/k3x9/orders");
    assert_eq!(header(&request, "ce-type"), "order.cr%C3%A9%C3%A9%20100%25");
    assert_eq!(header(&request, "ce-time"), NOW);
    assert_eq!(header(&request, "content-type"), "text/plain");
    assert!(!request.headers().contains_key("ce-datacontenttype"));
    assert_eq!(request.body(), "as it is");
}

#[tokio::test]
async fn an_endpoint_says_the_type_of_messages_that_have_none() {
    let kinds =
        [(None, "shop.order é", "shop.order%20%C3%A9"), (Some("order.paid"), "order.paid", "order.paid")];
    for (event_type, structured, binary) in kinds {
        for mode in ["binary", "structured"] {
            let server = Server::ok().await;
            let config =
                json!({"url": server.url("/"), "cloudevents": mode, "cloudevents_type": "shop.order é"});
            let message = Message { event_type: event_type.map(str::to_owned), ..message(9, "1") };
            http_sink(config).deliver(&delivery(message)).await.unwrap();
            let request = server.only();
            match mode {
                "binary" => assert_eq!(header(&request, "ce-type"), binary),
                _ => {
                    let envelope: Value = serde_json::from_slice(request.body()).unwrap();
                    assert_eq!(envelope["type"], structured);
                }
            }
        }
    }
}

#[tokio::test]
async fn structured_mode_embeds_json_byte_for_byte() {
    let payload = "{\"z\": 1.0,\n \"a\": \"\\u00e9\", \"z\": 2}";
    let request =
        sent("structured", Message { event_type: Some("a \"b\"".to_owned()), ..message(9, payload) }).await;
    assert_eq!(header(&request, "content-type"), "application/cloudevents+json");
    let expected = format!(
        r#"{{"specversion":"1.0","id":"msg_k3x9_9","source":"/postrider/k3x9/orders","type":"a \"b\"","time":"{NOW}","datacontenttype":"application/json","data":{payload}}}"#
    );
    assert_eq!(request.body(), &expected);
    assert_eq!(header(&request, "webhook-id"), "msg_k3x9_9");
    assert!(!request.headers().contains_key("ce-id"));
}

#[tokio::test]
async fn structured_mode_carries_what_is_not_json_as_base64() {
    let cases: [(&str, &[u8], Value); 5] = [
        ("application/octet-stream", &[0, 255], json!({"data_base64": "AP8="})),
        ("application/json", b"{broken", json!({"data_base64": "e2Jyb2tlbg=="})),
        ("application/json", b"\"\xff\"", json!({"data_base64": "Iv8i"})),
        ("text/plain", b"{}", json!({"data_base64": "e30="})),
        ("application/vnd.x+json; charset=utf-8", b"[1]", json!({"data": [1]})),
    ];
    for (content_type, payload, expected) in cases {
        let message =
            Message { content_type: content_type.to_owned(), ..message(9, Bytes::from_static(payload)) };
        let envelope: Value = serde_json::from_slice(sent("structured", message).await.body()).unwrap();
        assert_eq!(envelope["datacontenttype"], content_type);
        assert_eq!(envelope["type"], "postrider.message");
        for key in ["data", "data_base64"] {
            assert_eq!(envelope.get(key), expected.get(key), "{content_type}");
        }
    }
}
