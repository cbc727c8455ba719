//! A protocol that does not exist, with every kind of key and every rule, for tests of the three interpreters.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::headers::MapRules;
use super::keys::{ConfigKey, ValueKind};
use super::rules::{Must, NO_CONTROL, Rule};
use super::{ProtocolConfig, ProtocolDefinition, Relation, Then};
use crate::endpoint::Endpoint;
use crate::sink::{Environment, Sink, Undelivered};
use crate::verdict::Failure;

pub(crate) static MADE_UP: ProtocolDefinition = ProtocolDefinition {
    name: "made_up",
    keys: KEYS,
    relations: &[
        Relation {
            given: "secret",
            is: None,
            then: Then::NoHeader("x-secret"),
            says: "cannot stand beside config.secret",
        },
        Relation {
            given: "choice",
            is: Some("red"),
            then: Then::Needs("object.inner"),
            says: "needs config.object.inner",
        },
    ],
    headers: &MAP,
    endpoint_headers: &["x-endpoint"],
    read: |_| Ok(Arc::new(NoSink)),
};

const fn text(name: &'static str, rules: &'static [Rule]) -> ConfigKey {
    ConfigKey::new(name, ValueKind::Text { bytes_max: 40, rules }).per_message()
}

const KEYS: &[ConfigKey] = &[
    ConfigKey::new("flag", ValueKind::Flag).per_message(),
    ConfigKey::new("whole", ValueKind::Whole { min: 1, max: 9 }).per_message(),
    ConfigKey::new("seconds", ValueKind::Seconds { max: 60 }).per_message(),
    ConfigKey::new("choice", ValueKind::Choice(&["red", "it's"])).per_message(),
    ConfigKey::new("codes", ValueKind::Codes { min: 3, max: 5, classes: &["few"] }).per_message(),
    ConfigKey::new("secret", ValueKind::Secret(SHORT)).per_message(),
    ConfigKey::new("secrets", ValueKind::Secrets { min: 1, max: 2, rules: SHORT }).per_message(),
    ConfigKey::new("headers", ValueKind::Map(&MAP)),
    ConfigKey::new("map", ValueKind::Map(&MAP)).per_message(),
    ConfigKey::new("object", ValueKind::Object(OBJECT)).per_message(),
    ConfigKey::new("typed", ValueKind::Typed(&[("one", OBJECT), ("two", &[])])).per_message(),
    text("only", &[Rule::new(Must::OnlyHave(&[('a', 'z'), ('[', '^'), ('-', '-'), ('é', 'é')]), "only")]),
    text(
        "not",
        &[Rule::new(Must::NotHave(&[('\0', '\u{1f}'), ('\'', '\''), (']', '_'), ('à', 'ü')]), "not")],
    ),
    text("before", &[Rule::new(Must::NotHaveBefore('?', &[('<', '>')]), "before")]),
    text("from", &[Rule::new(Must::NotHaveFrom('?', &[('<', '>')]), "from")]),
    text("begin", &[Rule::new(Must::BeginWith(&["a.", "b*"]), "begin")]),
    text("not_begin", &[Rule::new(Must::NotBeginWith(&["a.", "b*"]), "not begin")]),
    text("not_end", &[Rule::new(Must::NotEndWith(&[".", "//"]), "not end")]),
    text("contain", &[Rule::new(Must::Contain("(it's)"), "contain")]),
    text("not_contain", &[Rule::new(Must::NotContain(&["..", "%2e", "'"]), "not contain")]),
    text("not_be", &[Rule::new(Must::NotBe(&["NO", "a|b"]), "not be")]),
    text("path", &[Rule::new(Must::BePathBelow, "path")]),
    text(
        "base64",
        &[
            Rule::new(Must::BeBase64After(&["k_"]), "base64"),
            Rule::new(Must::DecodeAfter("k_", &[(1, 4), (7, 7)]), "decoded"),
        ],
    ),
    text("url", &[Rule::new(Must::BeUrl(&["made", "http"]), "no user name")]),
    ConfigKey::new("empty", ValueKind::TextOrEmpty { bytes_max: 3, rules: &[NO_CONTROL] }).per_message(),
];

