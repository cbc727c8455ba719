//! What an endpoint's config, a message's options and its headers may say.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::protocol::{EndpointConfig, MessageOptions, Protocol, SetBy, ValueKind};
use serde_json::{Value, json};

use super::support::{endpoint, object};

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const NO_AUTH_TYPE: &str = "config.auth.type: must be \"basic\" or \"bearer\" or \"oauth2\" or \"aws_sigv4\"";

/// In form only.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

/// An http config with this key besides the URL.
fn with(key: &str, value: Value) -> Value {
    json!({"url": "https://example.com/hook", key: value})
}

fn url(text: &str) -> Value {
    json!({"url": text})
}

fn oauth2(more: Value) -> Value {
    let auth = json!({"type": "oauth2", "token_url": "https://x/t", "client_id": "i", "client_secret": "s"});
    merged(auth, more)
}

fn sigv4(more: Value) -> Value {
    let auth = json!({"type": "aws_sigv4", "access_key_id": "AKID", "secret_access_key": "s"});
    merged(merged(auth, json!({"region": "eu-central-1", "service": "sqs"})), more)
}

/// Null takes a key away.
fn merged(base: Value, more: Value) -> Value {
    let mut base = object(base);
    base.extend(object(more));
    base.retain(|_, value| !value.is_null());
    Value::Object(base)
}

fn checked(protocol: Protocol, config: Value) -> Result<(), String> {
    protocol.check_config(&object(config)).map_err(|invalid| invalid.to_string())
}

#[test]
fn good_http_configs_are_accepted() {
    let good = [
        url("http://example.com"),
        url("https://example.com:8443/a/b?c=d"),
        url("http://[2001:db8::1]:8080/"),
        url("http://127.0.0.1/"),
        url("https://münchen.example/ü?q=ü"),
        with("method", json!("PUT")),
        with("headers", json!({})),
        with("headers", json!({"X-Tenant": "a b\tc", "Host": "other.example:81", "Content-Type": "text/x"})),
        with("headers", json!({"Authorization": "${POSTRIDER_SECRET_KEY}", "X-Key": "file:keys/one"})),
        with("timeout", json!(0.25)),
        with("timeout", json!(3600)),
        with("connect_timeout", json!(1)),
        with("auth", json!({"type": "basic", "username": "u", "password": ""})),
        with("auth", json!({"type": "basic", "username": "u", "password": "file:password"})),
        with("auth", json!({"type": "bearer", "token": "abc.def-_~+/="})),
        with("auth", json!({"type": "bearer", "token": "${POSTRIDER_SECRET_TOKEN}"})),
        with("auth", oauth2(json!({}))),
        with("auth", oauth2(json!({"scope": "a b:c", "audience": "https://x/", "client_auth": "body"}))),
        with("auth", oauth2(json!({"client_secret": "file:secret", "token_url": "http://x/t?a=b"}))),
        with("auth", sigv4(json!({}))),
        with("auth", sigv4(json!({"session_token": "${POSTRIDER_SECRET_SESSION}"}))),
        with("proxy", json!({"url": "http://proxy.example:3128"})),
        with("proxy", json!({"url": "https://proxy.example/", "username": "u", "password": "file:p"})),
        with("signing_secrets", json!([WHSEC, "${POSTRIDER_SECRET_OLD}", "file:new"])),
        with("signing_secrets", json!(["whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="])),
        with("cloudevents", json!("binary")),
        with("cloudevents", json!("structured")),
        json!({"url": "https://example.com/", "cloudevents": "binary", "cloudevents_type": "shop.order"}),
        with("retry_status", json!([404, "4xx"])),
        with("retry_status", json!([])),
        with("tls", json!({})),
        with("tls", json!({"client_cert": CERTIFICATE, "client_key": "file:key"})),
        with("auto_disable_on_gone", json!(true)),
        with("max_redirects", json!(10)),
        with("http2", json!(false)),
    ];
    for config in good {
        assert_eq!(checked(Protocol::Http, config.clone()), Ok(()), "{config}");
    }
}

