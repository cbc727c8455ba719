//! `--set KEY=VALUE`: single keys of an endpoint's config, read as the protocol's table of keys says.

use std::collections::HashSet;

use postrider::Invalid;
use postrider::protocol::{ConfigKey, Protocol, SetBy, ValueKind};
use serde_json::{Map, Value};

/// One `--set`, as typed.
#[derive(Clone, Debug)]
pub(crate) struct SetKey {
    /// Keys of objects are written as `tls.ca`.
    path: String,
    text: String,
}

impl SetKey {
    /// A value that begins with `@` names the file that holds it; `@@` stands for `@` itself.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (path, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
        let text = match value.strip_prefix('@') {
            Some(itself) if itself.starts_with('@') => itself.to_owned(),
            Some(file) => {
                let text =
                    std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
                // Editors end a file with a newline that is not part of a password.
                text.strip_suffix('\n')
                    .map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line))
                    .to_owned()
            }
            None => value.to_owned(),
        };
        Ok(Self { path: path.to_owned(), text })
    }
}

/// The same for a change: a key of an object stays by itself, `tls.ca`, so that the object's other keys stay.
pub(crate) fn changes(protocol: Option<Protocol>, given: &[SetKey]) -> Result<Map<String, Value>, Invalid> {
    let mut changes = Map::new();
    for set in given {
        let one = config(protocol, std::slice::from_ref(set))?;
        let inner = set.path.split_once('.').and_then(|(object, inner)| one.get(object)?.get(inner));
        let value = inner.or_else(|| one.values().next()).cloned().unwrap_or_default();
        if changes.insert(set.path.clone(), value).is_some() {
            return Err(Invalid::new(format!("config.{}", set.path), "is given twice"));
        }
    }
    Ok(changes)
}

/// The keys that were set. What the table does not know stays a text: the check of the config names it.
pub(crate) fn config(protocol: Option<Protocol>, given: &[SetKey]) -> Result<Map<String, Value>, Invalid> {
    let mut config = Map::new();
    for SetKey { path, text } in given {
        let known = protocol
            .and_then(|protocol| protocol.keys().find(|key| path.split('.').next() == Some(key.name)));
        let twice = || Invalid::new(format!("config.{path}"), "is given twice");
        match (path.split_once('.'), known.map(|key| &key.kind)) {
            (
                Some((object, inner)),
                Some(kind @ (ValueKind::Object(_) | ValueKind::Typed(_) | ValueKind::Map(_))),
            ) => {
                let object = config.entry(object).or_insert_with(|| Value::Object(Map::new()));
                let object = object.as_object_mut().ok_or_else(twice)?;
                if object.insert(inner.to_owned(), value(inner_kind(kind, inner), text)).is_some() {
                    return Err(twice());
                }
            }
            (_, kind) => {
                if config.insert(path.clone(), value(kind, text)).is_some() {
                    return Err(twice());
                }
            }
        }
    }
    Ok(config)
}

fn inner_kind<'k>(kind: &'k ValueKind, name: &str) -> Option<&'k ValueKind> {
    let find = |keys: &'k [ConfigKey]| keys.iter().find(|key| key.name == name).map(|key| &key.kind);
    match kind {
        ValueKind::Object(keys) => find(keys),
        ValueKind::Typed(variants) => variants.iter().find_map(|(_, keys)| find(keys)),
        _ => None,
    }
}

/// Texts need no quotes; everything else is typed as in JSON.
fn value(kind: Option<&ValueKind>, text: &str) -> Value {
    let is_text =
        kind.is_none_or(|kind| kind.is_text() || matches!(kind, ValueKind::Choice(_) | ValueKind::Secret(_)));
    match serde_json::from_str(text) {
        Ok(value) if !is_text => value,
        _ => Value::String(text.to_owned()),
    }
}

