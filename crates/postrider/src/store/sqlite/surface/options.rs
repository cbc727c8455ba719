//! What is refused of a message's options: every kind of key, as conditions over `json_each`.

use super::checks::{Check, bytes_of};
use super::rules::{self, quoted};
use crate::error::Invalid;
use crate::protocol::keys::{NOT_A_STRING, bytes_say, names, one_of};
use crate::protocol::{ConfigKey, MapRules, ProtocolDefinition, Rule, ValueKind, headers};

/// An object within the options.
struct Level {
    /// As JSON paths are written: `$.tls`. Only for numbers: a path does not find a key that is written with escapes.
    path: String,
    /// The object, as an expression.
    object: String,
    /// As errors name it: `options.tls`.
    field: String,
    /// When its checks are asked for.
    guard: String,
}

/// A message need not repeat what its endpoint requires.
pub(super) fn checks_of(protocol: &ProtocolDefinition) -> Vec<Check> {
    let level = Level {
        path: "$".to_owned(),
        object: "NEW.options".to_owned(),
        field: "options".to_owned(),
        guard: format!("NEW.protocol = {}", quoted(protocol.name)),
    };
    level.known(&protocol.message_keys(), "")
}

impl Level {
    /// Every key is known and has a good value. `type_key` is `type` in an object with variants, else empty.
    fn known(&self, keys: &[&ConfigKey], type_key: &str) -> Vec<Check> {
        let mut known: Vec<&str> = Some(type_key).filter(|name| !name.is_empty()).into_iter().collect();
        known.extend(names(keys));
        let listed: Vec<String> = known.iter().map(|name| quoted(name)).collect();
        let Invalid { rule, .. } = Invalid::unknown_key("", "", &known);
        let unknown = self.any(&format!("key NOT IN ({})", listed.join(", ")));
        let mut checks = vec![Check::invalid(&self.field, &format!("a key {rule}"), unknown)];
        checks.extend(keys.iter().flat_map(|key| self.value(key)));
        checks
    }

    fn required(&self, keys: &[ConfigKey]) -> Vec<Check> {
        let required = keys.iter().filter(|key| key.required).map(|key| {
            let (object, guard) = (&self.object, &self.guard);
            let missing = format!("{guard} AND {object} IS NOT NULL AND {} IS NULL", self.inner(key.name));
            Check::invalid(&format!("{}.{}", self.field, key.name), "is required", missing)
        });
        required.collect()
    }

    fn value(&self, key: &ConfigKey) -> Vec<Check> {
        let at = Self {
            path: format!("{}.{}", self.path, key.name),
            object: self.inner(key.name),
            field: format!("{}.{}", self.field, key.name),
            guard: self.guard.clone(),
        };
        let this = |when: &str| self.any(&format!("key = {} AND ({when})", quoted(key.name)));
        let mut checks = vec![Check::invalid(&at.field, &key.kind.says(), this(&at.is_no(&key.kind)))];
        let texts = |rules: &[Rule]| {
            let broken = rules::broken(rules, "value").into_iter();
            broken.map(|(when, says)| Check::invalid(&at.field, &says, this(&when))).collect::<Vec<_>>()
        };
        match &key.kind {
            ValueKind::Flag | ValueKind::Whole { .. } | ValueKind::Seconds { .. } | ValueKind::Choice(_) => {}
            ValueKind::Text { bytes_max, rules } | ValueKind::TextOrEmpty { bytes_max, rules } => {
                let bytes = usize::from(matches!(key.kind, ValueKind::Text { .. }))..=*bytes_max;
                let outside =
                    format!("{} NOT BETWEEN {} AND {}", bytes_of("value"), bytes.start(), bytes.end());
                checks.push(Check::invalid(&at.field, &bytes_say(&bytes), this(&outside)));
                checks.extend(texts(rules));
            }
            ValueKind::Secret(rules) => checks.extend(texts(rules)),
            ValueKind::Codes { min, max, classes } => {
                let is_class = format!("type = 'text' AND value IN ({})", list(classes));
                let is_code = format!("type = 'integer' AND value BETWEEN {min} AND {max}");
                let is_neither = format!("NOT (({is_class}) OR ({is_code}))");
                checks.push(at.entry(&is_neither, &key.kind.code_says()));
            }
            ValueKind::Secrets { rules, .. } => {
                checks.push(at.entry("type <> 'text'", NOT_A_STRING));
                let broken = rules::broken(rules, "value").into_iter();
                checks.extend(broken.map(|(when, says)| at.entry(&when, &says)));
            }
            ValueKind::Map(rules) => checks.extend(at.map(rules)),
            ValueKind::Object(keys) => {
                checks.extend(at.known(&keys.iter().collect::<Vec<_>>(), ""));
                checks.extend(at.required(keys));
            }
            ValueKind::Typed(variants) => checks.extend(at.variants(variants)),
        }
        checks
    }

