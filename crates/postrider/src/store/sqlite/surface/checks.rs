//! What is refused, in the order of [`crate::send::check`]. The words are what the program itself says of an example
//! that breaks the rule; RAISE takes no others than those that are written in the trigger.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::reading::{has_escaped_nul, is_json, is_too_deep};
use crate::error::{Invalid, StoreError};
use crate::event;
use crate::json::{DEPTH_MAX, Json};
use crate::message::PRIORITY_MAX;
use crate::protocol::{Key, Kind, Protocol, Scope, headers};
use crate::send::{self, CONTENT_TYPE_BYTES_MAX};

pub(super) const CONFLICT: &str =
    "23505 idempotency_key: a message of this endpoint has the same key and another payload or content type";
pub(super) const QUEUE_FULL: &str =
    "53400 max_queue_size: the queue is full; try again later or raise max_queue_size";
pub(super) const ENDPOINT_FULL: &str = "53400 options.max_queue_size: the endpoint''s part of the queue is full; try again later or raise its max_queue_size";

/// A digest of more would keep everybody else from writing for seconds.
pub(super) const DIGEST_BYTES_MAX: usize = 64 << 10;
pub(super) const DIGEST_TOO_LONG: &str = "55000 idempotency_key: was used for a message whose payload is not kept; this one is too large to be compared with it in SQL";

const NO_NUL: &str = "must not contain the character U+0000";
/// Letters of tokens, as HTTP has them; for a GLOB between brackets.
const TOKEN: &str = "!#$%&''*+.^_`|~0-9A-Za-z-";

/// One arm of a CASE.
struct Check {
    when: String,
    then: String,
}

impl Check {
    fn new(when: impl Into<String>, then: impl Into<String>) -> Self {
        Self { when: when.into(), then: then.into() }
    }

    fn invalid(field: &str, rule: &str, when: impl Into<String>) -> Self {
        Self::new(when, format!("22023 {field}: {rule}").replace('\'', "''"))
    }

    fn too_large(field: &str, setting: &str, when: impl Into<String>) -> Self {
        Self::new(when, format!("54000 {field}: is more than {setting} allows"))
    }
}

/// Of a message.
pub(super) fn all() -> String {
    let mut checks = vec![
        is_utf8(),
        Check::new("NEW.endpoint_id IS NULL", "42704 endpoint: there is no endpoint of this name"),
    ];
    checks.extend(json_checks(&is_json("NEW.content_type")));
    checks.push(Check::new(
        "NEW.disabled_by = 'operator'",
        "55000 endpoint: is disabled; enable it to send to it",
    ));
    checks.extend(payload_checks());
    checks.push(content_type_check());
    checks.extend(header_checks());
    checks.extend(protocol_header_checks());
    checks.push(kept_header_check());
    for field in ["ordering_key", "idempotency_key", "event_type"] {
        checks.extend(key_checks(field));
    }
    checks.extend(option_checks());
    checks.extend(protocol_option_checks());
    checks.extend(correlation_and_time_checks());
    arms(&checks)
}

/// Of an event: what can be said before it is known who gets it.
pub(super) fn of_events() -> String {
    let mut checks = vec![
        is_utf8(),
        Check::new("NOT NEW.is_known", "42704 event_type: there is no event type of this name"),
    ];
    checks.extend(payload_checks());
    checks.extend(json_checks("1"));
    checks.push(Check::invalid("payload", NO_NUL, has_escaped_nul("CAST(NEW.payload AS TEXT)")));
    checks.extend(header_checks());
    for field in ["ordering_key", "idempotency_key"] {
        checks.extend(key_checks(field));
    }
    let longest = event::longest_key("").len();
    let key = bytes_of("NEW.idempotency_key");
    checks.push(Check::too_large(
        "idempotency_key",
        "max_key_bytes",
        format!("{key} + {longest} > l.max_key_bytes"),
    ));
    checks.extend(option_checks());
    checks.extend(readable_option_checks());
    checks.extend(correlation_and_time_checks());
    arms(&checks)
}

fn arms(checks: &[Check]) -> String {
    let arms = checks.iter().map(|check| {
        let Check { when, then } = check;
        format!("    WHEN {when}\n      THEN RAISE(ABORT, '{then}')")
    });
    arms.collect::<Vec<_>>().join("\n")
}

fn is_utf8() -> Check {
    Check::new("hex('a') <> '61'", "55000 encoding: the file must be in UTF-8")
}

