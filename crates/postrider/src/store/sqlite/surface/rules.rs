//! Rules about texts as conditions of SQLite, which has no regular expressions: GLOB finds ranges of characters, instr() finds texts.

use crate::protocol::rules::{URL_WITH_FRAGMENT, URL_WITHOUT_HOST, url_must_begin};
use crate::protocol::{MapRules, Must, Ranges, Rule};

/// The conditions that are true of a text which breaks a rule, and what is said of it. `text` is an expression.
pub(super) fn broken(rules: &[Rule], text: &str) -> Vec<(String, String)> {
    rules.iter().flat_map(|rule| broken_rule(rule, text)).collect()
}

/// The same of the values of a map, in a row of `json_each`.
pub(super) fn broken_values(map: &MapRules) -> Vec<(String, String)> {
    let single = map.values_of.iter().flat_map(|(name, own)| {
        let of_name = move |(when, says)| (format!("lower(key) = {} AND ({when})", quoted(name)), says);
        broken(own, "value").into_iter().map(of_name)
    });
    single.chain(broken(map.values, "value")).collect()
}

fn broken_rule(rule: &Rule, text: &str) -> Vec<(String, String)> {
    if let Must::BeUrl(schemes) = rule.must {
        return broken_url(schemes, text, rule.says);
    }
    vec![(condition(rule.must, text), rule.says.to_owned())]
}

fn condition(must: Must, text: &str) -> String {
    let begins = |prefix: &&str| begins(text, prefix);
    match must {
        Must::OnlyHave(ranges) => has(text, &complement(ranges)),
        Must::NotHave(ranges) => has(text, ranges),
        Must::NotHaveBefore(mark, ranges) => {
            has(&format!("substr({text}, 1, {} - 1)", place_of(mark, text)), ranges)
        }
        Must::NotHaveFrom(mark, ranges) => has(&format!("substr({text}, {})", place_of(mark, text)), ranges),
        Must::BeginWith(prefixes) => format!("NOT ({})", any(prefixes.iter().map(begins))),
        Must::NotBeginWith(prefixes) => any(prefixes.iter().map(begins)),
        Must::NotEndWith(suffixes) => any(suffixes
            .iter()
            .map(|suffix| format!("substr({text}, -{}) = {}", suffix.chars().count(), quoted(suffix)))),
        Must::Contain(part) => format!("instr({text}, {}) = 0", quoted(part)),
        Must::NotContain(parts) => {
            any(parts.iter().map(|part| format!("instr(lower({text}), {}) > 0", quoted(part))))
        }
        Must::NotBe(texts) => any(texts.iter().map(|other| format!("{text} = {}", quoted(other)))),
        Must::BePathBelow => {
            format!(
                "{text} GLOB '/*' OR {text} = '.' OR {text} GLOB './*' OR '/' || {text} || '/' GLOB '*/../*'"
            )
        }
        Must::BeBase64After(prefixes) => any(prefixes
            .iter()
            .map(|prefix| format!("({} AND ({}))", begins(prefix), is_no_base64(&after(prefix, text))))),
        Must::DecodeAfter(prefix, ranges) => {
            let bytes = format!("length(rtrim({}, '=')) * 3 / 4", after(prefix, text));
            let fits = any(ranges.iter().map(|(min, max)| format!("{bytes} BETWEEN {min} AND {max}")));
            format!("({} AND NOT ({fits}))", begins(&prefix))
        }
        Must::BeUrl(schemes) => {
            any(broken_url(schemes, text, "").into_iter().map(|(when, _)| format!("({when})")))
        }
    }
}

/// What Rust finds when it parses the URL is left to Rust.
fn broken_url(schemes: &[&str], text: &str, with_userinfo: &str) -> Vec<(String, String)> {
    let scheme = |scheme: &&str| begins(&format!("lower({text})"), &format!("{scheme}://"));
    let rest = format!("substr({text}, instr({text}, '://') + 3)");
    let ends = ['/', '?', '#'].map(|mark| place_of(mark, &rest)).join(", ");
    let authority = format!("substr({rest}, 1, min({ends}) - 1)");
    vec![
        (format!("NOT ({})", any(schemes.iter().map(scheme))), url_must_begin(schemes)),
        (format!("{authority} = ''"), URL_WITHOUT_HOST.to_owned()),
        (format!("instr({authority}, '@') > 0"), with_userinfo.to_owned()),
        (format!("instr({text}, '#') > 0"), URL_WITH_FRAGMENT.to_owned()),
    ]
}

fn any(conditions: impl Iterator<Item = String>) -> String {
    conditions.collect::<Vec<_>>().join(" OR ")
}

pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn begins(text: &str, prefix: &str) -> String {
    format!("substr({text}, 1, {}) = {}", prefix.chars().count(), quoted(prefix))
}

fn after(prefix: &str, text: &str) -> String {
    format!("substr({text}, {})", prefix.chars().count() + 1)
}

/// Of the first such character; behind the text when there is none.
fn place_of(mark: char, text: &str) -> String {
    let mark = quoted(&mark.to_string());
    format!("instr({text} || {mark}, {mark})")
}

fn is_no_base64(text: &str) -> String {
    format!(
        "length({text}) % 4 <> 0 OR length({text}) - length(rtrim({text}, '=')) > 2
         OR rtrim({text}, '=') GLOB '*[^A-Za-z0-9+/]*' OR {text} GLOB '*[^AEIMQUYcgkosw048=]=' OR {text} GLOB '*[^AQgw]=='"
    )
}

fn complement(ranges: Ranges) -> Vec<(char, char)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = Some('\0');
    for (first, last) in sorted {
        if let Some(from) = next
            && from < first
        {
            gaps.push((from, before(first)));
        }
        next = next.and_then(|next| Some(next.max((last..=char::MAX).nth(1)?)));
    }
    gaps.extend(next.map(|from| (from, char::MAX)));
    gaps
}

fn before(c: char) -> char {
    ('\0'..c).next_back().expect("a character before one that is after another")
}

/// Some character is in one of these ranges.
fn has(text: &str, ranges: &[(char, char)]) -> String {
    any(ranges.iter().map(|(first, last)| has_one_of(text, *first, *last)))
}

/// GLOB ends at U+0000, and `]` and `^` have a meaning at the ends of a range: these are looked for one by one.
fn has_one_of(text: &str, first: char, last: char) -> String {
    let one = |c: char| format!("instr({text}, {}) > 0", character(c));
    let rest = |first: char, last: char| (first <= last).then(|| has_one_of(text, first, last));
    match (first, last) {
        (first, last) if first == last => one(first),
        ('\0' | ']' | '^', last) => {
            let next = (first..=last).nth(1).expect("the range has more than one character");
            any([Some(one(first)), rest(next, last)].into_iter().flatten())
        }
        (first, ']') => any([Some(one(']')), rest(first, '\\')].into_iter().flatten()),
        (first, last) => {
            format!("{text} GLOB ('*[' || {} || '-' || {} || ']*')", character(first), character(last))
        }
    }
}

fn character(c: char) -> String {
    match c {
        ' '..='~' => quoted(&c.to_string()),
        other => format!("char({})", u32::from(other)),
    }
}
