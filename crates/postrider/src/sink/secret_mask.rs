//! Removes the endpoint's secrets from captured answers and from errors: a receiver may echo what it was sent.

use bytes::Bytes;

use super::{Environment, Shortage, secrets_of};
use crate::endpoint::Endpoint;

/// Replaces a secret.
const MASK: &[u8] = b"***";
/// Shorter secrets would match in every text.
const MASKED_BYTES_MIN: usize = 4;

/// The secrets of an endpoint, as they were when its sink was connected.
pub(crate) struct SecretMask(Vec<Vec<u8>>);

impl SecretMask {
    /// A secret that holds another one goes first.
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let forms = secrets.into_iter().flat_map(|secret| {
            let quoted = serde_json::to_string(&secret).unwrap_or_default();
            let quoted = quoted.trim_matches('"').to_owned();
            // As it is, and as a JSON string has it, if that differs.
            [Some(secret.clone()), Some(quoted).filter(|quoted| *quoted != secret)].into_iter().flatten()
        });
        Self(forms.map(String::into_bytes).filter(|secret| secret.len() >= MASKED_BYTES_MIN).collect())
    }

    /// Blocking: reads secrets from files.
    pub(crate) fn of(endpoint: &Endpoint, environment: &Environment) -> Result<Self, Shortage> {
        secrets_of(endpoint, environment).map(Self::new)
    }

    /// Masks these, too: secrets that the sink was given while it ran.
    pub(crate) fn and(&self, more: &[String]) -> Self {
        let mut all = Self::new(more.iter().cloned());
        all.0.extend_from_slice(&self.0);
        all
    }

    /// An answer of `bytes_max` was cut there.
    pub(crate) fn apply(&self, body: &Bytes, bytes_max: usize) -> Bytes {
        let is_cut = body.len() >= bytes_max;
        let mut masked = Vec::with_capacity(body.len());
        let mut left: &[u8] = body;
        while let Some((first, rest)) = left.split_first() {
            match self.secret_at(left, is_cut) {
                Some(length) => {
                    masked.extend_from_slice(MASK);
                    left = &left[length..];
                }
                None => {
                    masked.push(*first);
                    left = rest;
                }
            }
        }
        masked.into()
    }

    /// A whole text. A mask never cuts a character: secrets are texts, too.
    pub(crate) fn apply_to_text(&self, text: &str) -> String {
        let masked = self.apply(&Bytes::copy_from_slice(text.as_bytes()), usize::MAX);
        String::from_utf8_lossy(&masked).into_owned()
    }

    /// The length of a secret at the beginning of the text. At a cut, the beginning of a secret counts, too.
    fn secret_at(&self, text: &[u8], is_cut: bool) -> Option<usize> {
        let whole = self.0.iter().find(|secret| text.starts_with(secret)).map(Vec::len);
        let begun = || {
            let is_begun = is_cut
                && text.len() >= MASKED_BYTES_MIN
                && self.0.iter().any(|secret| secret.starts_with(text));
            is_begun.then_some(text.len())
        };
        whole.or_else(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(secrets: &[&str], body: &str, bytes_max: usize) -> String {
        let mask = SecretMask(secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect());
        let body = mask.apply(&Bytes::copy_from_slice(body.as_bytes()), bytes_max);
        String::from_utf8(body.to_vec()).expect("text")
    }

    #[test]
    fn every_secret_is_masked_wherever_it_stands() {
        let secrets = ["long-and-hush", "hush"];
        assert_eq!(masked(&secrets, "hush, hush: long-and-hush!", 100), "***, ***: ***!");
        assert_eq!(masked(&secrets, "nothing here, hus", 100), "nothing here, hus");
        assert_eq!(masked(&[], "hush", 100), "hush");
        assert_eq!(masked(&secrets, "", 100), "");
    }

    #[test]
    fn a_secret_that_was_cut_with_its_answer_is_masked_too() {
        assert_eq!(masked(&["long-and-hush"], "it is long-and-h", 16), "it is ***");
        assert_eq!(masked(&["long-and-hush"], "it is long-and-h", 17), "it is long-and-h", "it was not cut");
        assert_eq!(masked(&["long-and-hush"], "it is lon", 9), "it is lon", "too little to tell anything");
    }
}
