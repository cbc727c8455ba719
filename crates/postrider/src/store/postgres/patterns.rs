//! Rules about texts as regular expressions of PostgreSQL. `sql/protocol.sql` says how SQL reads them.

use serde_json::{Map, Value, json};

use crate::protocol::rules::{URL_WITH_FRAGMENT, URL_WITHOUT_HOST, url_must_begin};
use crate::protocol::{MapRules, Must, Ranges, Rule};

pub(super) fn rules(rules: &[Rule]) -> Value {
    rules.iter().flat_map(rule).collect()
}

pub(super) fn map_rules(map: &MapRules) -> Value {
    let values_of = map.values_of.iter().map(|(name, own)| ((*name).to_owned(), rules(own)));
    let values_of: Map<String, Value> = values_of.collect();
    json!({ "names": rules(map.names), "values": rules(map.values), "values_of": values_of })
}

fn rule(rule: &Rule) -> Vec<Value> {
    let refuses = |pattern: String| vec![json!({ "says": rule.says, "refuses": pattern })];
    let wants = |pattern: String| vec![json!({ "says": rule.says, "wants": pattern })];
    match rule.must {
        Must::OnlyHave(ranges) => refuses(format!("[^{}]", class(ranges))),
        Must::NotHave(ranges) => refuses(format!("[{}]", class(ranges))),
        Must::NotHaveBefore(mark, ranges) => refuses(format!("^[^{}]*[{}]", escaped(mark), class(ranges))),
        Must::NotHaveFrom(mark, ranges) => refuses(format!("{}.*[{}]", escaped(mark), class(ranges))),
        Must::BeginWith(prefixes) => wants(format!("^({})", any_of(prefixes))),
        Must::NotBeginWith(prefixes) => refuses(format!("^({})", any_of(prefixes))),
        Must::NotEndWith(suffixes) => refuses(format!("({})$", any_of(suffixes))),
        Must::Contain(part) => wants(literal(part)),
        Must::NotContain(parts) => refuses(format!("(?i)({})", any_of(parts))),
        Must::NotBe(texts) => refuses(format!("^({})$", any_of(texts))),
        Must::BePathBelow => refuses(r"^/|^\.(/|$)|(^|/)\.\.(/|$)".to_owned()),
        Must::BeBase64After(prefixes) => {
            refuses(format!("^({})(?!({})$)", any_of(prefixes), base64(0, usize::MAX)))
        }
        Must::DecodeAfter(prefix, ranges) => {
            let lengths: Vec<String> = ranges.iter().map(|(min, max)| base64(*min, *max)).collect();
            refuses(format!("^{}(?!({})$)", literal(prefix), lengths.join("|")))
        }
        Must::BeUrl(schemes) => vec![
            json!({ "says": url_must_begin(schemes), "wants": format!("(?i)^({})://", any_of(schemes)) }),
            json!({ "says": URL_WITHOUT_HOST, "refuses": "^[^:]+://([/?#]|$)" }),
            json!({ "says": rule.says, "refuses": "^[^:]+://[^/?#]*@" }),
            json!({ "says": URL_WITH_FRAGMENT, "refuses": "#" }),
        ],
    }
}

/// What stands between brackets. No text in PostgreSQL has U+0000.
fn class(ranges: Ranges) -> String {
    let range =
        |(first, last): &(char, char)| format!("{}-{}", escaped((*first).max('\u{1}')), escaped(*last));
    ranges.iter().map(range).collect()
}

fn any_of(texts: &[&str]) -> String {
    texts.iter().map(|text| literal(text)).collect::<Vec<_>>().join("|")
}

fn literal(text: &str) -> String {
    text.chars().map(escaped).collect()
}

fn escaped(c: char) -> String {
    match c.is_ascii_alphanumeric() {
        true => c.to_string(),
        false => format!("\\U{:08x}", u32::from(c)),
    }
}

/// Base64 of at least `min` and at most `max` bytes: groups of three bytes, and one or two more at the end.
fn base64(min: usize, max: usize) -> String {
    const DIGIT: &str = "[A-Za-z0-9+/]";
    let ends = ["", "[A-Za-z0-9+/][AQgw]==", "[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]="];
    let lengths = ends.iter().enumerate().filter_map(|(more, end)| {
        let groups_min = min.saturating_sub(more).div_ceil(3);
        let times = match max {
            usize::MAX => format!("{{{groups_min},}}"),
            max => format!("{{{groups_min},{}}}", max.checked_sub(more)? / 3),
        };
        let fits = max == usize::MAX || groups_min <= (max - more) / 3;
        fits.then(|| format!("({DIGIT}{{4}}){times}{end}"))
    });
    lengths.collect::<Vec<_>>().join("|")
}
