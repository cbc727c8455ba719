//! Keys of the http protocol and the rules of their values.

use http::Method;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Map, Value};
use url::Url;

use super::TIMEOUT_SECONDS_MAX;
use super::keys::{Key, Kind, Rule};
use super::signature::SigningKey;
use crate::error::Invalid;

const URL_BYTES_MAX: usize = 2048;
const URL_SUFFIX_BYTES_MAX: usize = 2048;
const PEM_BYTES_MAX: usize = 1 << 20;
/// More would only make the signature header long; a rotation needs two.
const SIGNING_SECRETS_MAX: usize = 10;
const USERNAME_BYTES_MAX: usize = 256;
const CLOUDEVENTS_TYPE_BYTES_MAX: usize = 256;

pub(super) const KEYS: &[Key] = &[
    Key::new("url", Kind::Text { bytes_max: URL_BYTES_MAX, rule: Rule("url", url) }).required(),
    Key::new("method", Kind::Text { bytes_max: 32, rule: Rule("method", method) })
        .default("\"POST\"")
        .per_message(),
    Key::new("headers", Kind::Headers),
    Key::new("timeout", Kind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("10").per_message(),
    Key::new("connect_timeout", Kind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("5"),
    Key::new("auth", Kind::Typed(&[("basic", BASIC), ("bearer", BEARER)])),
    Key::new(
        "signing_secrets",
        Kind::Secrets { min: 1, max: SIGNING_SECRETS_MAX, rule: Rule("signing_secret", signing_secret) },
    ),
    Key::new("cloudevents", Kind::Choice(&["binary", "structured"])),
    Key::new(
        "cloudevents_type",
        Kind::Text { bytes_max: CLOUDEVENTS_TYPE_BYTES_MAX, rule: Rule("no_control", no_control) },
    )
    .default("\"postrider.message\""),
    // What is 2xx is delivered.
    Key::new("retry_status", Kind::Codes { min: 300, max: 599, classes: &["3xx", "4xx", "5xx"] }),
    Key::new("tls", Kind::Object(TLS)),
    Key::new("auto_disable_on_gone", Kind::Flag).default("false"),
    Key::new("max_redirects", Kind::Whole { min: 0, max: 10 }).default("0"),
    Key::new("http2", Kind::Flag),
    Key::new(
        "url_suffix",
        Kind::Text { bytes_max: URL_SUFFIX_BYTES_MAX, rule: Rule("url_suffix", url_suffix) },
    )
    .message_only(),
];

const BASIC: &[Key] = &[
    Key::new("username", Kind::Text { bytes_max: USERNAME_BYTES_MAX, rule: Rule("username", username) })
        .required(),
    Key::new("password", Kind::Secret(Rule("no_control", no_control))).required(),
];

const BEARER: &[Key] = &[Key::new("token", Kind::Secret(Rule("token", token))).required()];

const TLS: &[Key] =
    &[Key::new("ca", Kind::Text { bytes_max: PEM_BYTES_MAX, rule: Rule("certificates", certificates) })];

/// Rules about several keys at once.
pub(super) fn check_together(config: &Map<String, Value>) -> Result<(), Invalid> {
    let headers = config.get("headers").and_then(Value::as_object);
    let has =
        |wanted: &str| headers.is_some_and(|map| map.keys().any(|name| name.eq_ignore_ascii_case(wanted)));
    if config.contains_key("auth") && has("authorization") {
        return Err(Invalid::new("config.headers.authorization", "cannot stand beside config.auth"));
    }
    let structured = config.get("cloudevents").and_then(Value::as_str) == Some("structured");
    if structured && has("content-type") {
        return Err(Invalid::new(
            "config.headers.content-type",
            "cannot stand beside structured cloudevents, which have a content type of their own",
        ));
    }
    if config.contains_key("cloudevents_type") && !config.contains_key("cloudevents") {
        return Err(Invalid::new("config.cloudevents_type", "needs config.cloudevents"));
    }
    Ok(())
}

fn url(text: &str) -> Result<(), String> {
    // The parser drops or replaces these silently; what is stored should be what is used.
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err("must not contain spaces, control characters or backslashes".to_owned());
    }
    let url = Url::parse(text).map_err(|error| format!("is not a valid URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a user name or password; use config.auth".to_owned());
    }
    if url.fragment().is_some() {
        return Err("must not contain a fragment (#)".to_owned());
    }
    if !url.has_host() || url.port() == Some(0) {
        return Err("must have a host, and a port other than 0 if it has one".to_owned());
    }
    request_target(&url[url::Position::BeforePath..])
}

fn method(text: &str) -> Result<(), String> {
    match Method::from_bytes(text.as_bytes()) {
        Ok(Method::CONNECT | Method::TRACE) => Err("must not be CONNECT or TRACE".to_owned()),
        // Methods are case-sensitive, and nobody means the method "post".
        Ok(method) if method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) => {
            Err("must be in capitals".to_owned())
        }
        Ok(_) => Ok(()),
        Err(_) => Err("is not a valid HTTP method".to_owned()),
    }
}

fn url_suffix(text: &str) -> Result<(), String> {
    if !text.starts_with(['/', '?']) || text.starts_with("//") {
        return Err("must start with one '/' or with '?'".to_owned());
    }
    // Receivers decode dots before they walk a path.
    if text.to_ascii_lowercase().replace("%2e", ".").contains("..") || text.contains(['#', '\\']) {
        return Err("must not contain '..', '#' or a backslash".to_owned());
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
        return Err("must be visible ASCII characters; percent-encode the others".to_owned());
    }
    match text.starts_with('?') {
        true => request_target(&format!("/{text}")),
        false => request_target(text),
    }
}

fn request_target(text: &str) -> Result<(), String> {
    match text.parse::<http::uri::PathAndQuery>() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("has a path or query that cannot be sent: {error}")),
    }
}

fn signing_secret(text: &str) -> Result<(), String> {
    SigningKey::parse(text).map(drop).map_err(|error| error.to_string())
}

fn username(text: &str) -> Result<(), String> {
    match text.contains(':') || text.chars().any(char::is_control) {
        true => Err("must not contain ':' or control characters".to_owned()),
        false => Ok(()),
    }
}

fn no_control(text: &str) -> Result<(), String> {
    match text.chars().any(char::is_control) {
        true => Err("must not contain control characters".to_owned()),
        false => Ok(()),
    }
}

fn token(text: &str) -> Result<(), String> {
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    match visible && !text.is_empty() {
        true => Ok(()),
        false => Err("must be visible ASCII characters without spaces".to_owned()),
    }
}

/// Shown to whoever may look at endpoints, so a key that stands beside its certificate must not get in.
fn certificates(text: &str) -> Result<(), String> {
    if text.contains("PRIVATE KEY-----") {
        return Err("must hold certificates only, and no private key".to_owned());
    }
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        certificate.map_err(|_| "is not valid PEM")?;
        count += 1;
    }
    match count {
        0 => Err("must be PEM text with at least one certificate".to_owned()),
        _ => Ok(()),
    }
}
