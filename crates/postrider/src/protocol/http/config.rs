//! Keys of the http protocol, the rules of their values, and the config made of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use url::Url;

use super::HttpSink;
use super::answer::RetryStatus;
use super::auth::{AUTH, Auth};
use super::proxy::{PROXY, PROXY_PASSWORD_NEEDS_USERNAME, PROXY_USERNAME_NEEDS_PASSWORD, ProxyConfig};
use super::signature::SigningKey;
use crate::endpoint::Endpoint;
use crate::error::Invalid;
use crate::protocol::cloudevents::{CLOUDEVENTS, CLOUDEVENTS_TYPE, CloudEventsMode, TYPE_NEEDS_CLOUDEVENTS};
use crate::protocol::headers::MapRules;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{Must, Ranges, Rule};
use crate::protocol::secret::Reference;
use crate::protocol::tls::{CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE, TLS, TlsConfig};
use crate::protocol::{CONNECT_TIMEOUT, ProtocolConfig, ProtocolDefinition, Relation, TIMEOUT, Then, config};
use crate::sink::{Environment, Sink, Undelivered};

pub(super) const URL_BYTES_MAX: usize = 2048;
const URL_SUFFIX_BYTES_MAX: usize = 2048;
/// A rotation of keys needs two. More would only make the signature header long.
const SIGNING_SECRETS_MAX: usize = 10;
pub(super) const NAME_BYTES_MAX: usize = 256;

pub(crate) const HTTP: ProtocolDefinition = ProtocolDefinition {
    name: "http",
    keys: KEYS,
    relations: RELATIONS,
    headers: &HEADERS,
    endpoint_headers: &["host"],
    read: |map| Ok(Arc::new(HttpConfig::read(map)?)),
};

const KEYS: &[ConfigKey] = &[
    ConfigKey::new("url", ValueKind::Text { bytes_max: URL_BYTES_MAX, rules: URL }).required(),
    ConfigKey::new("method", ValueKind::Text { bytes_max: 32, rules: METHOD })
        .default("\"POST\"")
        .per_message(),
    ConfigKey::new("headers", ValueKind::Map(&HEADERS)),
    TIMEOUT,
    CONNECT_TIMEOUT,
    AUTH,
    ConfigKey::new(
        "signing_secrets",
        ValueKind::Secrets { min: 1, max: SIGNING_SECRETS_MAX, rules: SIGNING_SECRET },
    ),
    CLOUDEVENTS,
    CLOUDEVENTS_TYPE,
    // A 2xx answer is a delivery.
    ConfigKey::new("retry_status", ValueKind::Codes { min: 300, max: 599, classes: &["3xx", "4xx", "5xx"] }),
    TLS,
    PROXY,
    ConfigKey::new("auto_disable_on_gone", ValueKind::Flag).default("false"),
    ConfigKey::new("max_redirects", ValueKind::Whole { min: 0, max: 10 }).default("0"),
    ConfigKey::new("http2", ValueKind::Flag),
    ConfigKey::new("url_suffix", ValueKind::Text { bytes_max: URL_SUFFIX_BYTES_MAX, rules: URL_SUFFIX })
        .message_only(),
];

const RELATIONS: &[Relation] = &[
    Relation {
        given: "auth",
        is: None,
        then: Then::NoHeader("authorization"),
        says: "cannot stand beside config.auth",
    },
    Relation {
        given: "cloudevents",
        is: Some("structured"),
        then: Then::NoHeader("content-type"),
        says: "cannot stand beside structured cloudevents, which have a content type of their own",
    },
    TYPE_NEEDS_CLOUDEVENTS,
    CERTIFICATE_NEEDS_KEY,
    KEY_NEEDS_CERTIFICATE,
    PROXY_USERNAME_NEEDS_PASSWORD,
    PROXY_PASSWORD_NEEDS_USERNAME,
];

pub(super) const VISIBLE: Ranges = &[('!', '~')];
/// What a token of HTTP is made of.
const TOKEN_CHARACTERS: Ranges = &[
    ('!', '!'),
    ('#', '\''),
    ('*', '+'),
    ('-', '.'),
    ('0', '9'),
    ('A', 'Z'),
    ('^', 'z'),
    ('|', '|'),
    ('~', '~'),
];

