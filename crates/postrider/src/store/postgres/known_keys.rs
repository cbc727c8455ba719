//! The program's tables of protocols and keys as rows, by which SQL checks endpoints and options in the same words.
//! `sql/protocol.sql` says what the columns mean.

use postgres_types::Json;
use serde_json::{Value, json};
use tokio_postgres::Transaction;

use super::errors::store_error;
use super::patterns;
use crate::protocol::{ConfigKey, Protocol, ProtocolDefinition, Relation, SetBy, Then, ValueKind};
use crate::store::Result;

const INSERT_PROTOCOL: &str =
    "INSERT INTO postrider._known_protocols (name, position, headers, endpoint_headers, relations)
  VALUES ($1, $2, $3, $4, $5)";
const INSERT_KEY: &str =
    "INSERT INTO postrider._known_keys (protocol, path, position, name, kind, set_by, required,
    default_value, min, max, choices, rules)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::bigint, $10::bigint, $11, $12)";

#[derive(Debug)]
struct KnownKey {
    protocol: &'static str,
    path: String,
    position: i32,
    key: &'static ConfigKey,
}

/// What a kind says beyond its name.
#[derive(Default)]
struct Details {
    min: Option<i64>,
    max: Option<i64>,
    choices: Option<Vec<&'static str>>,
    rules: Option<Json<Value>>,
}

pub(super) async fn fill(transaction: &Transaction<'_>) -> Result<()> {
    let empty = "DELETE FROM postrider._known_keys; DELETE FROM postrider._known_protocols";
    transaction.batch_execute(empty).await.map_err(store_error)?;
    for (position, protocol) in Protocol::ALL.iter().enumerate() {
        add_protocol(transaction, position as i32 + 1, protocol.definition()).await?;
    }
    Ok(())
}

async fn add_protocol(
    transaction: &Transaction<'_>,
    position: i32,
    protocol: &ProtocolDefinition,
) -> Result<()> {
    let headers = Json(patterns::map_rules(protocol.headers));
    let relations = Json(Value::from_iter(protocol.relations.iter().map(relation)));
    transaction
        .execute(
            INSERT_PROTOCOL,
            &[&protocol.name, &position, &headers, &protocol.endpoint_headers, &relations],
        )
        .await
        .map_err(store_error)?;
    let insert = transaction.prepare(INSERT_KEY).await.map_err(store_error)?;
    for KnownKey { protocol, path, position, key } in keys_of(protocol) {
        let default: Option<Json<Value>> =
            key.default.map(|json| Json(serde_json::from_str(json).expect("a default is JSON")));
        let Details { min, max, choices, rules } = details(&key.kind);
        transaction
            .execute(
                &insert,
                &[
                    &protocol,
                    &path,
                    &position,
                    &key.name,
                    &kind_name(&key.kind),
                    &set_by_name(key.set_by),
                    &key.required,
                    &default,
                    &min,
                    &max,
                    &choices,
                    &rules,
                ],
            )
            .await
            .map_err(store_error)?;
    }
    Ok(())
}

fn relation(relation: &Relation) -> Value {
    let mut row = json!({ "given": relation.given, "field": relation.field(), "says": relation.says });
    match relation.then {
        Then::NoHeader(header) => row["header"] = json!(header),
        Then::Needs(other) => row["needs"] = json!(other),
    }
    if let Some(value) = relation.is {
        row["is"] = json!(value);
    }
    row
}

/// Everything that the rows depend on, as text.
pub(super) fn recipe() -> String {
    let protocols = Protocol::ALL.iter().map(|protocol| protocol.definition()).map(|protocol| {
        let ProtocolDefinition { name, relations, endpoint_headers, .. } = protocol;
        let keys = keys_of(protocol);
        let rules: Vec<_> = keys.iter().map(|known| details(&known.key.kind).rules).collect();
        let headers = patterns::map_rules(protocol.headers);
        format!("{name} {relations:?} {endpoint_headers:?} {headers} {keys:?} {rules:?}")
    });
    protocols.collect()
}

fn keys_of(protocol: &ProtocolDefinition) -> Vec<KnownKey> {
    let mut rows = Vec::new();
    add(&mut rows, protocol.name, "", &protocol.all_keys().collect::<Vec<_>>());
    rows
}

