//! Texts as bytes that HTTP can carry: percent-encoding, hexadecimal digits, header values.

use http::HeaderValue;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Any text as a header value: what a header cannot carry is percent-encoded, as CloudEvents does it. Decoding the
/// percent signs gives the text back. Plain texts go through as they are.
pub(super) fn header_value(text: &str) -> HeaderValue {
    owned(percent_encoded(text.as_bytes(), |byte| !matches!(byte, b'"' | b'%' | ..=b' ' | 0x7f..)))
}

/// `is_plain` says which bytes stay as they are; they must be ASCII.
pub(super) fn percent_encoded(bytes: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
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

/// A percent sign that two digits do not follow stays.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut decoded = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let Some((first, rest)) = left.split_first() {
        let escaped = match (first, rest) {
            (b'%', [high, low, ..]) => digit(high).zip(digit(low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                decoded.push((high * 16 + low) as u8);
                left = &rest[2..];
            }
            None => {
                decoded.push(*first);
                left = rest;
            }
        }
    }
    decoded
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
            assert_eq!(percent_decoded(expected), text.as_bytes());
        }
    }

    #[test]
    fn what_is_no_escape_is_not_decoded() {
        assert_eq!(percent_decoded("%e2%82%ac %2 %zz %"), "€ %2 %zz %".as_bytes());
    }
}