    /// The value at this path is not of this kind; in a row of `json_each`.
    fn is_no(&self, kind: &ValueKind) -> String {
        match kind {
            ValueKind::Flag => "type NOT IN ('true', 'false')".to_owned(),
            // Neither 5.0 nor -0 is a whole number here.
            ValueKind::Whole { min, max } => format!(
                "type <> 'integer' OR value NOT BETWEEN {min} AND {max} OR (NEW.options -> '{}') GLOB '*[^0-9]*'",
                self.path
            ),
            ValueKind::Seconds { max } => {
                format!("type NOT IN ('integer', 'real') OR value NOT BETWEEN 1e-9 AND {max}")
            }
            ValueKind::Choice(choices) => format!("type <> 'text' OR value NOT IN ({})", list(choices)),
            ValueKind::Text { .. } | ValueKind::TextOrEmpty { .. } | ValueKind::Secret(_) => {
                "type <> 'text'".to_owned()
            }
            ValueKind::Codes { .. } => "type <> 'array'".to_owned(),
            ValueKind::Secrets { min, max, .. } => {
                format!("type <> 'array' OR json_array_length(value) NOT BETWEEN {min} AND {max}")
            }
            ValueKind::Map(_) | ValueKind::Object(_) | ValueKind::Typed(_) => "type <> 'object'".to_owned(),
        }
    }

    fn map(&self, rules: &MapRules) -> Vec<Check> {
        let twice = format!(
            "{} AND (SELECT count(DISTINCT lower(key)) <> count(*) FROM json_each({}))",
            self.guard, self.object
        );
        let mut checks = vec![self.entry("type <> 'text'", NOT_A_STRING)];
        checks.push(Check::invalid(&self.field, &format!("an entry {}", headers::TWICE), twice));
        let broken = rules::broken(rules.names, "lower(key)");
        let broken = broken.into_iter().chain(rules::broken_values(rules));
        checks.extend(broken.map(|(when, says)| self.entry(&when, &says)));
        checks
    }

    fn variants(&self, variants: &[(&str, &'static [ConfigKey])]) -> Vec<Check> {
        let kind = self.inner("type");
        let known: Vec<&str> = variants.iter().map(|(name, _)| *name).collect();
        let unknown = format!(
            "{} AND {} IS NOT NULL AND coalesce({kind} NOT IN ({}), 1)",
            self.guard,
            self.object,
            list(&known)
        );
        let rule = format!("must be {}", one_of(&known));
        let mut checks = vec![Check::invalid(&format!("{}.type", self.field), &rule, unknown)];
        for (name, keys) in variants {
            let guard = format!("{} AND {kind} = {}", self.guard, quoted(name));
            let (path, object, field) = (self.path.clone(), self.object.clone(), self.field.clone());
            let level = Self { path, object, field, guard };
            checks.extend(level.known(&keys.iter().collect::<Vec<_>>(), "type"));
            checks.extend(level.required(keys));
        }
        checks
    }

    /// RAISE cannot name an entry that the caller made up.
    fn entry(&self, when: &str, says: &str) -> Check {
        Check::invalid(&self.field, &format!("an entry {says}"), self.any(when))
    }

    /// The value of one of its keys; null where it has none.
    fn inner(&self, key: &str) -> String {
        format!("(SELECT value FROM json_each({}) WHERE key = {})", self.object, quoted(key))
    }

    fn any(&self, when: &str) -> String {
        format!("{} AND EXISTS (SELECT 1 FROM json_each({}) WHERE {when})", self.guard, self.object)
    }
}

fn list(texts: &[&str]) -> String {
    texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use serde_json::Value;

    use super::super::checks::{arms, header_checks_of};
    use super::*;
    use crate::protocol::made_up::{self, MADE_UP};

    /// SQLite names the object where Rust names an entry of it.
    fn assert_says(told: Option<String>, says: Option<&str>, given: &Value) {
        let (Some(told), Some(says)) = (&told, says) else {
            assert_eq!(told.as_deref(), says, "{given}");
            return;
        };
        let (told_field, told_rule) = told.split_once(": ").unwrap();
        let (field, rule) = says.split_once(": ").unwrap();
        let unnamed = ["", "an entry ", "a key ", "a header "].map(|unnamed| format!("{unnamed}{rule}"));
        assert!(
            field.starts_with(told_field) && unnamed.contains(&told_rule.to_owned()),
            "{told} for {says}"
        );
    }

    #[test]
    fn sql_says_what_the_rules_of_any_protocol_say() {
        let conn = Connection::open_in_memory().unwrap();
        let checks: Vec<Check> = checks_of(&MADE_UP).into_iter().chain(header_checks_of(&MADE_UP)).collect();
        conn.execute_batch(&format!(
            "CREATE VIEW sent AS SELECT NULL AS protocol, NULL AS options, NULL AS headers WHERE 0;
             CREATE TRIGGER send INSTEAD OF INSERT ON sent BEGIN SELECT CASE {} END; END;",
            arms(&checks)
        ))
        .unwrap();
        let send = |column: &str, given: &Value| {
            let insert = format!("INSERT INTO sent (protocol, {column}) VALUES ('made_up', ?1)");
            let told = conn.execute(&insert, [given.to_string()]).err().map(|error| error.to_string());
            told.map(|told| told.strip_prefix("22023 ").expect("a refusal").to_owned())
        };
        for (options, says) in made_up::options() {
            assert_says(send("options", &options), says, &options);
        }
        for (headers, says) in made_up::headers() {
            assert_says(send("headers", &headers), says, &headers);
        }
        // A key that is written with escapes is the same key.
        for options in [r#"{"\u006dap": {"Our-x": "1"}}"#, r#"{"\u006fbject": {}}"#] {
            let insert = "INSERT INTO sent (protocol, options) VALUES ('made_up', ?1)";
            assert!(conn.execute(insert, [options]).is_err(), "{options}");
        }
    }
}
