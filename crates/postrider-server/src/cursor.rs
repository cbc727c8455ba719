//! Where a list or a sweep continues, as text. Opaque to clients: what is in it may change.

use std::fmt::Display;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn written(place: impl Display) -> String {
    URL_SAFE_NO_PAD.encode(place.to_string())
}

/// For a place that is more than one value.
pub(crate) fn written_json(place: &impl Serialize) -> String {
    written(serde_json::to_string(place).expect("a place becomes JSON"))
}

pub(crate) fn read_json<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(&read::<String>(text)?).ok()
}

pub(crate) fn read<T: FromStr>(text: &str) -> Option<T> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}
