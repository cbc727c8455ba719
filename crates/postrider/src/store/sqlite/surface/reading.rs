//! How what was given is read. What cannot be read is `'bad'`, and refused by the checks.

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

/// SQLite reads a JSON string up to there and leaves out the rest. Backslashes come in pairs, or before the `u`.
pub(super) fn has_escaped_nul(given: &str) -> String {
    format!("instr(replace({given}, '\\\\', ''), '\\u0000') > 0")
}