#[test]
fn bad_http_configs_name_the_field_and_the_rule() {
    let bad = [
        (json!({}), "config.url: is required"),
        (url(""), "config.url: must have 1 to 2048 bytes"),
        (url(&format!("http://x/{}", "a".repeat(2048))), "config.url: must have 1 to 2048 bytes"),
        (json!({"url": 1}), "config.url: must be a string"),
        (json!({"url": null}), "config.url: must be a string"),
        (url("example.com"), "config.url: must begin with http:// or https://"),
        (url("http:example.com"), "config.url: must begin with http:// or https://"),
        (url("http:///u:p@x/"), "config.url: is not a valid URL: empty host"),
        (url("ftp://example.com/"), "config.url: must begin with http:// or https://"),
        (url("file:///etc/passwd"), "config.url: must begin with http:// or https://"),
        (url("gopher://x/"), "config.url: must begin with http:// or https://"),
        (url("http://"), "config.url: is not a valid URL: empty host"),
        (
            url("http://u:p@example.com/"),
            "config.url: must not contain a user name or password; use config.auth",
        ),
        (
            url("http://u@example.com/"),
            "config.url: must not contain a user name or password; use config.auth",
        ),
        (url("http://a b/"), "config.url: must not contain spaces, control characters or backslashes"),
        (url("http://x/\n"), "config.url: must not contain spaces, control characters or backslashes"),
        (url("http://x\\@y/"), "config.url: must not contain spaces, control characters or backslashes"),
        (url("http://x/#f"), "config.url: must not contain a fragment (#)"),
        (url("http://x:0/"), "config.url: must have a host, and a port other than 0 if it has one"),
        (url("http://x:70000/"), "config.url: is not a valid URL: invalid port number"),
        (url("http://1.2.3.4.5/"), "config.url: is not a valid URL: invalid IPv4 address"),
        (with("method", json!("CONNECT")), "config.method: must not be CONNECT or TRACE"),
        (with("method", json!("TRACE")), "config.method: must not be CONNECT or TRACE"),
        (with("method", json!("post")), "config.method: must be in capitals"),
        (with("method", json!("PO ST")), "config.method: is not a valid HTTP method"),
        (with("headers", json!([])), "config.headers: must be an object"),
        (with("headers", json!({"X": 1})), "config.headers.X: must be a string"),
        (with("headers", json!({"X Y": "1"})), "config.headers.X Y: is not a valid header name"),
        (
            with("headers", json!({"X": "a\r\nY: b"})),
            "config.headers.X: must be visible ASCII characters, spaces and tabs",
        ),
        (
            with("headers", json!({"X": "é"})),
            "config.headers.X: must be visible ASCII characters, spaces and tabs",
        ),
        (
            with("headers", json!({"Host": ""})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"Host": "a/b"})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"Host": "u@b"})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"Host": "[]"})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"Host": "[::1]80"})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"Host": ":80"})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"Host": "a:b"})),
            "config.headers.Host: must be a host name with an optional port",
        ),
        (
            with("headers", json!({"X": "1", "x": "2"})),
            "config.headers.x: is given twice; names of headers ignore case",
        ),
        (
            with("headers", json!({"X": "${HOME}"})),
            "config.headers.X: refers to a variable that is not allowed; names begin with POSTRIDER_SECRET_ and have letters, digits and '_'",
        ),
        (with("timeout", json!(0)), "config.timeout: must be a number of seconds above 0 and up to 3600"),
        (with("timeout", json!(-1)), "config.timeout: must be a number of seconds above 0 and up to 3600"),
        (
            with("timeout", json!(3600.5)),
            "config.timeout: must be a number of seconds above 0 and up to 3600",
        ),
        (with("timeout", json!("10")), "config.timeout: must be a number of seconds above 0 and up to 3600"),
        (with("timeout", json!(1e300)), "config.timeout: must be a number of seconds above 0 and up to 3600"),
        (
            with("connect_timeout", json!(0)),
            "config.connect_timeout: must be a number of seconds above 0 and up to 3600",
        ),
        (with("auth", json!("basic")), "config.auth: must be an object"),
        (with("auth", json!({})), NO_AUTH_TYPE),
        (with("auth", json!({"type": "digest"})), NO_AUTH_TYPE),
        (with("auth", json!({"type": "oauth2"})), "config.auth.token_url: is required"),
        (with("auth", oauth2(json!({"client_id": null}))), "config.auth.client_id: is required"),
        (with("auth", oauth2(json!({"client_secret": null}))), "config.auth.client_secret: is required"),
        (
            with("auth", oauth2(json!({"token_url": "https://u:p@x/t"}))),
            "config.auth.token_url: must not contain a user name or password; use client_id and client_secret",
        ),
        (
            with("auth", oauth2(json!({"token_url": "ftp://x/t"}))),
            "config.auth.token_url: must begin with http:// or https://",
        ),
        (
            with("auth", oauth2(json!({"scope": "a\"b"}))),
            "config.auth.scope: must be visible ASCII characters and spaces, without quotes and backslashes",
        ),
        (
            with("auth", oauth2(json!({"client_auth": "header"}))),
            "config.auth.client_auth: must be \"basic\" or \"body\"",
        ),
        (
            with("auth", oauth2(json!({"token": "t"}))),
            "config.auth.token: unknown field; expected one of: type, token_url, client_id, client_secret, scope, audience, client_auth",
        ),
        (with("auth", sigv4(json!({"region": null}))), "config.auth.region: is required"),
        (with("auth", sigv4(json!({"service": null}))), "config.auth.service: is required"),
        (
            with("auth", sigv4(json!({"region": "a/b"}))),
            "config.auth.region: must be letters, digits, '-', '_' and '.'",
        ),
        (
            with("auth", sigv4(json!({"secret_access_key": "a b"}))),
            "config.auth.secret_access_key: must be visible ASCII characters without spaces",
        ),
        (with("auth", json!({"type": "bearer"})), "config.auth.token: is required"),
        (
            with("auth", json!({"type": "bearer", "token": ""})),
            "config.auth.token: must be visible ASCII characters without spaces",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "a b"})),
            "config.auth.token: must be visible ASCII characters without spaces",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "t", "x": 1})),
            "config.auth.x: unknown field; expected one of: type, token",
        ),
        (with("auth", json!({"type": "basic", "password": "p"})), "config.auth.username: is required"),
        (with("auth", json!({"type": "basic", "username": "u"})), "config.auth.password: is required"),
        (
            with("auth", json!({"type": "basic", "username": "u:v", "password": "p"})),
            "config.auth.username: must not contain ':' or control characters",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "${PATH}"})),
            "config.auth.token: refers to a variable that is not allowed; names begin with POSTRIDER_SECRET_ and have letters, digits and '_'",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "${POSTRIDER_SECRET_}"})),
            "config.auth.token: refers to a variable that is not allowed; names begin with POSTRIDER_SECRET_ and have letters, digits and '_'",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "${POSTRIDER_SECRET_X"})),
            "config.auth.token: begins like a reference ${NAME} but does not end with }",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "file:../x"})),
            "config.auth.token: refers to a file that is not below the directory of secrets",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "file:/etc/passwd"})),
            "config.auth.token: refers to a file that is not below the directory of secrets",
        ),
        (
            with("auth", json!({"type": "bearer", "token": "file:"})),
            "config.auth.token: refers to a file that is not below the directory of secrets",
        ),
        (with("signing_secrets", json!([])), "config.signing_secrets: must be a list of 1 to 10 strings"),
        (
            with("signing_secrets", json!(vec![WHSEC; 11])),
            "config.signing_secrets: must be a list of 1 to 10 strings",
        ),
        (with("signing_secrets", json!(WHSEC)), "config.signing_secrets: must be a list of 1 to 10 strings"),
        (with("signing_secrets", json!([WHSEC, 1])), "config.signing_secrets[1]: must be a string"),
        (
            with("signing_secrets", json!(["abc"])),
            "config.signing_secrets[0]: must begin with whsec_ or whsk_, or be a reference to such a secret",
        ),
        (
            with("signing_secrets", json!(["whsec_!"])),
            "config.signing_secrets[0]: must be base64 after its prefix",
        ),
        (
            with("signing_secrets", json!(["whsec_c2hvcnQ="])),
            "config.signing_secrets[0]: must be 24 to 64 bytes long after whsec_, once decoded",
        ),
        (
            with("signing_secrets", json!(["whsk_c2hvcnQ="])),
            "config.signing_secrets[0]: must be a seed of 32 bytes after whsk_, or seed and public key together, once decoded",
        ),
        (with("cloudevents", json!("batch")), "config.cloudevents: must be \"binary\" or \"structured\""),
        (with("cloudevents", json!(true)), "config.cloudevents: must be \"binary\" or \"structured\""),
        (
            with("tls", json!({"ca": "nonsense"})),
            "config.tls.ca: must be PEM text with at least one certificate",
        ),
        (
            with("tls", json!({"ca": "-----BEGIN PRIVATE KEY-----\naHVzaA==\n-----END PRIVATE KEY-----\n"})),
            "config.tls.ca: must hold certificates only, and no private key",
        ),
        (
            with("tls", json!({"cert": "x"})),
            "config.tls.cert: unknown field; expected one of: ca, client_cert, client_key",
        ),
        (
            with("tls", json!({"ca": "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"})),
            "config.tls.ca: is not valid PEM",
        ),
        (
            with("tls", json!({"client_cert": CERTIFICATE})),
            "config.tls.client_cert: needs config.tls.client_key",
        ),
        (
            with("tls", json!({"client_key": "file:key"})),
            "config.tls.client_key: needs config.tls.client_cert",
        ),
        (
            with("tls", json!({"client_cert": CERTIFICATE, "client_key": "nonsense"})),
            "config.tls.client_key: must be PEM text with a private key, or a reference to such a secret",
        ),
        (
            with("tls", json!({"client_cert": CERTIFICATE, "client_key": "-----BEGIN PRIVATE KEY-----"})),
            "config.tls.client_key: must be PEM text with a private key, or a reference to such a secret",
        ),
        (with("auto_disable_on_gone", json!(1)), "config.auto_disable_on_gone: must be true or false"),
        (with("max_redirects", json!(11)), "config.max_redirects: must be a whole number from 0 to 10"),
        (with("max_redirects", json!(1.5)), "config.max_redirects: must be a whole number from 0 to 10"),
        (with("http2", json!("yes")), "config.http2: must be true or false"),
        (
            with("url_suffix", json!("/x")),
            "config.url_suffix: unknown field; expected one of: url, method, headers, timeout, connect_timeout, auth, signing_secrets, cloudevents, cloudevents_type, retry_status, tls, proxy, auto_disable_on_gone, max_redirects, http2",
        ),
        (with("proxy", json!("http://p")), "config.proxy: must be an object"),
        (with("proxy", json!({})), "config.proxy.url: is required"),
        (
            with("proxy", json!({"url": "socks5://p"})),
            "config.proxy.url: must begin with http:// or https://",
        ),
        (
            with("proxy", json!({"url": "http://u:p@p/"})),
            "config.proxy.url: must not contain a user name or password; use config.proxy.username and config.proxy.password",
        ),
        (with("proxy", json!({"url": "http://p/path"})), "config.proxy.url: must not have a path or query"),
        (with("proxy", json!({"url": "http://p/?a"})), "config.proxy.url: must not have a path or query"),
        (
            with("proxy", json!({"url": "http://p", "username": "u"})),
            "config.proxy.username: needs config.proxy.password",
        ),
        (
            with("proxy", json!({"url": "http://p", "password": "p"})),
            "config.proxy.password: needs config.proxy.username",
        ),
        (
            with("proxy", json!({"url": "http://p", "port": 3128})),
            "config.proxy.port: unknown field; expected one of: url, username, password",
        ),
    ];
    for (config, expected) in bad {
        assert_eq!(checked(Protocol::Http, config.clone()), Err(expected.to_owned()), "{config}");
    }
}

