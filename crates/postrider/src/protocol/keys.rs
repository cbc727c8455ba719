//! Rows of the table of keys, and what is derived from them: checks, lists of known keys, redaction.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::headers::{self, MapRules};
use super::rules::{self, Rule};
use super::secret::{self, REDACTED, Reference};
use crate::error::Invalid;

/// One row: a key of an endpoint's config or of a message's options.
#[derive(Debug)]
pub struct ConfigKey {
    pub name: &'static str,
    pub kind: ValueKind,
    pub required: bool,
    /// As it would be typed in JSON; None when leaving it out means "not used".
    pub default: Option<&'static str>,
    /// With this value, as it would be typed in JSON, nobody acknowledges a delivery.
    pub unconfirmed: Option<&'static str>,
    pub set_by: SetBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// Only in an endpoint's config.
    Endpoint,
    /// In the config, and a message may override it.
    Both,
    /// Only in a message's options.
    Message,
}

/// What `type` may be, and the other keys of each.
pub type Variants = &'static [(&'static str, &'static [ConfigKey])];

#[derive(Debug)]
pub enum ValueKind {
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
        rules: &'static [Rule],
    },
    /// A text that may also be empty.
    TextOrEmpty {
        bytes_max: usize,
        rules: &'static [Rule],
    },
    /// A list of whole numbers and of names for many of them.
    Codes {
        min: u64,
        max: u64,
        classes: &'static [&'static str],
    },
    /// A text that no interface shows again, or a reference to one.
    Secret(&'static [Rule]),
    Secrets {
        min: usize,
        max: usize,
        rules: &'static [Rule],
    },
    /// Names and texts, such as headers; any text may be a reference to a secret.
    Map(&'static MapRules),
    Object(&'static [ConfigKey]),
    /// An object whose other keys depend on its key `type`.
    Typed(Variants),
}

pub(crate) const NOT_A_STRING: &str = "must be a string";

impl ConfigKey {
    pub(super) const fn new(name: &'static str, kind: ValueKind) -> Self {
        Self { name, kind, required: false, default: None, unconfirmed: None, set_by: SetBy::Endpoint }
    }

    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn default(mut self, json: &'static str) -> Self {
        self.default = Some(json);
        self
    }

    pub(super) const fn unconfirmed(mut self, json: &'static str) -> Self {
        self.unconfirmed = Some(json);
        self
    }

    pub(super) const fn per_message(mut self) -> Self {
        self.set_by = SetBy::Both;
        self
    }

    pub(super) const fn message_only(mut self) -> Self {
        self.set_by = SetBy::Message;
        self
    }

    pub fn is_secret(&self) -> bool {
        matches!(self.kind, ValueKind::Secret(_) | ValueKind::Secrets { .. })
    }
}

/// Where a value stands: only an endpoint's config may refer to secrets. A message says what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Config,
    Message,
}

impl Source {
    /// The reference that the text is, if this place may have one.
    fn reference(self, text: &str) -> Result<Option<Reference<'_>>, String> {
        match self {
            Self::Config => Reference::parse(text),
            Self::Message => Ok(None),
        }
    }
}

pub(super) fn check(
    within: &str,
    keys: &[&ConfigKey],
    map: &Map<String, Value>,
    place: Source,
) -> Result<(), Invalid> {
    check_known(within, keys, map, place)?;
    match keys.iter().find(|key| key.required && !map.contains_key(key.name)) {
        Some(missing) => Err(Invalid::new(format!("{within}.{}", missing.name), "is required")),
        None => Ok(()),
    }
}

pub(super) fn check_known(
    within: &str,
    keys: &[&ConfigKey],
    map: &Map<String, Value>,
    place: Source,
) -> Result<(), Invalid> {
    for (name, value) in map {
        let Some(key) = keys.iter().find(|key| key.name == name) else {
            return Err(Invalid::unknown_key(within, name, &names(keys)));
        };
        key.kind.check(&format!("{within}.{name}"), value, place)?;
    }
    Ok(())
}