/// The parser drops or replaces these silently, but a stored URL should be the one that is used.
pub(super) const URL_CHARACTERS: Rule = Rule::new(
    Must::NotHave(&[
        ('\0', ' '),
        ('\u{7f}', '\u{a0}'),
        ('\u{1680}', '\u{1680}'),
        ('\u{2000}', '\u{200a}'),
        ('\u{2028}', '\u{2029}'),
        ('\u{202f}', '\u{202f}'),
        ('\u{205f}', '\u{205f}'),
        ('\u{3000}', '\u{3000}'),
        ('\\', '\\'),
    ]),
    "must not contain spaces, control characters or backslashes",
);

const URL: &[Rule] = &[
    URL_CHARACTERS,
    Rule::new(Must::BeUrl(&["http", "https"]), "must not contain a user name or password; use config.auth"),
];

const METHOD: &[Rule] = &[
    Rule::new(Must::OnlyHave(TOKEN_CHARACTERS), "is not a valid HTTP method"),
    Rule::new(Must::NotBe(&["CONNECT", "TRACE"]), "must not be CONNECT or TRACE"),
    // Methods are case-sensitive: a method "post" would be a mistake.
    Rule::new(Must::NotHave(&[('a', 'z')]), "must be in capitals"),
];

const SUFFIX_START: &str = "must start with one '/' or with '?'";
const SUFFIX_CHARACTERS: &str = "has a path or query that cannot be sent: invalid uri character";
const URL_SUFFIX: &[Rule] = &[
    Rule::new(Must::BeginWith(&["/", "?"]), SUFFIX_START),
    Rule::new(Must::NotBeginWith(&["//"]), SUFFIX_START),
    // Receivers decode dots before they walk a path.
    Rule::new(
        Must::NotContain(&["..", "%2e.", ".%2e", "%2e%2e", "#", "\\"]),
        "must not contain '..', '#' or a backslash",
    ),
    Rule::new(Must::OnlyHave(VISIBLE), "must be visible ASCII characters; percent-encode the others"),
    Rule::new(Must::NotHaveBefore('?', &[('<', '<'), ('>', '>'), ('`', '`')]), SUFFIX_CHARACTERS),
    Rule::new(Must::NotHaveFrom('?', &[('<', '<'), ('>', '>'), ('"', '"')]), SUFFIX_CHARACTERS),
];

const SIGNING_SECRET: &[Rule] = &[
    Rule::new(
        Must::BeginWith(&["whsec_", "whsk_"]),
        "must begin with whsec_ or whsk_, or be a reference to such a secret",
    ),
    Rule::new(Must::BeBase64After(&["whsec_", "whsk_"]), "must be base64 after its prefix"),
    Rule::new(
        Must::DecodeAfter("whsec_", &[(24, 64)]),
        "must be 24 to 64 bytes long after whsec_, once decoded",
    ),
    Rule::new(
        Must::DecodeAfter("whsk_", &[(32, 32), (64, 64)]),
        "must be a seed of 32 bytes after whsk_, or seed and public key together, once decoded",
    ),
];

pub(super) const HEADERS: MapRules = MapRules {
    names: &[
        Rule::new(Must::NotBe(&[""]), NO_HEADER_NAME),
        Rule::new(Must::OnlyHave(TOKEN_CHARACTERS), NO_HEADER_NAME),
        // They frame the request or belong to the connection, so only the sink may write them.
        Rule::new(
            Must::NotBe(&[
                "connection",
                "content-length",
                "expect",
                "keep-alive",
                "te",
                "trailer",
                "transfer-encoding",
                "upgrade",
                "http2-settings",
            ]),
            OF_THE_CONNECTION,
        ),
        Rule::new(Must::NotBeginWith(&["proxy-"]), OF_THE_CONNECTION),
        // Postrider writes these itself; receivers rely on them.
        Rule::new(
            Must::NotBeginWith(&["webhook-", "postrider-", "ce-"]),
            "cannot be set; headers beginning with webhook-, postrider-, ce- are Postrider's",
        ),
    ],
    // The parser lets other alphabets through, but receivers disagree about what their bytes mean.
    values: &[Rule::new(
        Must::OnlyHave(&[('\t', '\t'), (' ', '~')]),
        "must be visible ASCII characters, spaces and tabs",
    )],
    values_of: &[(
        "host",
        &[Rule::new(Must::NotBe(&[""]), NO_HOST), Rule::new(Must::OnlyHave(HOST_CHARACTERS), NO_HOST)],
    )],
};

