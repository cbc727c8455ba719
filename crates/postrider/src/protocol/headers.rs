//! Maps of names and texts, such as headers: what an endpoint or a message may set, and what of it is secret.

use std::collections::HashSet;

use super::rules::{self, Rule};
use crate::error::Invalid;

/// What names and values of a map may be.
#[derive(Debug)]
pub struct MapRules {
    /// About the name in small letters.
    pub names: &'static [Rule],
    pub values: &'static [Rule],
    /// About the values of single names, before the rules for all.
    pub values_of: &'static [(&'static str, &'static [Rule])],
}

/// A map that may hold anything.
pub const ANYTHING: MapRules = MapRules { names: &[], values: &[], values_of: &[] };

pub(crate) const TWICE: &str = "is given twice; names of headers ignore case";
pub(crate) const KEPT: &str = "is set by the endpoint, which does not let messages replace it";
pub(crate) const ENDPOINT_ONLY: &str = "can be set by the endpoint only";

/// A header with one of these in its name usually holds a credential.
pub(crate) const SECRET_WORDS: [&str; 9] =
    ["auth", "cookie", "api-key", "apikey", "token", "secret", "password", "credential", "access-key"];

impl MapRules {
    pub(crate) fn check_name(&self, name: &str) -> Result<(), String> {
        rules::check(self.names, &name.to_ascii_lowercase())
    }

    pub(crate) fn check_value(&self, name: &str, text: &str) -> Result<(), String> {
        let own = self.values_of.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        own.map_or(Ok(()), |(_, own)| rules::check(own, text))?;
        rules::check(self.values, text)
    }
}

/// A receiver would get only one of them, and the sender could not tell which.
pub(crate) fn none_twice(
    within: &str,
    names: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<(), Invalid> {
    let mut seen = HashSet::new();
    names.into_iter().try_for_each(|name| match seen.insert(name.as_ref().to_ascii_lowercase()) {
        true => Ok(()),
        false => Err(Invalid::new(format!("{within}.{}", name.as_ref()), TWICE)),
    })
}

pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Any text as the value of a header: what a header cannot carry is percent-encoded, as CloudEvents does it. Plain texts
/// stay as they are.
pub(crate) fn carried(text: &str) -> String {
    percent_encoded(text.as_bytes(), |byte| !matches!(byte, b'"' | b'%' | ..=b' ' | 0x7f..))
}

/// `is_plain` says which bytes stay as they are; they must be ASCII.
pub(crate) fn percent_encoded(bytes: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for &byte in bytes {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(HEX[usize::from(byte >> 4)]));
            encoded.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    encoded
}