#[test]
fn headers_that_others_rely_on_cannot_be_set_by_endpoint_or_message() {
    let names = [
        "Connection",
        "Content-Length",
        "Transfer-Encoding",
        "TE",
        "Trailer",
        "Upgrade",
        "Keep-Alive",
        "Expect",
        "Proxy-Connection",
        "Proxy-Authorization",
        "webhook-id",
        "Webhook-Signature",
        "webhook-anything",
        "Postrider-Attempt",
        "postrider-x",
        "ce-id",
        "CE-Source",
        "",
        "a:b",
    ];
    for name in names {
        let config = object(with("headers", json!({name: "x"})));
        let invalid = Protocol::Http.check_config(&config).unwrap_err();
        assert_eq!(invalid.field, format!("config.headers.{name}"));
        let headers = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        let invalid = Protocol::Http.check_headers(&headers).unwrap_err();
        assert_eq!(invalid.field, format!("headers.{name}"));
    }
}

#[test]
fn message_headers_are_checked_for_http_and_free_for_files() {
    let headers = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    assert_eq!(Protocol::Http.check_headers(&headers("X-Any", "value")), Ok(()));
    assert_eq!(Protocol::Http.check_headers(&headers("Authorization", "${HOME}")), Ok(()), "a literal here");
    let invalid = Protocol::Http.check_headers(&headers("X-Any", "a\nb")).unwrap_err();
    assert_eq!(invalid.to_string(), "headers.X-Any: must be visible ASCII characters, spaces and tabs");
    let twice = BTreeMap::from([("A".to_owned(), String::new()), ("a".to_owned(), String::new())]);
    assert_eq!(Protocol::Http.check_headers(&twice).unwrap_err().field, "headers.a");
    assert_eq!(Protocol::File.check_headers(&headers("any thing", "a\nb")), Ok(()));
    assert_eq!(Protocol::File.check_headers(&twice).unwrap_err().field, "headers.a");
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    let auth = json!({"type": "bearer", "token": "t"});
    let config = json!({"url": "http://x/", "auth": auth, "headers": {"AUTHORIZATION": "x"}});
    assert_eq!(
        checked(Protocol::Http, config),
        Err("config.headers.authorization: cannot stand beside config.auth".to_owned())
    );
    let config = json!({"url": "http://x/", "cloudevents": "structured", "headers": {"Content-Type": "x"}});
    assert!(checked(Protocol::Http, config).unwrap_err().starts_with("config.headers.content-type: "));
}

