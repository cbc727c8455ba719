use std::time::Instant;

use postrider::Json;
use postrider::pubsub::{
    broken_schema, check_event_name, check_pattern, check_schema, contains, filled, patterns_for,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use crate::event_cases::cases;

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap_or_else(|rule| panic!("{text} {rule}"))
}

/// Few words, so that values meet each other; every form of a number.
pub(crate) fn values() -> impl Strategy<Value = Json> {
    let number = select(&[
        "0",
        "-0",
        "0.0",
        "1",
        "1.0",
        "1e0",
        "10e-1",
        "-1",
        "2",
        "1.5",
        "15e-1",
        "100",
        "1e2",
        "1E+2",
        "1e300",
        "0.1",
        "0.10000000000000000001",
        "12345678901234567890123",
        "12345678901234567890124",
        "-3e-7",
    ]);
    let text = select(&[
        "", "a", "b", "å", "a\u{30a}", "📮", "\n\"\\", "{{/a}}", "{{}}", "{{/b/0}}", "{{/a}} b", "/",
    ]);
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Flag),
        number.prop_map(json),
        text.prop_map(|text| Json::Text(text.to_owned())),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = select(&["a", "b", "c", "bb", "0", ""]).prop_map(str::to_owned);
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::List),
            btree_map(key, inner, 0..4).prop_map(Json::Object),
        ]
    })
}

#[test]
fn every_case_of_the_table_holds() {
    let cases = cases();
    for case in cases.patterns {
        check_pattern("pattern", &case.pattern).unwrap();
        let fits: Vec<String> =
            case.among.into_iter().filter(|name| patterns_for(name).contains(&case.pattern)).collect();
        assert_eq!(fits, case.fits, "{}", case.pattern);
    }
    for pattern in cases.refused_patterns {
        check_pattern("pattern", &pattern).expect_err(&pattern);
    }
    for case in cases.filters {
        let (filter, payload) = (case.filter.get(), case.payload.get());
        assert_eq!(contains(&json(payload), &json(filter)), case.passes, "{payload} @> {filter}");
    }
    for case in cases.templates {
        let sent = filled(&json(case.template.get()), &json(case.payload.get()));
        assert_eq!(sent.to_string(), case.sends.get(), "{}", case.template);
    }
    for case in cases.schemas {
        let (schema, payload) = (json(case.schema.get()), json(case.payload.get()));
        check_schema("schema", &schema).unwrap();
        let says = broken_schema("payload", &payload, &schema).map(|broken| broken.to_string());
        assert_eq!(says, case.says, "{schema} of {payload}");
    }
    for case in cases.refused_schemas {
        let refused = check_schema("schema", &json(case.schema.get())).expect_err(case.schema.get());
        assert_eq!(refused.to_string(), case.says);
    }
}

#[test]
fn a_name_is_segments_with_a_dot_between_them() {
    for name in ["orders", "orders.created", "a-b_c.D9", &"x".repeat(128)] {
        check_event_name("name", name).unwrap();
    }
    for name in ["", "a..b", ".a", "a.", "a.*", "*", "a b", "å", "a\n", &"x".repeat(129)] {
        check_event_name("name", name).expect_err(name);
    }
}

#[test]
fn json_that_no_store_could_keep_alike_is_refused() {
    let deep = format!("{}1{}", "[".repeat(129), "]".repeat(129));
    for (text, rule) in [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("{'a':1}", "is not JSON"),
        ("[1,]", "is not JSON"),
        ("1 2", "is not JSON"),
        ("NaN", "is not JSON"),
        ("01", "is not JSON"),
        (r#""\ud800""#, "is not JSON"),
        (r#"{"\udc00":1}"#, "is not JSON"),
        ("1e131072", "has a number that is out of range"),
        ("1e-16384", "has a number that is out of range"),
        ("1e99999999999999999999", "has a number that is out of range"),
        (&deep, "is more than 128 levels deep"),
    ] {
        let refused = Json::parse(text.as_bytes()).expect_err(text);
        assert!(refused.starts_with(rule), "{text}: {refused}");
    }
    for text in [" 1 ", "1e131071", "0e131072", "1e-16383", &deep[1..deep.len() - 1]] {
        json(text);
    }
    Json::parse(b"\"\xff\"").expect_err("it is not UTF-8");
    assert!(json(r#"[{"a\u0000":1}]"#).has_nul() && json(r#"{"a":["\u0000"]}"#).has_nul());
}

/// What is inside of many lists is not looked at once for each of them.
#[test]
fn reading_costs_no_more_for_being_deep() {
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let deep = format!("{}{long}{}", "[".repeat(128), "]".repeat(128));
    let quickest = |text: &str| {
        let timed = || {
            let started = Instant::now();
            json(text);
            started.elapsed()
        };
        (0..3).map(|_| timed()).min().unwrap()
    };
    let (flat, deep) = (quickest(&long), quickest(&deep));
    assert!(deep < flat * 10, "{flat:?} flat, {deep:?} deep");
}

#[test]
fn numbers_are_equal_and_ordered_by_value() {
    let ascending = [
        "-12345678901234567890123",
        "-1e2",
        "-99.9",
        "-1",
        "-1e-7",
        "0",
        "1e-7",
        "0.1",
        "0.10000000000000000001",
        "1",
        "1.5",
        "2",
        "10",
        "99.9",
        "1e2",
        "12345678901234567890123",
        "1e300",
    ];
    let number = |text: &str| match json(text) {
        Json::Number(number) => number,
        other => panic!("{other}"),
    };
    for (at, left) in ascending.iter().enumerate() {
        for (other, right) in ascending.iter().enumerate() {
            assert_eq!(number(left).partial_cmp(&number(right)), Some(at.cmp(&other)), "{left} {right}");
        }
    }
    for equal in [["1", "1.000"], ["1e2", "100"], ["-0", "0.0"], ["0.001", "1E-3"], ["0e5", "0"]] {
        assert_eq!(json(equal[0]), json(equal[1]));
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(value in values()) {
        prop_assert_eq!(json(&value.to_string()), value.clone());
        let through_serde: Json = serde_json::from_str(&serde_json::to_string(&value).unwrap()).unwrap();
        prop_assert_eq!(through_serde, value);
    }

    #[test]
    fn serde_reads_the_same_json(text in "[\\[\\]{}:,0-9.+\"a\\-\\\\u ]{0,12}") {
        let theirs: Result<serde_json::Value, _> = serde_json::from_str(&text);
        prop_assert_eq!(Json::parse(text.as_bytes()).is_ok(), theirs.is_ok(), "{}", text);
    }

    #[test]
    fn everything_contains_itself_and_what_it_contains_can_be_added_to(value in values(), more in values()) {
        prop_assert!(contains(&value, &value));
        if let (Json::Object(mut wider), Json::Object(_)) = (value.clone(), &value) {
            wider.entry("more".to_owned()).or_insert(more);
            prop_assert!(contains(&Json::Object(wider), &value));
        }
    }

    #[test]
    fn a_template_without_braces_is_literal(template in values(), event in values()) {
        prop_assume!(!template.to_string().contains("{{"));
        prop_assert_eq!(filled(&template, &event), template);
    }

    #[test]
    fn a_schema_of_the_value_itself_is_kept(value in values()) {
        let schema = Json::Object([("const".to_owned(), value.clone()), ("type".to_owned(), Json::Text(value.kind().into()))].into());
        prop_assert!(check_schema("schema", &schema).is_ok());
        prop_assert_eq!(broken_schema("payload", &value, &schema), None);
    }
}
