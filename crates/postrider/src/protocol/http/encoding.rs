//! Any text as a header value.

use http::HeaderValue;

use crate::protocol::headers::percent_encoded;

/// Decoding the percent signs gives the text back.
pub(super) fn header_value(text: &str) -> HeaderValue {
    owned(percent_encoded(text))
}

/// For a text that is made of visible ASCII characters by construction.
pub(super) fn owned(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).expect("the text is visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_header_cannot_carry_is_percent_encoded() {
        let cases = [
            ("order.created", "order.created"),
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("100%", "100%25"),
            ("a\"b\r\nc: d\0\u{7f}", "a%22b%0D%0Ac:%20d%00%7F"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(header_value(text), expected);
        }
    }
}
