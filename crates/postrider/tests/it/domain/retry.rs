use std::time::Duration;

use postrider::retry::{Backoff, RetryOverrides, RetryPolicy, SCHEDULE_ENTRIES_MAX};
use postrider::settings::Settings;
use proptest::prelude::*;
use serde_json::{Value, json};

fn policy(raw: Value) -> RetryPolicy {
    RetryOverrides::check(Some(&raw)).expect("a valid policy").over(&Settings::default())
}

/// The first delays without dice, in seconds.
fn delays(raw: Value, count: u32) -> Vec<f64> {
    let policy = policy(raw);
    (0..count).map(|n| policy.delay(n, 0.5).as_secs_f64()).collect()
}

#[test]
fn every_backoff_follows_its_formula_up_to_the_cap() {
    let table = [
        (json!({"backoff": "exponential"}), vec![10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]),
        (
            json!({"backoff": "exponential", "multiplier": 3.0, "base_delay_seconds": 1, "max_delay_seconds": 100}),
            vec![1.0, 3.0, 9.0, 27.0, 81.0, 100.0, 100.0],
        ),
        (json!({"backoff": "exponential", "multiplier": 1.0}), vec![10.0; 7]),
        (json!({"backoff": "linear"}), vec![10.0, 40.0, 70.0, 100.0, 130.0, 160.0, 190.0]),
        (
            json!({"backoff": "linear", "increment_seconds": 100}),
            vec![10.0, 110.0, 210.0, 300.0, 300.0, 300.0, 300.0],
        ),
        (json!({"backoff": "fixed"}), vec![10.0; 7]),
        (json!({"backoff": "fixed", "base_delay_seconds": 500}), vec![300.0; 7]),
        (json!({"backoff": "quadratic"}), vec![10.0, 40.0, 90.0, 160.0, 250.0, 300.0, 300.0]),
        (json!({"schedule_seconds": [5, 120, 7.5]}), vec![5.0, 120.0, 7.5, 7.5, 7.5, 7.5, 7.5]),
        (
            json!({"schedule_seconds": [5, 1800], "backoff": "linear"}),
            vec![5.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0],
        ),
        (
            json!({"schedule_seconds": [5, 1800], "max_delay_seconds": 3600}),
            vec![5.0, 1800.0, 1800.0, 1800.0, 1800.0, 1800.0, 1800.0],
        ),
    ];
    for (raw, expected) in table {
        assert_eq!(delays(raw.clone(), 7), expected, "{raw}");
    }
}

#[test]
fn the_default_is_eleven_attempts_after_10_20_40_80_160_300_seconds() {
    let policy = RetryOverrides::default().over(&Settings::default());
    let mut waited = Vec::new();
    let mut used = 1;
    while policy.allows_another(used) {
        waited.push(policy.delay(used - 1, 0.99).as_secs());
        used += 1;
    }
    assert_eq!(used, 11);
    assert_eq!(waited, [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]);
}

#[test]
fn a_base_of_nothing_stays_nothing_at_any_retry() {
    for n in [0, 1, 1023, 1024, 5000, u32::MAX] {
        let policy = policy(json!({"base_delay_seconds": 0}));
        assert_eq!(policy.delay(n, 0.5), Duration::ZERO, "retry {n}");
    }
}

#[test]
fn the_budget_of_attempts_is_counted_as_written() {
    let table = [
        (json!({"max_attempts": 1}), vec![(0, true), (1, false), (2, false)]),
        (json!({"max_attempts": 3}), vec![(2, true), (3, false)]),
        (json!({"max_attempts": 0}), vec![(1, true), (1001, true), (u32::MAX, true)]),
        (json!({"max_retries": 0}), vec![(0, true), (1, false)]),
        (json!({"max_retries": 10}), vec![(10, true), (11, false)]),
        (json!({"max_retries": 1000}), vec![(1000, true), (1001, false)]),
        (json!(null), vec![(10, true), (11, false)]),
    ];
    for (raw, answers) in table {
        for (used, expected) in answers {
            assert_eq!(policy(raw.clone()).allows_another(used), expected, "{raw} after {used}");
        }
    }
}

#[test]
fn an_endpoint_overrides_its_settings_field_by_field() {
    let mut settings = Settings::default();
    for (name, value) in [
        ("default_max_attempts", "4"),
        ("retry_base_delay", "2"),
        ("retry_max_delay", "60"),
        ("retry_increment", "7"),
    ] {
        settings.apply(name, value).unwrap();
    }
    let inherited = RetryOverrides::default().over(&settings);
    let expected = RetryPolicy {
        max_attempts: 4,
        backoff: Backoff::Exponential,
        base_delay: Duration::from_secs(2),
        max_delay: Duration::from_secs(60),
        increment: Duration::from_secs(7),
        multiplier: 2.0,
        jitter: 0.0,
        schedule: Vec::new(),
    };
    assert_eq!(inherited, expected);

    let raw = json!({"max_attempts": 9, "backoff": "linear", "base_delay_seconds": 1.5, "max_delay_seconds": 30,
        "increment_seconds": 3, "multiplier": 1.5, "jitter": 0.2, "schedule_seconds": [1, 2]});
    let overridden = RetryOverrides::check(Some(&raw)).unwrap().over(&settings);
    let expected = RetryPolicy {
        max_attempts: 9,
        backoff: Backoff::Linear,
        base_delay: Duration::from_millis(1500),
        max_delay: Duration::from_secs(30),
        increment: Duration::from_secs(3),
        multiplier: 1.5,
        jitter: 0.2,
        schedule: vec![Duration::from_secs(1), Duration::from_secs(2)],
    };
    assert_eq!(overridden, expected);
}