const SHORT: &[Rule] = &[Rule::new(Must::NotBe(&["", "short"]), "too short")];

const OBJECT: &[ConfigKey] = &[
    ConfigKey::new("inner", ValueKind::Text { bytes_max: 5, rules: SHORT }).required(),
    ConfigKey::new("number", ValueKind::Whole { min: 0, max: 7 }),
    ConfigKey::new("deep", ValueKind::Object(&[ConfigKey::new("flag", ValueKind::Flag)])),
];

const MAP: MapRules = MapRules {
    names: &[Rule::new(Must::NotBeginWith(&["our-"]), "is ours")],
    values: &[Rule::new(Must::NotHave(&[('\0', '\u{1f}')]), "has control characters")],
    values_of: &[("x-a", &[Rule::new(Must::OnlyHave(&[('0', '9')]), "is no number")])],
};

/// Options of a message, and what every interpreter says of them.
pub(crate) fn options() -> Vec<(Value, Option<&'static str>)> {
    let good = [
        json!({"flag": true, "whole": 9, "seconds": 0.5, "choice": "it's", "codes": [3, "few"], "max_attempts": 3}),
        json!({"secret": "${HOME}", "secrets": ["file:../x"], "map": {"X-B": "${HOME}", "x-a": "17"}}),
        json!({"object": {"inner": "x", "number": 0, "deep": {"flag": false}}, "typed": {"type": "two"}}),
        json!({"typed": {"type": "one", "inner": "x"}, "only": "a[]^-\\é", "not": "a[b`ÿ"}),
        json!({"before": "a?<", "from": "<a?b", "begin": "a.", "not_begin": "ab", "not_end": "./a"}),
        json!({"contain": "x (it's)", "not_contain": "a.b", "not_be": "no", "path": "a/./..b/c"}),
        json!({"base64": "k_AAAA", "url": "MADE://host:1/a@b"}),
        json!({"base64": "k_AAAAAAAAAA==", "url": "http://é/?x"}),
        json!({"base64": "no prefix!", "empty": ""}),
        json!({"empty": "abc"}),
    ];
    let bad = [
        (
            json!({"nothing": 1}),
            "options.nothing: unknown field; expected one of: flag, whole, seconds, choice, codes, secret, secrets, map, object, typed, only, not, before, from, begin, not_begin, not_end, contain, not_contain, not_be, path, base64, url, empty, max_attempts",
        ),
        (json!({"flag": 1}), "options.flag: must be true or false"),
        (json!({"empty": 1}), "options.empty: must be a string"),
        (json!({"empty": "abcd"}), "options.empty: must have 0 to 3 bytes"),
        (json!({"empty": "\n"}), "options.empty: must not contain control characters"),
        (json!({"whole": 10}), "options.whole: must be a whole number from 1 to 9"),
        (json!({"whole": 5.0}), "options.whole: must be a whole number from 1 to 9"),
        (json!({"seconds": 0}), "options.seconds: must be a number of seconds above 0 and up to 60"),
        (json!({"choice": "blue"}), "options.choice: must be \"red\" or \"it's\""),
        (json!({"codes": 3}), "options.codes: must be a list"),
        (json!({"codes": [3, 6]}), "options.codes[1]: must be a whole number from 3 to 5, or \"few\""),
        (json!({"codes": ["many"]}), "options.codes[0]: must be a whole number from 3 to 5, or \"few\""),
        (json!({"secret": 1}), "options.secret: must be a string"),
        (json!({"secret": "short"}), "options.secret: too short"),
        (json!({"secrets": []}), "options.secrets: must be a list of 1 to 2 strings"),
        (json!({"secrets": ["a", 1]}), "options.secrets[1]: must be a string"),
        (json!({"secrets": ["a", ""]}), "options.secrets[1]: too short"),
        (json!({"map": []}), "options.map: must be an object"),
        (json!({"map": {"a": 1}}), "options.map.a: must be a string"),
        (json!({"map": {"A": "1", "a": "1"}}), "options.map.a: is given twice; names of headers ignore case"),
        (json!({"map": {"Our-x": "1"}}), "options.map.Our-x: is ours"),
        (json!({"map": {"X-A": "b"}}), "options.map.X-A: is no number"),
        (json!({"map": {"b": "\n"}}), "options.map.b: has control characters"),
        (json!({"object": 1}), "options.object: must be an object"),
        (json!({"object": {}}), "options.object.inner: is required"),
        (json!({"object": {"inner": "short"}}), "options.object.inner: too short"),
        (json!({"object": {"inner": "longer"}}), "options.object.inner: must have 1 to 5 bytes"),
        (
            json!({"object": {"inner": "x", "number": 8}}),
            "options.object.number: must be a whole number from 0 to 7",
        ),
        (
            json!({"object": {"inner": "x", "more": 8}}),
            "options.object.more: unknown field; expected one of: inner, number, deep",
        ),
        (
            json!({"object": {"inner": "x", "deep": {"flag": 1}}}),
            "options.object.deep.flag: must be true or false",
        ),
        (json!({"typed": {}}), "options.typed.type: must be \"one\" or \"two\""),
        (json!({"typed": {"type": 1}}), "options.typed.type: must be \"one\" or \"two\""),
        (json!({"typed": {"type": "one"}}), "options.typed.inner: is required"),
        (json!({"typed": {"type": "one", "inner": "short"}}), "options.typed.inner: too short"),
        (
            json!({"typed": {"type": "two", "inner": "x"}}),
            "options.typed.inner: unknown field; expected one of: type",
        ),
        (json!({"only": ""}), "options.only: must have 1 to 40 bytes"),
        (json!({"only": "A"}), "options.only: only"),
        (json!({"only": "a_"}), "options.only: only"),
        (json!({"only": "a\n"}), "options.only: only"),
        (json!({"only": "aê"}), "options.only: only"),
        (json!({"not": "a'"}), "options.not: not"),
        (json!({"not": "a^"}), "options.not: not"),
        (json!({"not": "a]"}), "options.not: not"),
        (json!({"not": "\ta"}), "options.not: not"),
        (json!({"not": "é"}), "options.not: not"),
        (json!({"before": "a=?"}), "options.before: before"),
        (json!({"before": "a>"}), "options.before: before"),
        (json!({"from": "a??>"}), "options.from: from"),
        (json!({"begin": "ab"}), "options.begin: begin"),
        (json!({"not_begin": "b*"}), "options.not_begin: not begin"),
        (json!({"not_end": "a//"}), "options.not_end: not end"),
        (json!({"not_end": "a."}), "options.not_end: not end"),
        (json!({"contain": "its"}), "options.contain: contain"),
        (json!({"not_contain": "a%2Eb"}), "options.not_contain: not contain"),
        (json!({"not_contain": "it's"}), "options.not_contain: not contain"),
        (json!({"not_be": "NO"}), "options.not_be: not be"),
        (json!({"not_be": "a|b"}), "options.not_be: not be"),
        (json!({"path": "/a"}), "options.path: path"),
        (json!({"path": "./a"}), "options.path: path"),
        (json!({"path": "."}), "options.path: path"),
        (json!({"path": "a/../b"}), "options.path: path"),
        (json!({"path": ".."}), "options.path: path"),
        (json!({"base64": "k_AAA"}), "options.base64: base64"),
        (json!({"base64": "k_AAA!"}), "options.base64: base64"),
        (json!({"base64": "k_AB=="}), "options.base64: base64"),
        (json!({"base64": "k_AAB="}), "options.base64: base64"),
        (json!({"base64": "k_A==="}), "options.base64: base64"),
        (json!({"base64": "k_AA==AAAA"}), "options.base64: base64"),
        (json!({"base64": "k_"}), "options.base64: decoded"),
        (json!({"base64": "k_AAAAAAA="}), "options.base64: decoded"),
        (json!({"base64": "k_AAAAAAAA"}), "options.base64: decoded"),
        (json!({"url": "host"}), "options.url: must begin with made:// or http://"),
        (json!({"url": "https://host"}), "options.url: must begin with made:// or http://"),
        (json!({"url": "http:///path"}), "options.url: is not a valid URL: empty host"),
        (json!({"url": "made://u:p@host/"}), "options.url: no user name"),
        (json!({"url": "http://host/#f"}), "options.url: must not contain a fragment (#)"),
    ];
    let good = good.into_iter().map(|options| (options, None));
    good.chain(bad.into_iter().map(|(options, says)| (options, Some(says)))).collect()
}

