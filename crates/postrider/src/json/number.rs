//! A number with all digits as written. Two numbers are equal if their values are.

use std::cmp::Ordering;
use std::fmt;

/// The limits of PostgreSQL's numeric: digits before and after the point.
const WHOLE_DIGITS_MAX: i64 = 131_072;
const DECIMALS_MAX: i64 = 16_383;
const EXPONENT_MAX: i64 = i32::MAX as i64 / 2;
const OUT_OF_RANGE: &str = "has a number that is out of range";

#[derive(Clone, Debug)]
pub struct Number(Box<str>);

impl Number {
    /// `text` is a number as JSON writes it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let number = Self(text.into());
        // The quick way for most numbers.
        if text.len() as i64 <= DECIMALS_MAX && !text.contains(['e', 'E']) {
            return Ok(number);
        }
        let parts = number.parts();
        let fits = parts.exponent.abs() < EXPONENT_MAX
            && number.decimals() <= DECIMALS_MAX
            && number.value().point <= WHOLE_DIGITS_MAX;
        if fits { Ok(number) } else { Err(OUT_OF_RANGE.to_owned()) }
    }

    /// True for 1.0 and 1e2.
    pub fn is_integer(&self) -> bool {
        let value = self.value();
        value.digits.len() as i64 <= value.point.max(0)
    }

    /// Not negative and written without a fraction: false for 1.0, true for 1e2.
    pub fn is_whole(&self) -> bool {
        self.decimals() == 0 && self.value().sign >= 0
    }

    /// Digits after the point when it is written without an exponent.
    fn decimals(&self) -> i64 {
        let parts = self.parts();
        (parts.decimals.len() as i64 - parts.exponent).max(0)
    }

    fn parts(&self) -> NumberParts<'_> {
        let (mantissa, exponent) = match self.0.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse().unwrap_or(EXPONENT_MAX)),
            None => (&*self.0, 0),
        };
        let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        NumberParts {
            negative: whole.starts_with('-'),
            whole: whole.trim_start_matches('-'),
            decimals,
            exponent,
        }
    }

    fn value(&self) -> Decimal {
        let NumberParts { negative, whole, decimals, exponent } = self.parts();
        let digits = [whole, decimals].concat();
        let significant = digits.trim_start_matches('0');
        let point = whole.len() as i64 - (digits.len() - significant.len()) as i64 + exponent;
        let digits = significant.trim_end_matches('0').to_owned();
        match (digits.is_empty(), negative) {
            (true, _) => Decimal { sign: 0, point: 0, digits },
            (false, true) => Decimal { sign: -1, point, digits },
            (false, false) => Decimal { sign: 1, point, digits },
        }
    }
}

struct NumberParts<'a> {
    negative: bool,
    whole: &'a str,
    decimals: &'a str,
    exponent: i64,
}

/// 0.digits times ten to the power of `point`, with no zero at either end.
#[derive(PartialEq, Eq)]
struct Decimal {
    sign: i8,
    point: i64,
    digits: String,
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.value() == other.value()
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let (left, right) = (self.value(), other.value());
        let size = (left.point, &left.digits).cmp(&(right.point, &right.digits));
        let by_size = if left.sign < 0 { size.reverse() } else { size };
        Some(left.sign.cmp(&right.sign).then(by_size))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<serde_json::Number> for Number {
    fn from(number: serde_json::Number) -> Self {
        Self(number.to_string().into())
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self(number.to_string().into())
    }
}