fn payload_checks() -> Vec<Check> {
    let bytes = "length(NEW.payload)";
    vec![
        Check::invalid(
            "priority",
            &format!("must be from 0 to {PRIORITY_MAX}"),
            format!("typeof(NEW.priority) <> 'integer' OR NEW.priority NOT BETWEEN 0 AND {PRIORITY_MAX}"),
        ),
        Check::invalid("payload", "is required", "NEW.payload IS NULL"),
        Check::invalid("payload", "must be text or a blob", "typeof(NEW.payload) <> 'blob'"),
        Check::too_large("payload", "max_payload_bytes", format!("{bytes} > l.max_payload_bytes")),
    ]
}

/// SQLite's JSON ends at U+0000, and knows nothing of encodings.
fn json_checks(when: &str) -> [Check; 3] {
    let text = "CAST(NEW.payload AS TEXT)";
    let check = |rule: &str, broken: &str| {
        Check::invalid("payload", rule, format!("({when}) AND typeof(NEW.payload) = 'blob' AND ({broken})"))
    };
    [
        check("is not JSON", "instr(NEW.payload, x'00') > 0"),
        check(&too_deep(), &is_too_deep(text, "NEW.payload")),
        check("is not JSON", &format!("NOT json_valid({text}) OR ({})", is_not_utf8(text))),
    ]
}

fn too_deep() -> String {
    Json::check_depth(&[b'['; DEPTH_MAX + 1]).expect_err("an example breaks its rule")
}

fn content_type_check() -> Check {
    Check::invalid(
        "content_type",
        &said(send::check_content_type("")),
        format!(
            "typeof(NEW.content_type) <> 'text' OR {} NOT BETWEEN 1 AND {CONTENT_TYPE_BYTES_MAX}
           OR {} OR NEW.content_type GLOB '*[^ -~]*'",
            bytes_of("NEW.content_type"),
            has_nul("NEW.content_type")
        ),
    )
}

fn header_checks() -> Vec<Check> {
    vec![
        Check::invalid("headers", "must be an object of strings", "NEW.headers = 'bad'"),
        Check::invalid("headers", NO_NUL, "NEW.headers = 'nul'"),
        Check::invalid("headers", &too_deep(), "NEW.headers = 'deep'"),
        Check::invalid("headers", &format!("a header {}", headers::TWICE), "NEW.headers = 'twice'"),
        Check::too_large(
            "headers",
            "max_headers_bytes",
            format!(
                "(SELECT sum({} + {}) FROM json_each(NEW.headers)) > l.max_headers_bytes",
                bytes_of("key"),
                bytes_of("value")
            ),
        ),
        Check::invalid("headers", "must be text in UTF-8", is_not_utf8("NEW.headers")),
    ]
}

fn protocol_header_checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for protocol in Protocol::ALL {
        let refuses = |name: &str, value: &str| {
            let headers = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            protocol.check_headers(&headers).err()
        };
        // A protocol takes any header, or has the rules of HTTP.
        if refuses("not a token", "").is_some() {
            checks.extend(http_header_rules().map(|(broken, when)| {
                let any = format!(
                    "NEW.protocol = '{}' AND EXISTS (SELECT 1 FROM json_each(NEW.headers) WHERE {when})",
                    protocol.as_str()
                );
                Check::invalid("headers", &format!("a header {}", broken.rule), any)
            }));
        }
    }
    checks
}

/// What is said of a header, and how SQL finds one like it.
fn http_header_rules() -> impl Iterator<Item = (Invalid, String)> {
    let broken = |name: &str, value: &str| {
        let headers = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        Protocol::Http.check_headers(&headers).expect_err("an example breaks its rule")
    };
    let listed: Vec<String> = headers::OF_THE_CONNECTION.iter().map(|name| format!("'{name}'")).collect();
    let begins = |prefix: &str| format!("lower(key) GLOB '{prefix}*'");
    let ours = headers::OF_POSTRIDER.map(begins).join(" OR ");
    let proxy = begins(headers::OF_THE_PROXY);
    [
        (broken("", ""), format!("key = '' OR {} OR key GLOB '*[^{TOKEN}]*'", has_nul("key"))),
        (
            broken(headers::OF_THE_CONNECTION[0], ""),
            format!("lower(key) IN ({}) OR {proxy}", listed.join(", ")),
        ),
        (broken(headers::OF_POSTRIDER[0], ""), ours),
        (broken("host", ""), "lower(key) = 'host'".to_owned()),
        (broken("x", "\n"), format!("{} OR value GLOB ('*[^ -~' || char(9) || ']*')", has_nul("value"))),
    ]
    .into_iter()
}

fn kept_header_check() -> Check {
    Check::invalid(
        "headers",
        &format!("a header {}", headers::KEPT),
        "EXISTS (SELECT 1 FROM json_each(NEW.headers) WHERE lower(key) IN (SELECT value FROM json_each(NEW.kept_headers)))",
    )
}

