//! Any text as a header value: what a header cannot carry is percent-encoded, as CloudEvents does it.

use http::HeaderValue;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Decoding the percent signs gives the text back. Plain texts go through as they are.
pub(super) fn header_value(text: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' | ..=b' ' | 0x7f.. => {
                encoded.push('%');
                encoded.push(char::from(HEX[usize::from(byte >> 4)]));
                encoded.push(char::from(HEX[usize::from(byte & 15)]));
            }
            plain => encoded.push(char::from(plain)),
        }
    }
    owned(encoded)
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
