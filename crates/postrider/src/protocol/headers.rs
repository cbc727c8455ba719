//! Which headers an endpoint or a message may set, and which of them are secrets.

use std::collections::{BTreeMap, HashSet};

use http::{HeaderName, HeaderValue};

use crate::error::Invalid;

/// They frame the request or belong to the connection, so only the sink may write them.
pub(crate) const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// So do those that begin like this.
pub(crate) const OF_THE_PROXY: &str = "proxy-";

/// Postrider writes these itself; receivers rely on them.
pub(crate) const OF_POSTRIDER: [&str; 3] = ["webhook-", "postrider-", "ce-"];

pub(crate) const TWICE: &str = "is given twice; names of headers ignore case";
pub(crate) const KEPT: &str = "is set by the endpoint, which does not let messages replace it";

/// A header with one of these in its name holds a credential as a rule.
pub(crate) const SECRET_WORDS: [&str; 9] =
    ["auth", "cookie", "api-key", "apikey", "token", "secret", "password", "credential", "access-key"];

/// What `auth` of an endpoint sets, whatever its type.
pub(crate) const OF_AUTH: &str = "authorization";

/// Of an endpoint. Errors name the field as `<within>.<name>`, with the name as it was typed.
pub(super) fn check(within: &str, headers: &[(&str, &str)]) -> Result<(), Invalid> {
    none_twice(within, headers.iter().map(|(name, _)| name))?;
    headers.iter().try_for_each(|(typed, text)| {
        name(typed).and_then(|name| value(&name, text)).map(drop).map_err(|rule| at(within, typed, rule))
    })
}

/// Of a message.
pub(super) fn check_of_message(headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
    headers.iter().try_for_each(|(typed, text)| {
        let name = name_of_message(typed);
        name.and_then(|name| value(&name, text)).map(drop).map_err(|rule| at("headers", typed, rule))
    })
}

/// A receiver would get one of them, and no sender could tell which.
pub(crate) fn none_twice(
    within: &str,
    names: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<(), Invalid> {
    let mut seen = HashSet::new();
    names.into_iter().try_for_each(|name| match seen.insert(name.as_ref().to_ascii_lowercase()) {
        true => Ok(()),
        false => Err(at(within, name.as_ref(), TWICE)),
    })
}

fn at(within: &str, name: &str, rule: impl Into<String>) -> Invalid {
    Invalid::new(format!("{within}.{name}"), rule)
}

/// The name, if a message may set it at some endpoint.
pub(crate) fn name_of_message(typed: &str) -> Result<HeaderName, String> {
    match name(typed)? {
        http::header::HOST => Err("can be set by the endpoint only".to_owned()),
        name => Ok(name),
    }
}

/// The name, if an endpoint or a message may set it.
pub fn name(typed: &str) -> Result<HeaderName, String> {
    let name = HeaderName::from_bytes(typed.as_bytes()).map_err(|_| "is not a valid header name")?;
    if OF_THE_CONNECTION.contains(&name.as_str()) || name.as_str().starts_with(OF_THE_PROXY) {
        return Err("belongs to the connection and cannot be set".to_owned());
    }
    if OF_POSTRIDER.iter().any(|prefix| name.as_str().starts_with(prefix)) {
        return Err(format!(
            "cannot be set; headers beginning with {} are Postrider's",
            OF_POSTRIDER.join(", ")
        ));
    }
    Ok(name)
}

pub fn value(name: &HeaderName, text: &str) -> Result<HeaderValue, String> {
    if name == http::header::HOST && !is_authority(text) {
        return Err("must be a host name with an optional port".to_owned());
    }
    // The parser lets other alphabets through, but receivers disagree about what their bytes mean.
    let parsed = HeaderValue::from_str(text).ok().filter(|_| text.is_ascii());
    parsed.ok_or_else(|| "must be visible ASCII characters, spaces and tabs".to_owned())
}

pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// An empty text stands for a secret that is not known yet.
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
    text.is_empty() || (host_fits && port_fits)
}

fn is_made_of(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(allowed)
}
