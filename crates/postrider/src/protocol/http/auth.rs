//! The key `auth` of a config: how an endpoint proves to its receiver who sends.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;
use url::{Url, form_urlencoded};

use super::config::{self, NAME_BYTES_MAX, URL_BYTES_MAX, URL_CHARACTERS};
use crate::error::Invalid;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{ASCII_CONTROL, CONTROL, Must, NO_CONTROL, Ranges, Rule};

const SCOPE_BYTES_MAX: usize = 1024;

pub(super) const AUTH: ConfigKey = ConfigKey::new(
    "auth",
    ValueKind::Typed(&[("basic", BASIC), ("bearer", BEARER), ("oauth2", OAUTH2), ("aws_sigv4", AWS_SIGV4)]),
);

const BASIC: &[ConfigKey] = &[
    ConfigKey::new("username", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: USERNAME }).required(),
    ConfigKey::new("password", ValueKind::Secret(&[NO_CONTROL])).required(),
];

const BEARER: &[ConfigKey] = &[ConfigKey::new("token", ValueKind::Secret(TOKEN)).required()];

const OAUTH2: &[ConfigKey] = &[
    ConfigKey::new("token_url", ValueKind::Text { bytes_max: URL_BYTES_MAX, rules: TOKEN_URL }).required(),
    ConfigKey::new("client_id", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: &[NO_CONTROL] })
        .required(),
    ConfigKey::new("client_secret", ValueKind::Secret(&[NO_CONTROL])).required(),
    ConfigKey::new("scope", ValueKind::Text { bytes_max: SCOPE_BYTES_MAX, rules: SCOPE }),
    ConfigKey::new("audience", ValueKind::Text { bytes_max: SCOPE_BYTES_MAX, rules: &[NO_CONTROL] }),
    ConfigKey::new("client_auth", ValueKind::Choice(&["basic", "body"])),
];

const AWS_SIGV4: &[ConfigKey] = &[
    ConfigKey::new("access_key_id", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: AWS_NAME })
        .required(),
    ConfigKey::new("secret_access_key", ValueKind::Secret(TOKEN)).required(),
    ConfigKey::new("region", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: AWS_NAME }).required(),
    ConfigKey::new("service", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: AWS_NAME }).required(),
    ConfigKey::new("session_token", ValueKind::Secret(TOKEN)),
];

pub(super) const USERNAME: &[Rule] = &[Rule::new(
    Must::NotHave(&[(':', ':'), ASCII_CONTROL, CONTROL]),
    "must not contain ':' or control characters",
)];

const NO_TOKEN: &str = "must be visible ASCII characters without spaces";
const TOKEN: &[Rule] =
    &[Rule::new(Must::NotBe(&[""]), NO_TOKEN), Rule::new(Must::OnlyHave(config::VISIBLE), NO_TOKEN)];

const TOKEN_URL: &[Rule] = &[
    URL_CHARACTERS,
    Rule::new(
        Must::BeUrl(&["http", "https"]),
        "must not contain a user name or password; use client_id and client_secret",
    ),
];

/// As RFC 6749 has it: names with a space between them.
const SCOPE: &[Rule] = &[Rule::new(
    Must::OnlyHave(&[(' ', '!'), ('#', '['), (']', '~')]),
    "must be visible ASCII characters and spaces, without quotes and backslashes",
)];

/// They are parts of a list with '/' and ',' between them.
const AWS_NAME_CHARACTERS: Ranges = &[('a', 'z'), ('A', 'Z'), ('0', '9'), ('-', '.'), ('_', '_')];
const AWS_NAME: &[Rule] =
    &[Rule::new(Must::OnlyHave(AWS_NAME_CHARACTERS), "must be letters, digits, '-', '_' and '.'")];

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Auth {
    Basic {
        username: String,
        password: String,
    },
    Bearer {
        token: String,
    },
    #[serde(rename = "oauth2")]
    OAuth2(OAuth2Config),
    AwsSigv4(SigV4Config),
}

#[derive(Deserialize)]
pub(super) struct OAuth2Config {
    #[serde(deserialize_with = "config::url")]
    pub(super) token_url: Url,
    pub(super) client_id: String,
    pub(super) client_secret: String,
    pub(super) scope: Option<String>,
    pub(super) audience: Option<String>,
    #[serde(default)]
    pub(super) client_auth: ClientAuth,
}

/// Where the token endpoint looks for the client's credentials.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClientAuth {
    #[default]
    Basic,
    Body,
}

#[derive(Deserialize)]
pub(super) struct SigV4Config {
    pub(super) access_key_id: String,
    pub(super) secret_access_key: String,
    pub(super) region: String,
    pub(super) service: String,
    pub(super) session_token: Option<String>,
}

impl Auth {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::OAuth2(OAuth2Config { token_url, .. }) => config::check_target("auth.token_url", token_url),
            Self::Basic { .. } | Self::Bearer { .. } | Self::AwsSigv4(_) => Ok(()),
        }
    }

    /// What is sent instead of the secret.
    pub(super) fn texts_made_of(&self, secret: &str) -> Vec<String> {
        match self {
            Self::Basic { username, .. } => vec![basic(username, secret)],
            Self::OAuth2(OAuth2Config { client_id, .. }) => {
                vec![form_encoded(secret), client_basic(client_id, secret)]
            }
            Self::Bearer { .. } | Self::AwsSigv4(_) => Vec::new(),
        }
    }
}

/// User name and password as a request carries them.
pub(super) fn basic(username: &str, password: &str) -> String {
    BASE64_STANDARD.encode(format!("{username}:{password}"))
}

/// RFC 6749 (section 2.3.1) encodes both as a form would, so that either may contain ':'.
pub(super) fn client_basic(client_id: &str, client_secret: &str) -> String {
    basic(&form_encoded(client_id), &form_encoded(client_secret))
}

pub(super) fn form_encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
