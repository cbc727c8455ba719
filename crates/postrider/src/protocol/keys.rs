//! Rows of the table of keys, and what is derived from them: checks, lists of known keys, redaction.

use serde_json::{Map, Value};

use super::headers;
use super::secret::{self, REDACTED};
use crate::endpoint::whole_number;
use crate::error::Invalid;

/// Its name, by which SQL has the same rule, and its check: what is wrong with a text, as the end of a sentence
/// that begins with the field.
#[derive(Clone, Copy, Debug)]
pub struct Rule(pub &'static str, pub fn(&str) -> Result<(), String>);

/// One row: a key of an endpoint's config or of a message's options.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    /// As it would be typed in JSON; None when leaving it out means "not used".
    pub default: Option<&'static str>,
    pub scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only in an endpoint's config.
    Endpoint,
    /// In the config, and a message may override it.
    Both,
    /// Only in a message's options.
    Message,
}

/// What `type` may be, and the other keys of each.
pub type Variants = &'static [(&'static str, &'static [Key])];

#[derive(Debug)]
pub enum Kind {
    Flag,
    Whole {
        min: u64,
        max: u64,
    },
    /// More than 0, may be fractional.
    Seconds {
        max: u32,
    },
    Choice(&'static [&'static str]),
    Text {
        bytes_max: usize,
        rule: Rule,
    },
    /// A list of whole numbers and of names for many of them.
    Codes {
        min: u64,
        max: u64,
        classes: &'static [&'static str],
    },
    /// A text that no interface shows again, or a reference to one.
    Secret(Rule),
    Secrets {
        min: usize,
        max: usize,
        rule: Rule,
    },
    /// A map of header names to values; any value may be a reference to a secret.
    Headers,
    Object(&'static [Key]),
    /// An object whose other keys depend on its key `type`.
    Typed(Variants),
}

impl Key {
    pub(super) const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, required: false, default: None, scope: Scope::Endpoint }
    }

    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn default(mut self, json: &'static str) -> Self {
        self.default = Some(json);
        self
    }

    pub(super) const fn per_message(mut self) -> Self {
        self.scope = Scope::Both;
        self
    }

    pub(super) const fn message_only(mut self) -> Self {
        self.scope = Scope::Message;
        self
    }

    pub fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret(_) | Kind::Secrets { .. })
    }
}

pub(super) fn check(within: &str, keys: Vec<&Key>, map: &Map<String, Value>) -> Result<(), Invalid> {
    check_known(within, &keys, map)?;
    match keys.iter().find(|key| key.required && !map.contains_key(key.name)) {
        Some(missing) => Err(Invalid::new(format!("{within}.{}", missing.name), "is required")),
        None => Ok(()),
    }
}

pub(super) fn check_known(within: &str, keys: &[&Key], map: &Map<String, Value>) -> Result<(), Invalid> {
    for (name, value) in map {
        let Some(key) = keys.iter().find(|key| key.name == name) else {
            return Err(Invalid::unknown_key(within, name, &names(keys)));
        };
        key.kind.check(&format!("{within}.{name}"), value)?;
    }
    Ok(())
}

fn names(keys: &[&Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

impl Kind {
    fn check(&self, field: &str, value: &Value) -> Result<(), Invalid> {
        match self {
            Self::Flag if value.is_boolean() => Ok(()),
            Self::Flag => Err(Invalid::new(field, "must be true or false")),
            Self::Whole { min, max } => whole_number(field, value, *min, *max).map(drop),
            Self::Seconds { max } => check_seconds(field, value, *max),
            Self::Choice(choices) => check_choice(field, value, choices),
            Self::Text { bytes_max, rule } => check_text(field, value, *bytes_max, *rule),
            Self::Codes { min, max, classes } => check_codes(field, value, *min..=*max, classes),
            Self::Secret(rule) => check_secret(field, value, *rule),
            Self::Secrets { min, max, rule } => check_secrets(field, value, *min..=*max, *rule),
            Self::Headers => check_headers(field, value),
            Self::Object(keys) => check(field, keys.iter().collect(), object(field, value)?),
            Self::Typed(variants) => check_typed(field, value, variants),
        }
    }

    fn redacted(&self, value: &Value) -> Value {
        match self {
            Self::Flag | Self::Whole { .. } | Self::Seconds { .. } | Self::Choice(_) | Self::Codes { .. } => {
                value.clone()
            }
            Self::Text { .. } => without_userinfo(value),
            Self::Secret(_) => secret::shown(value),
            Self::Secrets { .. } => match value {
                Value::Array(items) => Value::Array(items.iter().map(secret::shown).collect()),
                other => secret::shown(other),
            },
            Self::Headers => with_map(value, |name, value| match headers::is_secret(name) {
                true => secret::shown(value),
                false => value.clone(),
            }),
            Self::Object(keys) => match value {
                Value::Object(map) => Value::Object(redacted(&keys.iter().collect::<Vec<_>>(), map)),
                other => secret::shown(other),
            },
            Self::Typed(variants) => redacted_typed(value, variants),
        }
    }
}

fn check_seconds(field: &str, value: &Value, max: u32) -> Result<(), Invalid> {
    match value.as_f64() {
        // A nanosecond is the least that a duration can tell from nothing.
        Some(seconds) if (1e-9..=f64::from(max)).contains(&seconds) => Ok(()),
        _ => Err(Invalid::new(field, format!("must be a number of seconds above 0 and up to {max}"))),
    }
}

fn check_choice(field: &str, value: &Value, choices: &[&str]) -> Result<(), Invalid> {
    match value.as_str() {
        Some(text) if choices.contains(&text) => Ok(()),
        _ => Err(Invalid::new(field, format!("must be {}", one_of(choices)))),
    }
}

fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
    quoted.join(" or ")
}

fn check_codes(
    field: &str,
    value: &Value,
    range: std::ops::RangeInclusive<u64>,
    classes: &[&str],
) -> Result<(), Invalid> {
    let items = value.as_array().ok_or_else(|| Invalid::new(field, "must be a list"))?;
    let fits = |item: &Value| {
        item.as_u64().is_some_and(|code| range.contains(&code))
            || item.as_str().is_some_and(|class| classes.contains(&class))
    };
    let Some(at) = items.iter().position(|item| !fits(item)) else { return Ok(()) };
    let (min, max, classes) = (range.start(), range.end(), one_of(classes));
    let rule = format!("must be a whole number from {min} to {max}, or {classes}");
    Err(Invalid::new(format!("{field}[{at}]"), rule))
}

fn check_text(field: &str, value: &Value, bytes_max: usize, rule: Rule) -> Result<(), Invalid> {
    let text = value.as_str().ok_or_else(|| Invalid::new(field, "must be a string"))?;
    if text.is_empty() || text.len() > bytes_max {
        return Err(Invalid::new(field, format!("must have 1 to {bytes_max} bytes")));
    }
    (rule.1)(text).map_err(|broken| Invalid::new(field, broken))
}

fn check_secret(field: &str, value: &Value, rule: Rule) -> Result<(), Invalid> {
    let text = value.as_str().ok_or_else(|| Invalid::new(field, "must be a string"))?;
    match secret::Reference::parse(text) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => (rule.1)(text).map_err(|broken| Invalid::new(field, broken)),
        Err(broken) => Err(Invalid::new(field, broken)),
    }
}