fn add(rows: &mut Vec<KnownKey>, protocol: &'static str, path: &str, keys: &[&'static ConfigKey]) {
    for (at, key) in keys.iter().enumerate() {
        rows.push(KnownKey { protocol, path: path.to_owned(), position: at as i32 + 1, key });
        let below = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        match &key.kind {
            ValueKind::Object(keys) => add(rows, protocol, &below, &keys.iter().collect::<Vec<_>>()),
            ValueKind::Typed(variants) => {
                for (variant, keys) in *variants {
                    add(rows, protocol, &format!("{below}:{variant}"), &keys.iter().collect::<Vec<_>>());
                }
            }
            _ => {}
        }
    }
}

fn details(kind: &ValueKind) -> Details {
    let nothing = Details::default();
    match kind {
        ValueKind::Flag | ValueKind::Object(_) => nothing,
        ValueKind::Whole { min, max } => {
            Details { min: Some(*min as i64), max: Some(*max as i64), ..nothing }
        }
        ValueKind::Seconds { max } => Details { max: Some(i64::from(*max)), ..nothing },
        ValueKind::Choice(choices) => Details { choices: Some(choices.to_vec()), ..nothing },
        ValueKind::Text { bytes_max, rules } => {
            Details { max: Some(*bytes_max as i64), rules: Some(Json(patterns::rules(rules))), ..nothing }
        }
        ValueKind::TextOrEmpty { bytes_max, rules } => Details {
            min: Some(0),
            max: Some(*bytes_max as i64),
            rules: Some(Json(patterns::rules(rules))),
            ..nothing
        },
        ValueKind::Codes { min, max, classes } => Details {
            min: Some(*min as i64),
            max: Some(*max as i64),
            choices: Some(classes.to_vec()),
            ..nothing
        },
        ValueKind::Secret(rules) => Details { rules: Some(Json(patterns::rules(rules))), ..nothing },
        ValueKind::Secrets { min, max, rules } => Details {
            min: Some(*min as i64),
            max: Some(*max as i64),
            rules: Some(Json(patterns::rules(rules))),
            ..nothing
        },
        ValueKind::Map(rules) => Details { rules: Some(Json(patterns::map_rules(rules))), ..nothing },
        ValueKind::Typed(variants) => {
            Details { choices: Some(variants.iter().map(|(name, _)| *name).collect()), ..nothing }
        }
    }
}

fn kind_name(kind: &ValueKind) -> &'static str {
    match kind {
        ValueKind::Flag => "flag",
        ValueKind::Whole { .. } => "whole",
        ValueKind::Seconds { .. } => "seconds",
        ValueKind::Choice(_) => "choice",
        ValueKind::Text { .. } | ValueKind::TextOrEmpty { .. } => "text",
        ValueKind::Codes { .. } => "codes",
        ValueKind::Secret(_) => "secret",
        ValueKind::Secrets { .. } => "secrets",
        ValueKind::Map(_) => "map",
        ValueKind::Object(_) => "object",
        ValueKind::Typed(_) => "typed",
    }
}

fn set_by_name(set_by: SetBy) -> &'static str {
    match set_by {
        SetBy::Endpoint => "endpoint",
        SetBy::Both => "both",
        SetBy::Message => "message",
    }
}

#[cfg(test)]
mod tests {
    use crate::json::DEPTH_MAX;
    use postgres_types::Json;
    use test_servers::Database;
    use tokio_postgres::types::ToSql;

    use super::super::migrate;
    use crate::protocol::headers::SECRET_WORDS;
    use crate::protocol::made_up::{self, MADE_UP};

    #[tokio::test]
    async fn sql_says_what_the_rules_of_any_protocol_say() {
        let database = Database::empty().await;
        let mut client = database.connect().await;
        migrate::migrate(&mut client).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        super::add_protocol(&transaction, 99, &MADE_UP).await.unwrap();
        transaction.commit().await.unwrap();
        let options = "SELECT postrider._check_message_options('options', 'made_up', '{}', $1, '1 hour')";
        let config = "SELECT postrider._check_config('made_up', $1)";
        let headers = "SELECT postrider._check_message_headers('headers', 'made_up', '{}', NULL, 16384, $1)";
        let cases =
            [(options, made_up::options()), (config, made_up::configs()), (headers, made_up::headers())];
        for (check, cases) in cases {
            for (given, says) in cases {
                let given: &(dyn ToSql + Sync) = &Json(given);
                let told = client.execute(check, &[given]).await.err();
                let told = told.map(|error| error.as_db_error().expect("a refusal").message().to_owned());
                assert_eq!(told.as_deref(), says, "{given:?}");
            }
        }
    }

    #[test]
    fn functions_have_the_words_and_numbers_of_the_program() {
        let words = format!("lower(h.key) ~ '{}'", SECRET_WORDS.join("|"));
        assert!(include_str!("sql/protocol.sql").contains(&words), "{words}");
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