fn key_checks(field: &str) -> [Check; 3] {
    let key = format!("NEW.{field}");
    let control = "('*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')";
    [
        Check::invalid(
            field,
            "must be text in UTF-8",
            format!("typeof({key}) NOT IN ('null', 'text') OR ({})", is_not_utf8(&key)),
        ),
        Check::too_large(field, "max_key_bytes", format!("{} > l.max_key_bytes", bytes_of(&key))),
        Check::invalid(
            field,
            &said(send::check_key("idempotency_key", "")),
            format!("{key} = '' OR {} OR {key} GLOB {control}", has_nul(&key)),
        ),
    ]
}

fn option_checks() -> [Check; 3] {
    [
        Check::invalid("options", &too_deep(), "NEW.options = 'deep'"),
        Check::invalid("options", "must be an object", "NEW.options = 'bad'"),
        Check::invalid("options", NO_NUL, "NEW.options = 'nul'"),
    ]
}

/// SQLite takes more for JSON than a node can read. Of messages only known keys with known values are left.
fn readable_option_checks() -> [Check; 2] {
    let any = |when: &str| format!("EXISTS (SELECT 1 FROM json_tree(NEW.options) WHERE {when})");
    let escaped = any(&format!("({}) OR (type = 'text' AND {})", is_not_utf8("key"), is_not_utf8("value")));
    [
        Check::invalid(
            "options",
            "must be text in UTF-8",
            format!("({}) OR {escaped}", is_not_utf8("NEW.options")),
        ),
        Check::invalid(
            "options",
            "has a number that is out of range",
            any("type = 'real' AND abs(value) = 9e999"),
        ),
    ]
}

fn protocol_option_checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for protocol in Protocol::ALL {
        let keys: Vec<&Key> = protocol.keys().filter(|key| key.scope != Scope::Endpoint).collect();
        let any = |when: &str| {
            format!(
                "NEW.protocol = '{}' AND EXISTS (SELECT 1 FROM json_each(NEW.options) WHERE {when})",
                protocol.as_str()
            )
        };
        let known: Vec<String> = keys.iter().map(|key| format!("'{}'", key.name)).collect();
        let broken = said_of_option(protocol, "no such key", Value::Null);
        let unknown = any(&format!("key NOT IN ({})", known.join(", ")));
        checks.push(Check::invalid("options", &format!("a key {}", broken.rule), unknown));
        for key in keys {
            checks.extend(value_rules(key).into_iter().map(|(example, when)| {
                let Invalid { field, rule } = said_of_option(protocol, key.name, example);
                Check::invalid(&field, &rule, any(&format!("key = '{}' AND ({when})", key.name)))
            }));
        }
    }
    checks.push(Check::invalid(
        "options.timeout",
        "must be below stale_recovery_timeout",
        "EXISTS (SELECT 1 FROM json_each(NEW.options) WHERE key = 'timeout' AND value >= l.stale_recovery_timeout)",
    ));
    checks
}

fn said_of_option(protocol: Protocol, key: &str, example: Value) -> Invalid {
    let options = Map::from_iter([(key.to_owned(), example)]);
    protocol.check_message_options(&options).expect_err("an example breaks its rule")
}

/// Examples of what is refused, and how SQL finds others like it in a row of `json_each`.
fn value_rules(key: &Key) -> Vec<(Value, String)> {
    let path = format!("'$.{}'", key.name);
    match &key.kind {
        Kind::Flag => vec![(Value::Null, "type NOT IN ('true', 'false')".to_owned())],
        // Neither 5.0 nor -0 is a whole number here.
        Kind::Whole { min, max } => vec![(
            Value::Null,
            format!(
                "type <> 'integer' OR value NOT BETWEEN {min} AND {max} OR (NEW.options -> {path}) GLOB '*[^0-9]*'"
            ),
        )],
        Kind::Seconds { max } => vec![(
            Value::Null,
            format!("type NOT IN ('integer', 'real') OR value NOT BETWEEN 1e-9 AND {max}"),
        )],
        Kind::Choice(choices) => {
            let choices: Vec<String> = choices.iter().map(|choice| format!("'{choice}'")).collect();
            vec![(Value::Null, format!("type <> 'text' OR value NOT IN ({})", choices.join(", ")))]
        }
        Kind::Text { bytes_max, rule } => {
            let mut rules = vec![
                (Value::Null, "type <> 'text'".to_owned()),
                (json!(""), format!("{} NOT BETWEEN 1 AND {bytes_max}", bytes_of("value"))),
            ];
            rules.extend(text_rules(rule.0));
            rules
        }
        Kind::Codes { .. }
        | Kind::Secret(_)
        | Kind::Secrets { .. }
        | Kind::Headers
        | Kind::Object(_)
        | Kind::Typed(_) => {
            panic!("no message says {:?} for itself, so SQL has no check for it", key.name)
        }
    }
}

