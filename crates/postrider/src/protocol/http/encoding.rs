//! Texts as header values, and percent-encoded texts as bytes.

use http::HeaderValue;

use crate::protocol::headers::carried;

/// Decoding the percent signs gives the text back.
pub(super) fn header_value(text: &str) -> HeaderValue {
    owned(carried(text))
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
