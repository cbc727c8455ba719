//! Which headers an endpoint or a message may set, and which of them are secrets.

use std::collections::HashSet;

use http::{HeaderName, HeaderValue};

use crate::error::Invalid;

/// They frame the request or belong to the connection, so only the sink may write them.
pub(crate) const OF_THE_CONNECTION: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Postrider writes these itself; receivers rely on them.
pub(crate) const OF_POSTRIDER: [&str; 3] = ["webhook-", "postrider-", "ce-"];

/// A header with one of these in its name holds a credential as a rule.
const SECRET_WORDS: [&str; 9] =
    ["auth", "cookie", "api-key", "apikey", "token", "secret", "password", "credential", "access-key"];

/// Errors name the field as `<within>.<name>`, with the name as it was typed.
pub fn check<'a>(
    within: &str,
    headers: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<(), Invalid> {
    let mut seen = HashSet::with_capacity(headers.len());
    for (typed, text) in headers {
        let invalid = |rule: String| Invalid::new(format!("{within}.{typed}"), rule);
        let name = name(typed).map_err(invalid)?;
        value(&name, text).map_err(invalid)?;
        if !seen.insert(name) {
            return Err(invalid("is given twice; names of headers ignore case".to_owned()));
        }
    }
    Ok(())
}

/// The name, if an endpoint or a message may set it.
pub fn name(typed: &str) -> Result<HeaderName, String> {
    let name = HeaderName::from_bytes(typed.as_bytes()).map_err(|_| "is not a valid header name")?;
    if OF_THE_CONNECTION.contains(&name.as_str()) {
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
