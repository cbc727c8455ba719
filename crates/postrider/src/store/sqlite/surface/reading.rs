//! Reads the values that a caller gave. Unreadable ones become `'bad'`, which the checks refuse.

use crate::json::DEPTH_MAX;
use crate::message::JSON;
use crate::protocol::{Protocol, headers};

/// The same moment all through a statement.
pub(super) fn now() -> &'static str {
    "CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000"
}

/// Microseconds of a number of seconds since 1970, or of a text as RFC 3339 has it; without an offset it is UTC.
/// SQLite's own functions would round to milliseconds and turn February 30 into March 2.
pub(super) fn time(given: &str) -> String {
    const DIGITS: &str = "[0-9][0-9]";
    let date = format!("{DIGITS}{DIGITS}-{DIGITS}-{DIGITS}[T ]{DIGITS}:{DIGITS}:{DIGITS}");
    format!(
        "CASE typeof({given}) WHEN 'null' THEN NULL
      WHEN 'integer' THEN CASE WHEN abs({given} / 1000000) < 1000000 THEN {given} * 1000000 ELSE 'bad' END
      WHEN 'real' THEN CASE WHEN abs({given}) < 1e12 THEN CAST(round({given} * 1e6) AS INTEGER) ELSE 'bad' END
      WHEN 'text' THEN (
        SELECT coalesce(CASE WHEN clock GLOB '{date}' AND strftime('%Y-%m-%d %H:%M:%S', clock, '+0 days') = replace(clock, 'T', ' ')
            AND (zone IN ('', 'Z') OR zone GLOB '[+-]{DIGITS}:{DIGITS}') AND fraction IS NOT '.'
          THEN CAST(strftime('%s', clock || zone) AS INTEGER) * 1000000
            + CAST(substr(substr(fraction, 2) || '000000', 1, 6) AS INTEGER) END, 'bad')
        FROM (SELECT clock, zone, substr(rest, 1, length(rest) - length(zone)) AS fraction
              FROM (SELECT substr({given}, 1, 19) AS clock, substr({given}, 20) AS rest,
                      CASE substr({given}, 20, 1) WHEN '.' THEN ltrim(substr({given}, 21), '0123456789')
                                                  ELSE substr({given}, 20) END AS zone)))
      ELSE 'bad' END"
    )
}

/// With hyphens, without them, or in braces.
pub(super) fn correlation_id(given: &str) -> String {
    let [four, eight, twelve, all] = [4, 8, 12, 32].map(|count| "[0-9a-fA-F]".repeat(count));
    let hyphened = format!("{eight}-{four}-{four}-{four}-{twelve}");
    let parts = [(1, 8), (9, 4), (13, 4), (17, 4), (21, 12)]
        .map(|(from, count)| format!("substr({given}, {from}, {count})"))
        .join(" || '-' || ");
    format!(
        "CASE WHEN {given} IS NULL THEN NULL WHEN typeof({given}) <> 'text' THEN 'bad'
      WHEN {given} GLOB '{hyphened}' THEN lower({given})
      WHEN {given} GLOB '{all}' THEN lower({parts})
      WHEN {given} GLOB '{{{hyphened}}}' THEN lower(substr({given}, 2, 36)) ELSE 'bad' END"
    )
}

pub(super) fn is_object(given: &str) -> String {
    format!(
        "CASE WHEN typeof({given}) = 'text' THEN CASE WHEN json_valid({given}) THEN json_type({given}) = 'object' END END"
    )
}

pub(super) fn is_object_of_strings(given: &str) -> String {
    let object = is_object(given);
    format!("CASE WHEN {object} THEN NOT EXISTS (SELECT 1 FROM json_each({given}) WHERE type <> 'text') END")
}

/// Some header is given twice, in whatever case.
pub(super) fn has_names_twice(given: &str) -> String {
    format!("(SELECT count(DISTINCT lower(key)) <> count(*) FROM json_each({given}))")
}

/// Lists and objects within each other, deeper than nodes read them. SQLite does not tell how deep a value is, and cannot read
/// very deep ones at all: those are walked over byte by byte.
pub(super) fn is_too_deep(text: &str, bytes: &str) -> String {
    let byte = format!("substr({bytes}, at, 1)");
    format!(
        "CASE WHEN 2 * length({text}) - length(replace({text}, '[', '')) - length(replace({text}, '{{', '')) <= {DEPTH_MAX} THEN 0
       WHEN json_valid({text}) THEN EXISTS (
         WITH RECURSIVE nested(part, depth) AS (
           SELECT {text}, 1 UNION ALL
           SELECT value, depth + 1 FROM nested, json_each(part) WHERE type IN ('array', 'object') AND depth <= {DEPTH_MAX})
         SELECT 1 FROM nested WHERE depth > {DEPTH_MAX})
       ELSE EXISTS (
         WITH RECURSIVE walk(at, depth, quoted) AS (
           SELECT 1, 0, 0 UNION ALL
           SELECT at + 1 + (quoted AND {byte} = x'5c'),
             depth + CASE WHEN quoted THEN 0 WHEN {byte} IN (x'5b', x'7b') THEN 1 WHEN {byte} IN (x'5d', x'7d') THEN -1 ELSE 0 END,
             quoted <> ({byte} = x'22')
           FROM walk WHERE at <= length({bytes}) AND depth <= {DEPTH_MAX})
         SELECT 1 FROM walk WHERE depth > {DEPTH_MAX}) END"
    )
}

pub(super) fn is_too_deep_text(given: &str) -> String {
    let deep = is_too_deep(given, &format!("CAST({given} AS BLOB)"));
    format!("CASE WHEN typeof({given}) = 'text' THEN {deep} END")
}

/// As [`crate::message::is_json`] has it.
pub(super) fn is_json(content_type: &str) -> String {
    let media = format!("lower(trim(substr({content_type}, 1, instr({content_type} || ';', ';') - 1)))");
    format!("{media} = '{JSON}' OR {media} GLOB '*+json'")
}

/// Names of headers that messages to endpoint `e` may not replace, as [`crate::endpoint::Endpoint`] has it.
pub(super) fn kept_headers() -> String {
    let secret = headers::SECRET_WORDS.map(|word| format!("lower(key) GLOB '*{word}*'")).join(" OR ");
    let listed = "e.options, '$.override_headers'";
    let mut kept = format!(
        "SELECT lower(key) AS name FROM json_each(e.config, '$.headers')
       WHERE CASE WHEN json_type({listed}) IS NULL THEN {secret} OR value GLOB '${{*' OR value GLOB 'file:*'
                  ELSE lower(key) NOT IN (SELECT lower(value) FROM json_each({listed})) END"
    );
    for protocol in Protocol::ALL {
        let name = protocol.as_str();
        for (key, header) in protocol.definition().set_headers() {
            kept += &format!(
                "\n       UNION ALL SELECT '{header}' WHERE e.protocol = '{name}' AND json_type(e.config, '$.{key}') IS NOT NULL"
            );
        }
    }
    kept
}

/// SQLite reads a JSON string up to there and leaves out the rest. Backslashes come in pairs, or before the `u`.
pub(super) fn has_escaped_nul(given: &str) -> String {
    format!("instr(replace({given}, '\\\\', ''), '\\u0000') > 0")
}