fn check_secrets(
    field: &str,
    value: &Value,
    count: std::ops::RangeInclusive<usize>,
    rule: Rule,
) -> Result<(), Invalid> {
    let items = value.as_array().filter(|items| count.contains(&items.len())).ok_or_else(|| {
        Invalid::new(field, format!("must be a list of {} to {} strings", count.start(), count.end()))
    })?;
    let mut numbered = items.iter().enumerate();
    numbered.try_for_each(|(number, item)| check_secret(&format!("{field}[{number}]"), item, rule))
}

fn check_headers(field: &str, value: &Value) -> Result<(), Invalid> {
    let map = object(field, value)?;
    let mut texts = Vec::with_capacity(map.len());
    for (name, value) in map {
        let field = format!("{field}.{name}");
        let text = value.as_str().ok_or_else(|| Invalid::new(&field, "must be a string"))?;
        match secret::Reference::parse(text).map_err(|broken| Invalid::new(&field, broken))? {
            // Its value is known, and checked, only when the sink connects.
            Some(_) => texts.push((name.as_str(), "")),
            None => texts.push((name.as_str(), text)),
        }
    }
    headers::check(field, &texts)
}

fn check_typed(field: &str, value: &Value, variants: Variants) -> Result<(), Invalid> {
    let map = object(field, value)?;
    let Some((kind, keys)) = variant(map, variants) else {
        let known: Vec<&str> = variants.iter().map(|(name, _)| *name).collect();
        return Err(Invalid::new(format!("{field}.type"), format!("must be {}", one_of(&known))));
    };
    let type_key = Key::new("type", Kind::Choice(std::slice::from_ref(kind)));
    check(field, std::iter::once(&type_key).chain(keys.iter()).collect(), map)
}

fn variant(map: &Map<String, Value>, variants: Variants) -> Option<&'static (&'static str, &'static [Key])> {
    let kind = map.get("type")?.as_str()?;
    variants.iter().find(|(name, _)| *name == kind)
}

fn object<'v>(field: &str, value: &'v Value) -> Result<&'v Map<String, Value>, Invalid> {
    value.as_object().ok_or_else(|| Invalid::new(field, "must be an object"))
}

/// Keys that are not in the table are hidden: nobody can tell what they hold.
pub(super) fn redacted(keys: &[&Key], map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .map(|(name, value)| {
            let shown = match keys.iter().find(|key| key.name == name) {
                Some(key) => key.kind.redacted(value),
                None => Value::from(REDACTED),
            };
            (name.clone(), shown)
        })
        .collect()
}

fn redacted_typed(value: &Value, variants: Variants) -> Value {
    let keys = value.as_object().and_then(|map| variant(map, variants)).map_or(&[][..], |(_, keys)| *keys);
    with_map(value, |name, value| match keys.iter().find(|key| key.name == name) {
        _ if name == "type" => value.clone(),
        Some(key) => key.kind.redacted(value),
        None => Value::from(REDACTED),
    })
}

fn with_map(value: &Value, shown: impl Fn(&str, &Value) -> Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().map(|(name, value)| (name.clone(), shown(name, value))).collect())
        }
        other => secret::shown(other),
    }
}

/// Credentials in a URL are refused, but what was stored before that rule must not be shown either.
fn without_userinfo(value: &Value) -> Value {
    let shown = value.as_str().and_then(|text| {
        let (scheme, rest) = text.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let host = authority.rfind('@')?;
        Some(format!("{scheme}://{REDACTED}{}", &rest[host..]))
    });
    shown.map_or_else(|| value.clone(), Value::from)
}