fn text_rules(rule: &str) -> Vec<(Value, String)> {
    let rules: &[(&str, &str)] = match rule {
        "method" => &[
            ("a b", "value GLOB '*[^{token}]*' OR {nul}"),
            ("TRACE", "value IN ('CONNECT', 'TRACE')"),
            ("post", "value GLOB '*[a-z]*'"),
        ],
        "url_suffix" => &[
            ("a", "value NOT GLOB '[/?]*' OR value GLOB '//*'"),
            (
                "/..",
                "instr(replace(lower(value), '%2e', '.'), '..') > 0 OR instr(value, '#') > 0 OR instr(value, '\\') > 0",
            ),
            ("/é", "value GLOB '*[^!-~]*' OR {nul}"),
            (
                "/<",
                "substr(value, 1, instr(value || '?', '?') - 1) GLOB '*[<>`]*'
             OR substr(value, instr(value || '?', '?')) GLOB '*[<>\"]*'",
            ),
        ],
        other => panic!("the rule {other:?} has no words in SQL yet"),
    };
    let filled = |when: &str| when.replace("{token}", TOKEN).replace("{nul}", &has_nul("value"));
    rules.iter().map(|(example, when)| (json!(example), filled(when))).collect()
}

fn correlation_and_time_checks() -> Vec<Check> {
    let mut checks = vec![Check::invalid("correlation_id", "must be a UUID", "NEW.correlation_id = 'bad'")];
    for field in ["scheduled_at", "expires_at"] {
        let rule = "must be a time like 2026-11-16T12:00:00Z, or a number of seconds since 1970";
        checks.push(Check::invalid(field, rule, format!("NEW.{field} = 'bad'")));
        let end = send::CALENDAR_END.as_microsecond();
        checks.push(Check::invalid(field, send::OUT_OF_CALENDAR, format!("NEW.{field} >= {end}")));
    }
    let order = "NEW.expires_at <= NEW.scheduled_at";
    checks.push(Check::invalid("expires_at", send::EXPIRES_TOO_EARLY, order));
    checks
}

fn said(refused: Result<(), StoreError>) -> String {
    match refused {
        Err(StoreError::Invalid(invalid)) => invalid.rule,
        other => panic!("an example breaks its rule: {other:?}"),
    }
}

fn bytes_of(text: &str) -> String {
    format!("length(CAST({text} AS BLOB))")
}

/// GLOB and length see nothing of a text behind one.
fn has_nul(text: &str) -> String {
    format!("instr({text}, char(0)) > 0")
}

/// Character by character, but only where there are others than ASCII. The first few of them take those like them along,
/// which is all that most texts have; halves without any are passed over. SQLite itself reads U+FFFE and U+FFFF as broken.
fn is_not_utf8(text: &str) -> String {
    const TAKEN_ALONG: usize = 40;
    const SHORT: usize = 16;
    // What most texts are made of. Those at the beginning are found sooner.
    let common = r#"' etaoinsrhldcumfpgwybvkxjqz0123456789",:.-_/{}[]ETAOINSRHLDCUMFPGWYBVKXJQZ'"#;
    let is_no_ascii = "GLOB ('*[^' || char(1) || '-' || char(127) || ']*')";
    format!(
        "{text} {is_no_ascii} AND EXISTS (
           WITH RECURSIVE rest(piece, round) AS (
             SELECT ltrim(replace(replace({text}, char(65534), ' '), char(65535), ' '), {common}), 1 UNION ALL
             SELECT ltrim(replace(piece, substr(piece, 1, 1), ' '), {common}), round + 1 FROM rest
             WHERE round < {TAKEN_ALONG} AND unicode(piece) > 0
               AND char(unicode(piece)) IS substr(piece, 1, 1)),
           part(piece) AS (
             SELECT piece FROM (SELECT piece FROM rest ORDER BY round DESC LIMIT 1) UNION ALL
             SELECT substr(piece, half * (length(piece) / 2) + 1, length(piece) / 2 + half)
             FROM part, (SELECT 0 AS half UNION ALL SELECT 1)
             WHERE length(piece) > {SHORT} AND piece {is_no_ascii}),
           place(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM place WHERE n < {SHORT})
           SELECT 1 FROM part, place WHERE length(piece) BETWEEN n AND {SHORT} AND piece {is_no_ascii}
             AND char(unicode(substr(piece, n, 1))) IS NOT substr(piece, n, 1))"
    )
}
