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
fn secrets_of_other_kinds_of_auth_and_of_proxies_are_hidden() {
    let oauth2 = |secret: &str| {
        json!({
            "auth": {
                "type": "oauth2", "token_url": "https://x/t", "client_id": "i", "client_secret": secret,
                "scope": "s", "audience": "a", "client_auth": "body",
            },
            "proxy": {"url": "http://p:3128", "username": "u", "password": secret},
        })
    };
    assert_eq!(shown(oauth2("abc")), oauth2("***"));
    assert_eq!(shown(oauth2("file:secret")), oauth2("file:secret"));
    let sigv4 = |secret: &str| {
        json!({"auth": {
            "type": "aws_sigv4", "access_key_id": "AKID", "secret_access_key": secret, "region": "r",
            "service": "s", "session_token": secret,
        }})
    };
    assert_eq!(shown(sigv4("abc")), sigv4("***"));
    assert_eq!(shown(sigv4("${POSTRIDER_SECRET_A}")), sigv4("${POSTRIDER_SECRET_A}"));
}

#[test]
fn what_cannot_be_understood_is_hidden() {
    let cases = [
        (json!({"unknown": "secret"}), json!({"unknown": "***"})),
        (json!({"auth": "secret"}), json!({"auth": "***"})),
        (
            json!({"auth": {"type": "digest", "password": "x"}}),
            json!({"auth": {"type": "digest", "password": "***"}}),
        ),
        (json!({"signing_secrets": "whsec_x"}), json!({"signing_secrets": "***"})),
        (json!({"signing_secrets": [1, {}]}), json!({"signing_secrets": ["***", "***"]})),
        (json!({"headers": "secret"}), json!({"headers": "***"})),
        (json!({"tls": {"key": "secret"}}), json!({"tls": {"key": "***"}})),
        (json!({"proxy": "http://u:p@x"}), json!({"proxy": "***"})),
        (json!({"proxy": {"url": "http://u:p@x"}}), json!({"proxy": {"url": "http://***@x"}})),
        (json!({"url": "https://u:p@x.example/a@b"}), json!({"url": "https://***@x.example/a@b"})),
    ];
    for (config, expected) in cases {
        assert_eq!(shown(config), expected);
    }
}