pub(crate) fn names(keys: &[&ConfigKey]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

impl ValueKind {
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text { .. } | Self::TextOrEmpty { .. })
    }

    /// How the sentence ends about a value that is not of this kind.
    pub(crate) fn says(&self) -> String {
        match self {
            Self::Flag => "must be true or false".to_owned(),
            Self::Whole { min, max } => format!("must be a whole number from {min} to {max}"),
            Self::Seconds { max } => format!("must be a number of seconds above 0 and up to {max}"),
            Self::Choice(choices) => format!("must be {}", one_of(choices)),
            Self::Text { .. } | Self::TextOrEmpty { .. } | Self::Secret(_) => NOT_A_STRING.to_owned(),
            Self::Codes { .. } => "must be a list".to_owned(),
            Self::Secrets { min, max, .. } => format!("must be a list of {min} to {max} strings"),
            Self::Map(_) | Self::Object(_) | Self::Typed(_) => "must be an object".to_owned(),
        }
    }

    fn is_kind_of(&self, value: &Value) -> bool {
        match self {
            Self::Flag => value.is_boolean(),
            Self::Whole { min, max } => value.as_u64().is_some_and(|number| (*min..=*max).contains(&number)),
            // A nanosecond is the shortest time that a duration can hold.
            Self::Seconds { max } => {
                value.as_f64().is_some_and(|seconds| (1e-9..=f64::from(*max)).contains(&seconds))
            }
            Self::Choice(choices) => value.as_str().is_some_and(|text| choices.contains(&text)),
            Self::Text { .. } | Self::TextOrEmpty { .. } | Self::Secret(_) => value.is_string(),
            Self::Codes { .. } => value.is_array(),
            Self::Secrets { min, max, .. } => {
                value.as_array().is_some_and(|items| (*min..=*max).contains(&items.len()))
            }
            Self::Map(_) | Self::Object(_) | Self::Typed(_) => value.is_object(),
        }
    }

    fn check(&self, field: &str, value: &Value, place: Source) -> Result<(), Invalid> {
        if !self.is_kind_of(value) {
            return Err(Invalid::new(field, self.says()));
        }
        let (text, items) = (value.as_str().unwrap_or_default(), value.as_array().into_iter().flatten());
        let mut items = items.enumerate().map(|(at, item)| (format!("{field}[{at}]"), item));
        match (self, value) {
            (Self::Text { bytes_max, rules }, _) => check_text(field, text, 1..=*bytes_max, rules),
            (Self::TextOrEmpty { bytes_max, rules }, _) => check_text(field, text, 0..=*bytes_max, rules),
            (Self::Codes { .. }, _) => match items.find(|(_, item)| !self.has_code(item)) {
                Some((field, _)) => Err(Invalid::new(field, self.code_says())),
                None => Ok(()),
            },
            (Self::Secret(rules), _) => check_secret(field, value, rules, place),
            (Self::Secrets { rules, .. }, _) => {
                items.try_for_each(|(field, item)| check_secret(&field, item, rules, place))
            }
            (Self::Map(rules), Value::Object(map)) => check_map(field, map, rules, place),
            (Self::Object(keys), Value::Object(map)) => {
                check(field, &keys.iter().collect::<Vec<_>>(), map, place)
            }
            (Self::Typed(variants), Value::Object(map)) => check_typed(field, map, variants, place),
            (
                Self::Flag
                | Self::Whole { .. }
                | Self::Seconds { .. }
                | Self::Choice(_)
                | Self::Map(_)
                | Self::Object(_)
                | Self::Typed(_),
                _,
            ) => Ok(()),
        }
    }

    fn has_code(&self, item: &Value) -> bool {
        let Self::Codes { min, max, classes } = self else { return false };
        item.as_u64().is_some_and(|code| (*min..=*max).contains(&code))
            || item.as_str().is_some_and(|class| classes.contains(&class))
    }

    /// How the sentence ends about an entry of a list of codes.
    pub(crate) fn code_says(&self) -> String {
        let Self::Codes { min, max, classes } = self else { return self.says() };
        format!("must be a whole number from {min} to {max}, or {}", one_of(classes))
    }

    fn redacted(&self, value: &Value) -> Value {
        match self {
            Self::Flag | Self::Whole { .. } | Self::Seconds { .. } | Self::Choice(_) | Self::Codes { .. } => {
                value.clone()
            }
            Self::Text { .. } | Self::TextOrEmpty { .. } => without_userinfo(value),
            Self::Secret(_) => secret::shown(value),
            Self::Secrets { .. } => match value {
                Value::Array(items) => Value::Array(items.iter().map(secret::shown).collect()),
                other => secret::shown(other),
            },
            Self::Map(_) => with_map(value, |name, value| match headers::is_secret(name) {
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

pub(crate) fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
    quoted.join(" or ")
}

pub(crate) fn bytes_say(bytes: &RangeInclusive<usize>) -> String {
    format!("must have {} to {} bytes", bytes.start(), bytes.end())
}

fn check_text(field: &str, text: &str, bytes: RangeInclusive<usize>, rules: &[Rule]) -> Result<(), Invalid> {
    if !bytes.contains(&text.len()) {
        return Err(Invalid::new(field, bytes_say(&bytes)));
    }
    rules::check(rules, text).map_err(|broken| Invalid::new(field, broken))
}

fn check_secret(field: &str, value: &Value, rules: &[Rule], place: Source) -> Result<(), Invalid> {
    let text = value.as_str().ok_or_else(|| Invalid::new(field, NOT_A_STRING))?;
    let checked = place.reference(text).and_then(|reference| match reference {
        Some(_) => Ok(()),
        None => rules::check(rules, text),
    });
    checked.map_err(|broken| Invalid::new(field, broken))
}

fn check_map(field: &str, map: &Map<String, Value>, rules: &MapRules, place: Source) -> Result<(), Invalid> {
    let at = |name: &str, rule: String| Invalid::new(format!("{field}.{name}"), rule);
    let mut texts = Vec::with_capacity(map.len());
    for (name, value) in map {
        let text = value.as_str().ok_or_else(|| at(name, NOT_A_STRING.to_owned()))?;
        texts.push((name, text, place.reference(text).map_err(|broken| at(name, broken))?));
    }
    headers::none_twice(field, map.keys())?;
    texts.into_iter().try_for_each(|(name, text, reference)| {
        rules.check_name(name).map_err(|broken| at(name, broken))?;
        match reference {
            // The sink checks the value when it connects, for only then it is known.
            Some(_) => Ok(()),
            None => rules.check_value(name, text).map_err(|broken| at(name, broken)),
        }
    })
}

fn check_typed(
    field: &str,
    map: &Map<String, Value>,
    variants: Variants,
    place: Source,
) -> Result<(), Invalid> {
    let Some((kind, keys)) = variant(map, variants) else {
        let known: Vec<&str> = variants.iter().map(|(name, _)| *name).collect();
        return Err(Invalid::new(format!("{field}.type"), format!("must be {}", one_of(&known))));
    };
    let type_key = ConfigKey::new("type", ValueKind::Choice(std::slice::from_ref(kind)));
    check(field, &std::iter::once(&type_key).chain(keys.iter()).collect::<Vec<_>>(), map, place)
}

fn variant(
    map: &Map<String, Value>,
    variants: Variants,
) -> Option<&'static (&'static str, &'static [ConfigKey])> {
    let kind = map.get("type")?.as_str()?;
    variants.iter().find(|(name, _)| *name == kind)
}

/// Keys that are not in the table are hidden, for they may hold secrets.
pub(super) fn redacted(keys: &[&ConfigKey], map: &Map<String, Value>) -> Map<String, Value> {
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

/// A URL with credentials is refused, but one stored before that rule must not be shown either.
fn without_userinfo(value: &Value) -> Value {
    let shown = value.as_str().and_then(|text| {
        let (scheme, rest) = text.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let host = authority.rfind('@')?;
        Some(format!("{scheme}://{REDACTED}{}", &rest[host..]))
    });
    shown.map_or_else(|| value.clone(), Value::from)
}