/// What a `--set` for one of these protocols may begin with.
pub(crate) fn beginnings(protocols: &[Protocol]) -> Vec<String> {
    let keys =
        protocols.iter().flat_map(|protocol| protocol.keys()).filter(|key| key.set_by != SetBy::Message);
    let mut beginnings = Vec::new();
    for key in keys {
        let inner = |inner: &ConfigKey| format!("{}.{}=", key.name, inner.name);
        match &key.kind {
            ValueKind::Object(keys) => beginnings.extend(keys.iter().map(inner)),
            ValueKind::Typed(variants) => {
                beginnings.push(format!("{}.type=", key.name));
                beginnings.extend(variants.iter().flat_map(|(_, keys)| keys.iter().map(inner)));
            }
            ValueKind::Map(_) => beginnings.push(format!("{}.", key.name)),
            _ => beginnings.push(format!("{}=", key.name)),
        }
    }
    let mut seen = HashSet::new();
    beginnings.retain(|beginning| seen.insert(beginning.clone()));
    beginnings
}

/// The keys of every protocol, for `--help`.
pub(crate) fn help() -> String {
    let mut help =
        "Keys for --set, by protocol (those with * are required; docs/protocols.md explains them):"
            .to_owned();
    for protocol in Protocol::ALL {
        let keys = protocol.keys().filter(|key| key.set_by != SetBy::Message);
        let names: Vec<String> =
            keys.map(|key| format!("{}{}", key.name, if key.required { "*" } else { "" })).collect();
        help.push_str(&format!("\n  {:<6} {}", protocol.as_str(), names.join(" ")));
    }
    help
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(protocol: &str, given: &[&str]) -> Result<Value, Invalid> {
        let given: Vec<SetKey> = given.iter().map(|text| SetKey::parse(text).unwrap()).collect();
        config(Protocol::from_name(protocol).ok(), &given).map(Value::Object)
    }

    #[test]
    fn values_are_read_as_the_table_says() {
        let given =
            ["host=10", "port=6380", "stream_key=true", "nomkstream=true", "tls.ca=PEM", "password=\"x\""];
        let expected = json!({
            "host": "10", "port": 6380, "stream_key": "true", "nomkstream": true, "tls": {"ca": "PEM"},
            "password": "\"x\"",
        });
        assert_eq!(set("redis", &given), Ok(expected));
        let given = [
            "auth.type=basic",
            "auth.username=7",
            "headers.x-a.b=1",
            "retry_status=[404,\"5xx\"]",
            "timeout=2.5",
        ];
        let expected = json!({
            "auth": {"type": "basic", "username": "7"}, "headers": {"x-a.b": "1"}, "retry_status": [404, "5xx"],
            "timeout": 2.5,
        });
        assert_eq!(set("http", &given), Ok(expected));
    }

    #[test]
    fn what_the_table_does_not_know_stays_a_text() {
        assert_eq!(set("redis", &["nope=1"]), Ok(json!({"nope": "1"})));
        assert_eq!(set("pigeon", &["port=1"]), Ok(json!({"port": "1"})));
        assert_eq!(set("redis", &["port=many"]), Ok(json!({"port": "many"})));
    }

    #[test]
    fn a_change_of_one_key_leaves_the_other_keys_of_its_object() {
        let given = ["port=1", "headers.x-a.b=c", "tls.ca=PEM"].map(|text| SetKey::parse(text).unwrap());
        let changed = changes(Protocol::from_name("http").ok(), &given).map(Value::Object);
        assert_eq!(changed, Ok(json!({"port": "1", "headers.x-a.b": "c", "tls.ca": "PEM"})));
        assert!(changes(None, &[given[0].clone(), given[0].clone()]).is_err());
    }

    #[test]
    fn a_value_comes_from_a_file_without_its_last_newline() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "secret\r\n").unwrap();
        assert_eq!(SetKey::parse(&format!("password=@{}", file.display())).unwrap().text, "secret");
        assert_eq!(SetKey::parse("password=@@home").unwrap().text, "@home");
    }

    #[test]
    fn a_key_is_given_once() {
        for given in [["port=1", "port=2"], ["tls.ca=a", "tls.ca=b"]] {
            assert_eq!(
                set("redis", &given).unwrap_err().to_string().split(':').nth(1),
                Some(" is given twice")
            );
        }
    }

    #[test]
    fn a_value_may_come_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "PEM\nPEM\n").unwrap();
        let given = format!("tls.ca=@{}", file.path().display());
        assert_eq!(set("redis", &[&given]), Ok(json!({"tls": {"ca": "PEM\nPEM"}})));
        assert!(SetKey::parse("tls.ca=@/nowhere").unwrap_err().contains("/nowhere"));
        assert_eq!(SetKey::parse("port").unwrap_err(), "must be KEY=VALUE");
    }
}
