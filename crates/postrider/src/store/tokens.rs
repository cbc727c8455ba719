//! Tokens of the API and their scopes. A store keeps only a digest of each.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use jiff::Timestamp;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Result;
use crate::error::{Invalid, StoreError};

/// Tokens of one store: every node keeps them all in mind.
pub const TOKENS_MAX: usize = 1000;
pub const TOKEN_NAME_BYTES_MAX: usize = 128;

const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const BEGIN: &str = "pr_";
const PREFIX_LETTERS: usize = 8;
/// Five bits each: 200 bits cannot be guessed, so a digest without salt is enough.
const SECRET_LETTERS: usize = 40;

/// Made, listed and revoked by people.
#[async_trait]
pub trait Tokens: Send + Sync + 'static {
    /// The answer is the only one that holds the token itself.
    async fn create_token(&self, token: NewToken) -> Result<IssuedToken>;
    /// Oldest first.
    async fn tokens(&self) -> Result<Vec<TokenRecord>>;
    /// By its prefix. Every node refuses it within a second. The last one only with `even_last`: without any,
    /// any client on loopback may do everything.
    async fn revoke_token(&self, prefix: &str, even_last: bool) -> Result<()>;
}

/// What a node needs to know whom it talks to.
#[async_trait]
pub trait Keyring: Send + Sync + 'static {
    async fn keys(&self) -> Result<Vec<TokenKey>>;
}

/// What a token is good for; the same three as the roles in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Everything.
    Admin,
    /// Send, publish, cancel, and look at single messages.
    Application,
    /// Read states and figures: no payloads, headers, configs of endpoints, filters, templates or schemas.
    Monitor,
}

impl Scope {
    pub const ALL: [Self; 3] = [Self::Admin, Self::Application, Self::Monitor];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Application => "application",
            Self::Monitor => "monitor",
        }
    }
}

impl FromStr for Scope {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| Invalid::new("scope", "must be one of admin, application, monitor"))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// For people: who holds it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub name: String,
    pub scope: Scope,
}

impl NewToken {
    pub fn check(&self) -> Result<(), Invalid> {
        let length = 1..=TOKEN_NAME_BYTES_MAX;
        if !length.contains(&self.name.len()) || self.name.chars().any(char::is_control) {
            let rule = format!("must have 1 to {TOKEN_NAME_BYTES_MAX} bytes and no control characters");
            return Err(Invalid::new("name", rule));
        }
        Ok(())
    }
}

/// A stored token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Token))]
pub struct TokenRecord {
    /// How it begins; enough to recognise it, not to use it.
    pub prefix: String,
    pub name: String,
    pub scope: Scope,
    pub created_at: Timestamp,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedToken {
    /// Shown once: the store does not know it.
    pub token: String,
    #[serde(flatten)]
    pub record: TokenRecord,
}

/// Never shows the token in a log.
impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken").field("record", &self.record).finish_non_exhaustive()
    }
}

/// What a presented token is compared with.
#[derive(Clone, Debug)]
pub struct TokenKey {
    pub prefix: String,
    pub scope: Scope,
    digest: [u8; 32],
}

impl TokenKey {
    pub(crate) fn new(prefix: String, scope: Scope, digest: &[u8]) -> Option<Self> {
        Some(Self { prefix, scope, digest: digest.try_into().ok()? })
    }

    /// Takes as long whatever the difference is.
    pub fn opens(&self, token: &str) -> bool {
        self.digest.ct_eq(&digest_of(token)).into()
    }
}

/// The keys that this version can read. A token that a newer version made opens nothing here.
pub(crate) fn usable(stored: Vec<(String, Option<TokenKey>)>) -> Result<Vec<TokenKey>> {
    let (mut keys, mut unreadable) = (Vec::new(), Vec::new());
    for (prefix, key) in stored {
        match key {
            Some(key) => keys.push(key),
            None => unreadable.push(prefix),
        }
    }
    if keys.is_empty() && !unreadable.is_empty() {
        // An empty list would let every client on loopback in.
        let prefixes = unreadable.join(", ");
        return Err(StoreError::Unusable(format!("no token can be read by this version: {prefixes}")));
    }
    for prefix in unreadable {
        tracing::warn!(prefix, "ignoring a token that this version cannot read");
    }
    Ok(keys)
}

/// A token before it is stored.
#[derive(Clone)]
pub(crate) struct Minted {
    token: String,
    pub(crate) prefix: String,
    pub(crate) digest: [u8; 32],
}

impl Minted {
    pub(crate) fn new() -> Self {
        let prefix = format!("{BEGIN}{}", letters(PREFIX_LETTERS));
        let token = format!("{prefix}_{}", letters(SECRET_LETTERS));
        Self { digest: digest_of(&token), prefix, token }
    }

    pub(crate) fn issued(self, new: NewToken, created_at: Timestamp) -> IssuedToken {
        let record = TokenRecord { prefix: self.prefix, name: new.name, scope: new.scope, created_at };
        IssuedToken { token: self.token, record }
    }
}

/// How a token begins: all of it that may be shown or logged. People also paste whole tokens where a prefix is wanted.
pub fn token_prefix(text: &str) -> &str {
    text.char_indices().nth(BEGIN.len() + PREFIX_LETTERS).map_or(text, |(end, _)| &text[..end])
}

fn digest_of(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn letters(count: usize) -> String {
    let mut dice = rand::rng();
    (0..count).map(|_| char::from(ALPHABET[dice.random_range(0..ALPHABET.len())])).collect()
}

pub(crate) fn too_many() -> StoreError {
    StoreError::Conflict(format!("there are {TOKENS_MAX} tokens already; revoke an unused one"))
}

pub(crate) fn is_last(prefix: &str) -> StoreError {
    StoreError::Conflict(format!(
        "token {prefix} is the last one; without any, any client on loopback may do everything"
    ))
}

pub(crate) fn unknown(prefix: &str) -> StoreError {
    StoreError::Unknown { what: "token", name: prefix.to_owned() }
}