const NO_HEADER_NAME: &str = "is not a valid header name";
const OF_THE_CONNECTION: &str = "belongs to the connection and cannot be set";
const NO_HOST: &str = "must be a host name with an optional port";
const HOST_CHARACTERS: Ranges =
    &[('A', 'Z'), ('a', 'z'), ('0', ':'), ('-', '.'), ('_', '_'), ('[', '['), (']', ']')];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpConfig {
    #[serde(deserialize_with = "url")]
    pub(super) url: Url,
    #[serde(deserialize_with = "method")]
    pub(super) method: Method,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) timeout: Duration,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) connect_timeout: Duration,
    pub(super) auth: Option<Auth>,
    #[serde(default)]
    pub(super) signing_secrets: Vec<String>,
    pub(super) cloudevents: Option<CloudEventsMode>,
    /// Of messages without an event type.
    pub(super) cloudevents_type: String,
    #[serde(default)]
    pub(super) retry_status: RetryStatus,
    #[serde(default)]
    pub(super) tls: TlsConfig,
    pub(super) proxy: Option<ProxyConfig>,
    auto_disable_on_gone: bool,
    pub(super) max_redirects: u64,
    pub(super) http2: Option<bool>,
}

impl HttpConfig {
    fn read(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let config: Self = config::read(KEYS, map)?;
        config.tls.check()?;
        check_target("url", &config.url)?;
        config.auth.as_ref().map_or(Ok(()), Auth::check)?;
        config.proxy.as_ref().map_or(Ok(()), ProxyConfig::check)?;
        for (at, secret) in config.signing_secrets.iter().enumerate() {
            if !Reference::is_one(secret) {
                SigningKey::parse(secret).map_err(|error| {
                    Invalid::new(format!("config.signing_secrets[{at}]"), error.to_string())
                })?;
            }
        }
        for (name, text) in config.headers.iter().filter(|(_, text)| !Reference::is_one(text)) {
            header(name, text).map_err(|rule| Invalid::new(format!("config.headers.{name}"), rule))?;
        }
        Ok(config)
    }
}

impl ProtocolConfig for HttpConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn auto_disable_on_gone(&self) -> bool {
        self.auto_disable_on_gone
    }

    fn texts_made_of(&self, secret: &str) -> Vec<String> {
        let of_auth = self.auth.iter().flat_map(|auth| auth.texts_made_of(secret));
        let of_proxy = self.proxy.iter().flat_map(|proxy| proxy.texts_made_of(secret));
        of_auth.chain(of_proxy).collect()
    }

    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(HttpSink::connect(self, endpoint, environment)?))
    }
}

/// A header that an endpoint or a message may set.
pub(super) fn header(name: &str, text: &str) -> Result<(HeaderName, HeaderValue), String> {
    HEADERS.check_name(name)?;
    HEADERS.check_value(name, text)?;
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| NO_HEADER_NAME)?;
    if name == http::header::HOST && !is_authority(text) {
        return Err(NO_HOST.to_owned());
    }
    let value = HeaderValue::from_str(text).map_err(|error| error.to_string())?;
    Ok((name, value))
}

/// Finer than the table can say: a host, or an address in brackets, and a port.
fn is_authority(text: &str) -> bool {
    let (host_fits, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, behind) = rest.split_once(']').unwrap_or_default();
            (is_made_of(address, |byte| byte.is_ascii_hexdigit() || b":.".contains(&byte)), behind)
        }
        None => {
            let (name, behind) = text.split_at(text.find(':').unwrap_or(text.len()));
            (is_made_of(name, |byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)), behind)
        }
    };
    let port_fits = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    host_fits && port_fits
}

fn is_made_of(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(allowed)
}

/// What a message says for itself, as checked when it was sent.
pub(super) struct HttpOptions<'m> {
    pub(super) method: Option<&'m str>,
    pub(super) url_suffix: Option<&'m str>,
}

impl<'m> HttpOptions<'m> {
    pub(super) fn of(options: &'m Map<String, Value>) -> Self {
        let text = |key: &str| options.get(key).and_then(Value::as_str);
        Self { method: text("method"), url_suffix: text("url_suffix") }
    }
}

/// Finer than the table can say.
pub(super) fn check_target(key: &str, url: &Url) -> Result<(), Invalid> {
    let sent = super::origin::uri(super::origin::target_of(url));
    let refused = |_| Invalid::new(format!("config.{key}"), "has a path or query that cannot be sent");
    sent.map(drop).map_err(refused)
}

pub(super) fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    Url::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn method<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Method, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}
