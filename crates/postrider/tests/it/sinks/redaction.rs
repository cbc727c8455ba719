//! No interface shows a secret again.

use postrider::protocol::Protocol;
use serde_json::{Value, json};

use super::support::object;

fn shown(config: Value) -> Value {
    Value::Object(Protocol::Http.redacted(&object(config)))
}

#[test]
fn secrets_are_hidden_and_references_and_the_rest_are_shown() {
    let config = json!({
        "url": "https://example.com/hook",
        "timeout": 3,
        "headers": {
            "Authorization": "Token abc", "Cookie": "s=1", "X-Api-Key": "k", "X-Auth-Token": "t", "X-Tenant": "blue",
            "X-Secret": "${POSTRIDER_SECRET_A}",
        },
        "auth": {"type": "basic", "username": "u", "password": "p"},
        "signing_secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "${POSTRIDER_SECRET_B}", "file:c"],
        "tls": {"ca": "PEM", "client_cert": "PEM", "client_key": "PEM"},
    });
    let expected = json!({
        "url": "https://example.com/hook",
        "timeout": 3,
        "headers": {
            "Authorization": "***", "Cookie": "***", "X-Api-Key": "***", "X-Auth-Token": "***", "X-Tenant": "blue",
            "X-Secret": "${POSTRIDER_SECRET_A}",
        },
        "auth": {"type": "basic", "username": "u", "password": "***"},
        "signing_secrets": ["***", "${POSTRIDER_SECRET_B}", "file:c"],
        "tls": {"ca": "PEM", "client_cert": "PEM", "client_key": "***"},
    });
    assert_eq!(shown(config), expected);
}

#[test]
fn tokens_are_hidden() {
    let auth = |token: &str| json!({"auth": {"type": "bearer", "token": token}});
    assert_eq!(shown(auth("abc")), auth("***"));
    assert_eq!(shown(auth("file:token")), auth("file:token"));
    assert_eq!(shown(auth("${HOME}")), auth("***"), "not a reference that would be followed");
}

#[test]
fn what_cannot_be_understood_is_hidden() {
    let cases = [
        (json!({"unknown": "secret"}), json!({"unknown": "***"})),
        (json!({"auth": "secret"}), json!({"auth": "***"})),
        (
            json!({"auth": {"type": "oauth2", "client_secret": "x"}}),
            json!({"auth": {"type": "oauth2", "client_secret": "***"}}),
        ),
        (json!({"signing_secrets": "whsec_x"}), json!({"signing_secrets": "***"})),
        (json!({"signing_secrets": [1, {}]}), json!({"signing_secrets": ["***", "***"]})),
        (json!({"headers": "secret"}), json!({"headers": "***"})),
        (json!({"tls": {"key": "secret"}}), json!({"tls": {"key": "***"}})),
        (json!({"url": "https://u:p@x.example/a@b"}), json!({"url": "https://***@x.example/a@b"})),
    ];
    for (config, expected) in cases {
        assert_eq!(shown(config), expected);
    }
}
