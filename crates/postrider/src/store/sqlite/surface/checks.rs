//! What is refused, in the order of [`crate::send::check`]. The words are those of the program's tables, or
//! what the program says of an example. RAISE takes only words that are written in the trigger.

use super::reading::{has_escaped_nul, is_json, is_too_deep};
use super::rules::{self, quoted};
use crate::error::StoreError;
use crate::event;
use crate::json::{DEPTH_MAX, Json};
use crate::message::PRIORITY_MAX;
use crate::protocol::{Protocol, ProtocolDefinition, headers};
use crate::send::{self, CONTENT_TYPE_BYTES_MAX};

pub(super) const CONFLICT: &str = "23505 idempotency_key: a message of this endpoint has the same key and another payload or content type, or was erased";
pub(super) const QUEUE_FULL: &str =
    "53400 max_queue_size: the queue is full; try again later or raise max_queue_size";
pub(super) const ENDPOINT_FULL: &str = "53400 options.max_queue_size: the endpoint''s part of the queue is full; try again later or raise its max_queue_size";

const NO_NUL: &str = "must not contain the character U+0000";

/// One arm of a CASE: the condition, and what RAISE says.
pub(super) struct Check {
    pub(super) when: String,
    pub(super) then: String,
}

impl Check {
    fn new(when: impl Into<String>, then: impl Into<String>) -> Self {
        Self { when: when.into(), then: then.into() }
    }

    pub(super) fn invalid(field: &str, rule: &str, when: impl Into<String>) -> Self {
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

/// Of an event: checks that do not depend on the endpoints that get it.
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

pub(super) fn arms(checks: &[Check]) -> String {
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
    let protocols = Protocol::ALL.iter().map(|protocol| protocol.definition());
    protocols.flat_map(header_checks_of).collect()
}

pub(super) fn header_checks_of(protocol: &ProtocolDefinition) -> Vec<Check> {
    let only_endpoints = protocol.endpoint_headers.iter();
    let only_endpoints = only_endpoints
        .map(|name| (format!("lower(key) = {}", quoted(name)), headers::ENDPOINT_ONLY.to_owned()));
    let rules = rules::broken(protocol.headers.names, "lower(key)").into_iter().chain(only_endpoints);
    let rules = rules.chain(rules::broken_values(protocol.headers)).map(|(when, says)| {
        let any = format!(
            "NEW.protocol = {} AND EXISTS (SELECT 1 FROM json_each(NEW.headers) WHERE {when})",
            quoted(protocol.name)
        );
        Check::invalid("headers", &format!("a header {says}"), any)
    });
    rules.collect()
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

/// SQLite takes more for JSON than a node can read.
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
    let protocols = Protocol::ALL.iter().map(|protocol| protocol.definition());
    let mut checks: Vec<Check> = protocols.flat_map(super::options::checks_of).collect();
    // Maps of names and texts are headers by another name.
    checks.push(Check::too_large(
        "options",
        "max_headers_bytes",
        format!(
            "(SELECT sum({} + {}) FROM json_each(NEW.options) o,
                json_each(CASE WHEN o.type = 'object' THEN o.value ELSE '{{}}' END) e) > l.max_headers_bytes",
            bytes_of("e.key"),
            bytes_of("e.value")
        ),
    ));
    checks.push(Check::invalid(
        "options.timeout",
        "must be below stale_recovery_timeout",
        "EXISTS (SELECT 1 FROM json_each(NEW.options) WHERE key = 'timeout' AND value >= l.stale_recovery_timeout)",
    ));
    checks.extend(readable_option_checks());
    checks
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

pub(super) fn bytes_of(text: &str) -> String {
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