#[test]
fn file_configs_stay_below_the_root() {
    let rule =
        "config.path: must be a path of a file relative to the node's --file-root, without '.' or '..'";
    let cases = [
        (json!({"path": "a.jsonl"}), None),
        (json!({"path": "a/b/c.jsonl", "rotate_size": 1024, "timeout": 2.5}), None),
        (json!({"path": "a..b"}), None),
        (json!({}), Some("config.path: is required")),
        (json!({"path": ""}), Some("config.path: must have 1 to 1024 bytes")),
        (json!({"path": "/etc/passwd"}), Some(rule)),
        (json!({"path": "../x"}), Some(rule)),
        (json!({"path": "a/../../x"}), Some(rule)),
        (json!({"path": "a/"}), Some(rule)),
        (json!({"path": "."}), Some(rule)),
        (json!({"path": "a\0b"}), Some(rule)),
        (
            json!({"path": "a", "rotate_size": 1023}),
            Some("config.rotate_size: must be a whole number from 1024 to 1099511627776"),
        ),
        (
            json!({"path": "a", "url": "x"}),
            Some("config.url: unknown field; expected one of: path, rotate_size, timeout"),
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(checked(Protocol::File, config.clone()).err().as_deref(), expected, "{config}");
    }
}

#[test]
fn message_options_are_checked_against_the_protocol() {
    let suffix = |text: &str| json!({"url_suffix": text});
    let start = "options.url_suffix: must start with one '/' or with '?'";
    let dots = "options.url_suffix: must not contain '..', '#' or a backslash";
    let cases = [
        (Protocol::Http, json!({}), None),
        (
            Protocol::Http,
            json!({"max_attempts": 0, "timeout": 3, "method": "PATCH", "url_suffix": "/a?b=c"}),
            None,
        ),
        (Protocol::Http, suffix("?a=b"), None),
        (Protocol::Http, suffix("/a.b/%20"), None),
        (Protocol::File, json!({"max_attempts": 1001}), None),
        (
            Protocol::File,
            json!({"max_attempts": 1002}),
            Some("options.max_attempts: must be a whole number from 0 to 1001"),
        ),
        (
            Protocol::File,
            json!({"timeout": 1}),
            Some("options.timeout: unknown field; expected one of: max_attempts"),
        ),
        (
            Protocol::Kafka,
            json!({"timeout": 1}),
            Some("options.timeout: unknown field; expected one of: topic, key, partition, max_attempts"),
        ),
        (
            Protocol::Http,
            json!({"timeout": 3601}),
            Some("options.timeout: must be a number of seconds above 0 and up to 3600"),
        ),
        (Protocol::Http, json!({"method": "TRACE"}), Some("options.method: must not be CONNECT or TRACE")),
        (
            Protocol::Http,
            json!({"url": "http://x"}),
            Some("options.url: unknown field; expected one of: method, timeout, url_suffix, max_attempts"),
        ),
        (
            Protocol::Http,
            json!({"headers": {}}),
            Some(
                "options.headers: unknown field; expected one of: method, timeout, url_suffix, max_attempts",
            ),
        ),
        (Protocol::Http, suffix("a"), Some(start)),
        (Protocol::Http, suffix("@evil.example/"), Some(start)),
        (Protocol::Http, suffix(".evil.example/"), Some(start)),
        (Protocol::Http, suffix(":81/"), Some(start)),
        (Protocol::Http, suffix("//evil.example/"), Some(start)),
        (Protocol::Http, suffix("/../admin"), Some(dots)),
        (Protocol::Http, suffix("/%2e%2E/admin"), Some(dots)),
        (Protocol::Http, suffix("/.%2e/admin"), Some(dots)),
        (Protocol::Http, suffix("/a#b"), Some(dots)),
        (Protocol::Http, suffix("/a\\b"), Some(dots)),
        (
            Protocol::Http,
            suffix("/a b"),
            Some("options.url_suffix: must be visible ASCII characters; percent-encode the others"),
        ),
        (
            Protocol::Http,
            suffix("/ü"),
            Some("options.url_suffix: must be visible ASCII characters; percent-encode the others"),
        ),
        (
            Protocol::Http,
            suffix("/a\r\nX: y"),
            Some("options.url_suffix: must be visible ASCII characters; percent-encode the others"),
        ),
        (
            Protocol::Http,
            suffix(&format!("/{}", "a".repeat(2048))),
            Some("options.url_suffix: must have 1 to 2048 bytes"),
        ),
    ];
    for (protocol, options, expected) in cases {
        let result = protocol.check_message_options(&object(options.clone()));
        assert_eq!(result.map_err(|invalid| invalid.to_string()).err().as_deref(), expected, "{options}");
    }
}

#[test]
fn a_message_may_have_a_timeout_of_its_own() {
    let config = with("timeout", json!(2.5));
    let timeout = |config: Value, options: Value| endpoint("http", config).attempt_timeout(&object(options));
    assert_eq!(timeout(url("http://x/"), json!({})), Duration::from_secs(10));
    assert_eq!(timeout(config.clone(), json!({})), Duration::from_millis(2500));
    assert_eq!(timeout(config, json!({"timeout": 0.5})), Duration::from_millis(500));
    for broken in [json!({}), with("timeout", json!(-1))] {
        assert_eq!(timeout(broken, json!({})), Duration::from_secs(10), "never a panic");
    }
}

#[test]
fn a_gone_receiver_disables_its_endpoint_only_when_asked() {
    let disables = |config: Value| EndpointConfig::new(Protocol::Http, object(config)).auto_disable_on_gone();
    assert!(!disables(url("http://x/")));
    assert!(!disables(json!({})));
    assert!(disables(with("auto_disable_on_gone", json!(true))));
}

#[test]
fn a_message_limits_its_own_attempts() {
    assert_eq!(MessageOptions::of(&object(json!({"max_attempts": 3}))).max_attempts, Some(3));
    assert_eq!(MessageOptions::of(&object(json!({}))).max_attempts, None);
}

#[test]
fn every_default_in_the_table_passes_its_own_check() {
    for protocol in Protocol::ALL {
        for key in protocol.keys().filter(|key| key.set_by != SetBy::Message) {
            let Some(default) = key.default else { continue };
            let mut config = object(match protocol {
                Protocol::Http => json!({"url": "http://x/", "cloudevents": "binary"}),
                Protocol::File => json!({"path": "x"}),
                Protocol::Mqtt => json!({"broker": "x", "topic": "x", "cloudevents": "binary"}),
                Protocol::Redis => json!({"host": "x", "stream_key": "x"}),
                Protocol::Nats => json!({"url": "nats://x", "subject": "x", "cloudevents": "binary"}),
                Protocol::Amqp => {
                    json!({"host": "x", "exchange": "", "routing_key": "x", "cloudevents": "binary"})
                }
                Protocol::Kafka => json!({"brokers": "x:9092", "topic": "x", "cloudevents": "binary"}),
            });
            config.insert(key.name.to_owned(), serde_json::from_str(default).unwrap());
            assert_eq!(protocol.check_config(&config), Ok(()), "{}", key.name);
        }
    }
}

#[test]
fn a_required_key_has_no_default() {
    for key in Protocol::ALL.iter().flat_map(|protocol| protocol.keys()) {
        assert!(!key.required || key.default.is_none(), "{}", key.name);
        assert_eq!(key.is_secret(), matches!(key.kind, ValueKind::Secret(_) | ValueKind::Secrets { .. }));
    }
}