/// Configs of an endpoint, and what Rust and PostgreSQL say of them.
pub(crate) fn configs() -> Vec<(Value, Option<&'static str>)> {
    vec![
        (json!({"secret": "${POSTRIDER_SECRET_A}", "headers": {"x-a": "file:a", "b": "c"}}), None),
        (json!({"choice": "red", "object": {"inner": "x"}}), None),
        (json!({"choice": "it's"}), None),
        (json!({"choice": "red"}), Some("config.choice: needs config.object.inner")),
        (
            json!({"secret": "abc", "headers": {"X-Secret": "x"}}),
            Some("config.headers.x-secret: cannot stand beside config.secret"),
        ),
        (json!({"headers": {"our-a": "file:a"}}), Some("config.headers.our-a: is ours")),
        (
            json!({"map": {"a": "file:../a"}}),
            Some("config.map.a: refers to a file that is not below the directory of secrets"),
        ),
        (
            json!({"secrets": ["${HOME"]}),
            Some("config.secrets[0]: begins like a reference ${NAME} but does not end with }"),
        ),
    ]
}

/// Headers of a message, and what every interpreter says of them.
pub(crate) fn headers() -> Vec<(Value, Option<&'static str>)> {
    vec![
        (json!({"x-b": "${HOME}", "x-a": "7"}), None),
        (json!({"OUR-b": "x"}), Some("headers.OUR-b: is ours")),
        (json!({"X-Endpoint": "x"}), Some("headers.X-Endpoint: can be set by the endpoint only")),
        (json!({"X-A": "x"}), Some("headers.X-A: is no number")),
        (json!({"b": "\u{1}"}), Some("headers.b: has control characters")),
    ]
}

struct NoSink;

impl ProtocolConfig for NoSink {
    fn timeout(&self) -> Duration {
        super::TIMEOUT_DEFAULT
    }

    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Err(Failure::permanent("a protocol that does not exist").into())
    }
}

#[test]
fn rust_says_what_the_rules_say() {
    let object = |value: &Value| value.as_object().unwrap().clone();
    for (options, says) in options() {
        let checked = MADE_UP.check_message_options(&object(&options)).map_err(|invalid| invalid.to_string());
        assert_eq!(checked.err().as_deref(), says, "{options}");
    }
    for (config, says) in configs() {
        let checked = MADE_UP.read_config(&object(&config)).map(drop).map_err(|invalid| invalid.to_string());
        assert_eq!(checked.err().as_deref(), says, "{config}");
    }
    for (headers, says) in headers() {
        let checked = object(&headers).iter().try_for_each(|(name, value)| {
            let checked = MADE_UP.check_header(name, value.as_str().unwrap());
            checked.map_err(|rule| format!("headers.{name}: {rule}"))
        });
        assert_eq!(checked.err().as_deref(), says, "{headers}");
    }
}
