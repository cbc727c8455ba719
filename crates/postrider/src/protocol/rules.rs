//! Rules about texts, as data. This file reads them in Rust. `store/postgres/patterns.rs` turns them into regular
//! expressions, `store/sqlite/surface/rules.rs` into conditions. A new rule of a protocol needs no code in any of the three.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use url::Url;

/// What a text must be, and how the sentence ends that begins with the field of a text that is not.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub must: Must,
    pub says: &'static str,
}

/// First and last character of each range.
pub type Ranges = &'static [(char, char)];

#[derive(Clone, Copy, Debug)]
pub enum Must {
    OnlyHave(Ranges),
    NotHave(Ranges),
    /// In the part before the first of this character.
    NotHaveBefore(char, Ranges),
    /// In the part that begins with the first of this character.
    NotHaveFrom(char, Ranges),
    BeginWith(&'static [&'static str]),
    NotBeginWith(&'static [&'static str]),
    NotEndWith(&'static [&'static str]),
    Contain(&'static str),
    /// In any case; the list is in small letters.
    NotContain(&'static [&'static str]),
    NotBe(&'static [&'static str]),
    /// A relative path that never leaves the directory it starts in.
    BePathBelow,
    /// Of a text with one of these prefixes, the rest is base64.
    BeBase64After(&'static [&'static str]),
    /// Of a text with this prefix, the rest decodes to a number of bytes in one of these ranges.
    DecodeAfter(&'static str, &'static [(usize, usize)]),
    /// With one of these schemes, a host and no fragment; `says` is about user names and passwords, which it must not have.
    /// SQL looks no closer than that. Rust parses the URL.
    BeUrl(&'static [&'static str]),
}

pub(crate) const CONTROL: (char, char) = ('\u{7f}', '\u{9f}');
pub(crate) const ASCII_CONTROL: (char, char) = ('\0', '\u{1f}');

pub(crate) const NO_CONTROL: Rule =
    Rule::new(Must::NotHave(&[ASCII_CONTROL, CONTROL]), "must not contain control characters");

impl Rule {
    pub const fn new(must: Must, says: &'static str) -> Self {
        Self { must, says }
    }

    fn check(&self, text: &str) -> Result<(), String> {
        match self.must {
            Must::BeUrl(schemes) => check_url(text, schemes, self.says),
            must if must.holds(text) => Ok(()),
            _ => Err(self.says.to_owned()),
        }
    }
}

/// The first rule that the text breaks.
pub(super) fn check(rules: &[Rule], text: &str) -> Result<(), String> {
    rules.iter().try_for_each(|rule| rule.check(text))
}

impl Must {
    fn holds(&self, text: &str) -> bool {
        let has = |text: &str, ranges: Ranges| text.chars().any(|c| is_in(c, ranges));
        match *self {
            Self::OnlyHave(ranges) => text.chars().all(|c| is_in(c, ranges)),
            Self::NotHave(ranges) => !has(text, ranges),
            Self::NotHaveBefore(mark, ranges) => !has(&text[..place_of(mark, text)], ranges),
            Self::NotHaveFrom(mark, ranges) => !has(&text[place_of(mark, text)..], ranges),
            Self::BeginWith(prefixes) => prefixes.iter().any(|prefix| text.starts_with(prefix)),
            Self::NotBeginWith(prefixes) => !prefixes.iter().any(|prefix| text.starts_with(prefix)),
            Self::NotEndWith(suffixes) => !suffixes.iter().any(|suffix| text.ends_with(suffix)),
            Self::Contain(part) => text.contains(part),
            Self::NotContain(parts) => {
                let text = text.to_ascii_lowercase();
                !parts.iter().any(|part| text.contains(part))
            }
            Self::NotBe(texts) => !texts.contains(&text),
            Self::BePathBelow => is_path_below(text),
            Self::BeBase64After(prefixes) => {
                let encoded = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
                encoded.is_none_or(|encoded| BASE64_STANDARD.decode(encoded).is_ok())
            }
            Self::DecodeAfter(prefix, ranges) => text.strip_prefix(prefix).is_none_or(|encoded| {
                let bytes = BASE64_STANDARD.decode(encoded).map_or(0, |decoded| decoded.len());
                ranges.iter().any(|(min, max)| (*min..=*max).contains(&bytes))
            }),
            Self::BeUrl(schemes) => check_url(text, schemes, "").is_ok(),
        }
    }
}

fn is_in(c: char, ranges: Ranges) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

fn place_of(mark: char, text: &str) -> usize {
    text.find(mark).unwrap_or(text.len())
}

/// As [`std::path::Path::components`] walks it: `.` counts at the beginning only.
pub(super) fn is_path_below(path: &str) -> bool {
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    !path.starts_with('/') && first != "." && first != ".." && parts.all(|part| part != "..")
}

/// The schemes as people write them.
pub(crate) fn url_must_begin(schemes: &[&str]) -> String {
    let begins: Vec<String> = schemes.iter().map(|scheme| format!("{scheme}://")).collect();
    format!("must begin with {}", begins.join(" or "))
}

pub(crate) const URL_WITHOUT_HOST: &str = "is not a valid URL: empty host";
pub(crate) const URL_WITH_FRAGMENT: &str = "must not contain a fragment (#)";

fn check_url(text: &str, schemes: &[&str], with_userinfo: &str) -> Result<(), String> {
    let known = |scheme: &str| schemes.iter().any(|known| known.eq_ignore_ascii_case(scheme));
    let Some((_, rest)) = text.split_once("://").filter(|(scheme, _)| known(scheme)) else {
        return Err(url_must_begin(schemes));
    };
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if authority.is_empty() {
        return Err(URL_WITHOUT_HOST.to_owned());
    }
    if authority.contains('@') {
        return Err(with_userinfo.to_owned());
    }
    let url = Url::parse(text).map_err(|error| format!("is not a valid URL: {error}"))?;
    if url.fragment().is_some() {
        return Err(URL_WITH_FRAGMENT.to_owned());
    }
    if !url.has_host() || url.port() == Some(0) {
        return Err("must have a host, and a port other than 0 if it has one".to_owned());
    }
    Ok(())
}