#[test]
fn a_bad_policy_is_refused_by_the_name_of_its_field() {
    let too_many = vec![1; SCHEDULE_ENTRIES_MAX + 1];
    let table = [
        (json!([]), "retry_policy"),
        (json!("exponential"), "retry_policy"),
        (json!({"max_attempts": 1002}), "retry_policy.max_attempts"),
        (json!({"max_attempts": -1}), "retry_policy.max_attempts"),
        (json!({"max_attempts": 2.5}), "retry_policy.max_attempts"),
        (json!({"max_retries": 1001}), "retry_policy.max_retries"),
        (json!({"max_retries": 3, "max_attempts": 4}), "retry_policy.max_retries"),
        (json!({"backoff": "cubic"}), "retry_policy.backoff"),
        (json!({"backoff": 1}), "retry_policy.backoff"),
        (json!({"base_delay_seconds": -1}), "retry_policy.base_delay_seconds"),
        (json!({"base_delay_seconds": "10"}), "retry_policy.base_delay_seconds"),
        (json!({"max_delay_seconds": 86401}), "retry_policy.max_delay_seconds"),
        (json!({"increment_seconds": 1e300}), "retry_policy.increment_seconds"),
        (json!({"multiplier": 0.5}), "retry_policy.multiplier"),
        (json!({"multiplier": 1001}), "retry_policy.multiplier"),
        (json!({"jitter": 1.1}), "retry_policy.jitter"),
        (json!({"jitter": -0.1}), "retry_policy.jitter"),
        (json!({"schedule_seconds": []}), "retry_policy.schedule_seconds"),
        (json!({"schedule_seconds": 5}), "retry_policy.schedule_seconds"),
        (json!({"schedule_seconds": too_many}), "retry_policy.schedule_seconds"),
        (json!({"schedule_seconds": [5, "x"]}), "retry_policy.schedule_seconds[1]"),
        (json!({"retries": 3}), "retry_policy.retries"),
    ];
    for (raw, field) in table {
        let refused = RetryOverrides::check(Some(&raw)).expect_err(field);
        assert_eq!(refused.field, field, "{raw}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_the_list_of_known_ones() {
    let refused = RetryOverrides::check(Some(&json!({"delay": 1}))).unwrap_err();
    for known in [
        "max_attempts",
        "max_retries",
        "backoff",
        "base_delay_seconds",
        "max_delay_seconds",
        "increment_seconds",
        "multiplier",
        "jitter",
        "schedule_seconds",
    ] {
        assert!(refused.rule.contains(known), "{known} is missing in: {}", refused.rule);
    }
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    let backoff = prop_oneof![
        Just(Backoff::Exponential),
        Just(Backoff::Linear),
        Just(Backoff::Fixed),
        Just(Backoff::Quadratic)
    ];
    let seconds = || (0.0..=86_400.0f64).prop_map(Duration::from_secs_f64);
    (backoff, seconds(), seconds(), seconds(), 1.0..=1000.0f64, 0.0..=1.0f64).prop_map(
        |(backoff, base_delay, max_delay, increment, multiplier, jitter)| RetryPolicy {
            max_attempts: 11,
            backoff,
            base_delay,
            max_delay,
            increment,
            multiplier,
            jitter,
            schedule: Vec::new(),
        },
    )
}

/// Small ones, and those where a naive power overflows.
fn any_retry() -> impl Strategy<Value = u32> {
    prop_oneof![0..50u32, 1000..1100u32, any::<u32>()]
}

proptest! {
    #[test]
    fn without_jitter_a_later_retry_never_waits_less(policy in any_policy(), n in any_retry(), dice in 0.0..1.0f64) {
        let policy = RetryPolicy { jitter: 0.0, ..policy };
        prop_assert!(policy.delay(n, dice) <= policy.delay(n.saturating_add(1), 1.0 - dice));
    }

    #[test]
    fn no_delay_is_above_the_cap(policy in any_policy(), n in any_retry(), dice in 0.0..1.0f64) {
        prop_assert!(policy.delay(n, dice) <= policy.max_delay);
    }

    #[test]
    fn jitter_stays_within_its_band(policy in any_policy(), n in any_retry(), dice in 0.0..1.0f64) {
        let exact = RetryPolicy { jitter: 0.0, ..policy.clone() }.delay(n, 0.0).as_secs_f64();
        let drawn = policy.delay(n, dice).as_secs_f64();
        let rounding = 1e-6;
        prop_assert!(drawn >= exact * (1.0 - policy.jitter) - rounding, "{drawn} of {exact}");
        prop_assert!(drawn <= exact * (1.0 + policy.jitter) + rounding, "{drawn} of {exact}");
    }

    #[test]
    fn the_dice_reach_both_ends_of_the_band(base in 1.0..100.0f64, jitter in 0.1..=1.0f64) {
        let policy = RetryPolicy {
            max_attempts: 0, backoff: Backoff::Fixed, base_delay: Duration::from_secs_f64(base),
            max_delay: Duration::from_secs(86_400), increment: Duration::ZERO, multiplier: 2.0, jitter,
            schedule: Vec::new(),
        };
        let close = |delay: Duration, to: f64| (delay.as_secs_f64() - to).abs() < base * 1e-3;
        prop_assert!(close(policy.delay(0, 0.0), base * (1.0 - jitter)));
        prop_assert!(close(policy.delay(0, 0.5), base));
        prop_assert!(close(policy.delay(0, 0.9999), base * (1.0 + jitter)));
    }
}
