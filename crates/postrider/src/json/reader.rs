//! Parses text that serde has checked to be JSON. Serde's own values lose digits of numbers, and its raw values would be
//! parsed again at every level.

use std::collections::BTreeMap;

use super::{DEPTH_MAX, Json, Number, not_json, too_deep};

const CLOSED: &str = "serde found the end of every value";

/// Checks what serde has not: the escapes of strings, the size of numbers, and the depth.
pub(super) fn read(text: &str) -> Result<Json, String> {
    JsonReader { text, at: 0 }.value(DEPTH_MAX)
}

struct JsonReader<'a> {
    text: &'a str,
    at: usize,
}

impl JsonReader<'_> {
    fn value(&mut self, depth: usize) -> Result<Json, String> {
        let deeper = || depth.checked_sub(1).ok_or_else(too_deep);
        Ok(match self.peek() {
            b'n' => self.word("null", Json::Null),
            b't' => self.word("true", Json::Flag(true)),
            b'f' => self.word("false", Json::Flag(false)),
            b'"' => Json::Text(self.string()?),
            b'[' => Json::List(self.items(deeper()?)?),
            b'{' => Json::Object(self.members(deeper()?)?),
            _ => Json::Number(self.number()?),
        })
    }

    fn word(&mut self, word: &str, value: Json) -> Json {
        self.at += word.len();
        value
    }

    fn items(&mut self, depth: usize) -> Result<Vec<Json>, String> {
        let mut items = Vec::new();
        while self.has_another(b']') {
            items.push(self.value(depth)?);
        }
        Ok(items)
    }

    fn members(&mut self, depth: usize) -> Result<BTreeMap<String, Json>, String> {
        let mut members = BTreeMap::new();
        while self.has_another(b'}') {
            let key = self.string()?;
            self.step();
            members.insert(key, self.value(depth)?);
        }
        Ok(members)
    }

    /// Skips the bracket or comma before the next item, or the bracket after the last.
    fn has_another(&mut self, end: u8) -> bool {
        let is_last = self.step() == end;
        let is_empty = !is_last && self.peek() == end;
        if is_empty {
            self.step();
        }
        !is_last && !is_empty
    }

    fn string(&mut self) -> Result<String, String> {
        let start = self.at;
        let mut end = start + 1;
        loop {
            end += self.text[end..].find('"').expect(CLOSED);
            let backslashes = self.text[start..end].bytes().rev().take_while(|byte| *byte == b'\\').count();
            end += 1;
            if backslashes % 2 == 0 {
                break;
            }
        }
        self.at = end;
        let quoted = &self.text[start..end];
        if quoted.contains('\\') {
            serde_json::from_str(quoted).map_err(not_json)
        } else {
            Ok(quoted[1..quoted.len() - 1].to_owned())
        }
    }

    fn number(&mut self) -> Result<Number, String> {
        let rest = &self.text[self.at..];
        let is_part = |byte: u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = rest.bytes().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        self.at += length;
        Number::parse(&rest[..length])
    }

    fn step(&mut self) -> u8 {
        let byte = self.peek();
        self.at += 1;
        byte
    }

    /// The next byte that is not whitespace.
    fn peek(&mut self) -> u8 {
        loop {
            match *self.text.as_bytes().get(self.at).expect(CLOSED) {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return byte,
            }
        }
    }
}
