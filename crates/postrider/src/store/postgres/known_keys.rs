//! The program's table of config keys as rows of `postrider._known_keys`, by which SQL checks endpoints and
//! options in the same words. `sql/protocol.sql` says what the columns mean.

use postgres_types::Json;
use serde_json::Value;
use tokio_postgres::Transaction;

use super::errors::store_error;
use crate::protocol::{Key, Kind, Protocol, Scope};
use crate::store::Result;

const INSERT: &str =
    "INSERT INTO postrider._known_keys (protocol, path, position, name, kind, scope, required,
    default_value, min, max, choices, rule)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::bigint, $10::bigint, $11, $12)";

#[derive(Debug)]
struct KnownKey {
    protocol: &'static str,
    path: String,
    position: i32,
    key: &'static Key,
}

/// What a kind says beyond its name.
#[derive(Default)]
struct Details {
    min: Option<i64>,
    max: Option<i64>,
    choices: Option<Vec<&'static str>>,
    rule: Option<&'static str>,
}

pub(super) async fn fill(transaction: &Transaction<'_>) -> Result<()> {
    transaction.batch_execute("DELETE FROM postrider._known_keys").await.map_err(store_error)?;
    let insert = transaction.prepare(INSERT).await.map_err(store_error)?;
    for known in all() {
        let KnownKey { protocol, path, position, key } = known;
        let default: Option<Json<Value>> =
            key.default.map(|json| Json(serde_json::from_str(json).expect("a default is JSON")));
        let Details { min, max, choices, rule } = details(&key.kind);
        transaction
            .execute(
                &insert,
                &[
                    &protocol,
                    &path,
                    &position,
                    &key.name,
                    &kind_name(&key.kind),
                    &scope_name(key.scope),
                    &key.required,
                    &default,
                    &min,
                    &max,
                    &choices,
                    &rule,
                ],
            )
            .await
            .map_err(store_error)?;
    }
    Ok(())
}

/// Everything that the rows depend on, as text.
pub(super) fn recipe() -> String {
    format!("{:?}", all())
}

fn all() -> Vec<KnownKey> {
    let mut rows = Vec::new();
    for protocol in Protocol::ALL {
        let keys: Vec<&'static Key> = protocol.keys().collect();
        add(&mut rows, protocol.as_str(), "", &keys);
    }
    rows
}

fn add(rows: &mut Vec<KnownKey>, protocol: &'static str, path: &str, keys: &[&'static Key]) {
    for (at, key) in keys.iter().enumerate() {
        rows.push(KnownKey { protocol, path: path.to_owned(), position: at as i32 + 1, key });
        let below = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        match &key.kind {
            Kind::Object(keys) => add(rows, protocol, &below, &keys.iter().collect::<Vec<_>>()),
            Kind::Typed(variants) => {
                for (variant, keys) in *variants {
                    add(rows, protocol, &format!("{below}:{variant}"), &keys.iter().collect::<Vec<_>>());
                }
            }
            _ => {}
        }
    }
}

fn details(kind: &Kind) -> Details {
    let nothing = Details::default();
    match kind {
        Kind::Flag | Kind::Headers | Kind::Object(_) => nothing,
        Kind::Whole { min, max } => Details { min: Some(*min as i64), max: Some(*max as i64), ..nothing },
        Kind::Seconds { max } => Details { max: Some(i64::from(*max)), ..nothing },
        Kind::Choice(choices) => Details { choices: Some(choices.to_vec()), ..nothing },
        Kind::Text { bytes_max, rule } => {
            Details { max: Some(*bytes_max as i64), rule: Some(rule.0), ..nothing }
        }
        Kind::Codes { min, max, classes } => Details {
            min: Some(*min as i64),
            max: Some(*max as i64),
            choices: Some(classes.to_vec()),
            ..nothing
        },
        Kind::Secret(rule) => Details { rule: Some(rule.0), ..nothing },
        Kind::Secrets { min, max, rule } => {
            Details { min: Some(*min as i64), max: Some(*max as i64), rule: Some(rule.0), ..nothing }
        }
        Kind::Typed(variants) => {
            Details { choices: Some(variants.iter().map(|(name, _)| *name).collect()), ..nothing }
        }
    }
}

fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Flag => "flag",
        Kind::Whole { .. } => "whole",
        Kind::Seconds { .. } => "seconds",
        Kind::Choice(_) => "choice",
        Kind::Text { .. } => "text",
        Kind::Codes { .. } => "codes",
        Kind::Secret(_) => "secret",
        Kind::Secrets { .. } => "secrets",
        Kind::Headers => "headers",
        Kind::Object(_) => "object",
        Kind::Typed(_) => "typed",
    }
}

fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Endpoint => "endpoint",
        Scope::Both => "both",
        Scope::Message => "message",
    }
}

#[cfg(test)]
mod tests {
    use crate::json::DEPTH_MAX;
    use crate::protocol::headers::{OF_POSTRIDER, OF_THE_CONNECTION, OF_THE_PROXY, SECRET_WORDS};

    #[test]
    fn functions_have_the_words_and_numbers_of_the_program() {
        let protocol = include_str!("sql/protocol.sql").split_whitespace().collect::<Vec<_>>().join(" ");
        let quoted = OF_THE_CONNECTION.map(|name| format!("'{name}'")).join(", ");
        for words in [
            format!("lower(h.key) ~ '{}'", SECRET_WORDS.join("|")),
            format!("v_name IN ({quoted}) OR v_name LIKE '{OF_THE_PROXY}%'"),
            format!("v_name ~ '^({})'", OF_POSTRIDER.join("|")),
        ] {
            assert!(protocol.contains(&words), "{words}");
        }
        let json = include_str!("sql/json.sql");
        for number in [
            format!("$.**{{{DEPTH_MAX}}}"),
            format!("$.**{{{}}}", DEPTH_MAX + 2),
            format!("1 .. {DEPTH_MAX}"),
        ] {
            assert!(json.contains(&number), "{number}");
        }
    }
}
