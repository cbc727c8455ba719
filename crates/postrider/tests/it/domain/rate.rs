use std::time::Duration;

use jiff::Timestamp;
use postrider::rate::{Interval, LIMIT_MAX, RateLimit};
use proptest::prelude::*;
use serde_json::json;

fn start() -> Timestamp {
    "2026-01-15T12:00:00Z".parse().unwrap()
}

fn after(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(start().as_microsecond() + micros).unwrap()
}

fn interval_micros(interval: Interval) -> i64 {
    match interval {
        Interval::Second => 1_000_000,
        Interval::Minute => 60_000_000,
        Interval::Hour => 3_600_000_000,
    }
}

#[test]
fn a_full_bucket_gives_its_burst_and_then_one_at_a_time() {
    let limit = RateLimit { limit: 10, interval: Interval::Second, burst: Some(3) };
    let first = limit.grant(None, start(), 100);
    assert_eq!(first.granted, 3);
    assert_eq!(first.next_at, after(100_000));
    let none = limit.grant(Some(first.position), after(99_999), 100);
    assert_eq!(none.granted, 0);
    assert_eq!(none.next_at, after(100_000));
    let one = limit.grant(Some(none.position), after(100_000), 100);
    assert_eq!(one.granted, 1);
    let rested = limit.grant(Some(one.position), after(60_000_000), 100);
    assert_eq!(rested.granted, 3, "a long rest fills the bucket and no more");
}

#[test]
fn the_burst_is_the_limit_unless_set() {
    let limit = RateLimit { limit: 60, interval: Interval::Minute, burst: None };
    assert_eq!(limit.grant(None, start(), 1000).granted, 60);
}

#[test]
fn an_even_rate_gives_a_tenth_of_a_second_at_once() {
    // limit, interval, burst asked for, burst
    let table = [
        (1, Interval::Second, None, 1),
        (9, Interval::Second, None, 1),
        (20, Interval::Second, None, 2),
        (50, Interval::Second, None, 5),
        (LIMIT_MAX as u32, Interval::Second, None, 100_000),
        (3000, Interval::Minute, None, 5),
        (60, Interval::Hour, None, 1),
        (LIMIT_MAX as u32, Interval::Hour, None, 27),
        (50, Interval::Second, Some(1), 1),
        (50, Interval::Second, Some(500), 500),
    ];
    for (limit, interval, asked, burst) in table {
        let even = RateLimit { limit, interval, burst: asked }.evened();
        assert_eq!(even, RateLimit { limit, interval, burst: Some(burst) });
        assert_eq!(even.grant(None, start(), u32::MAX).granted, burst, "{even:?} at the beginning");
    }
}

#[test]
fn no_more_is_taken_than_wanted_and_the_rest_stays() {
    let limit = RateLimit { limit: 10, interval: Interval::Second, burst: None };
    let some = limit.grant(None, start(), 4);
    assert_eq!((some.granted, some.next_at), (4, start()));
    assert_eq!(limit.grant(Some(some.position), start(), 100).granted, 6);
    assert_eq!(limit.grant(None, start(), 0).granted, 0);
}

#[test]
fn a_limit_near_the_clock_s_resolution_is_kept() {
    let limit = RateLimit { limit: 700_000, interval: Interval::Second, burst: Some(1) };
    let (mut position, mut granted) = (None, 0u64);
    for micros in 0..100_000 {
        let grant = limit.grant(position, after(micros), 10);
        position = Some(grant.position);
        granted += u64::from(grant.granted);
    }
    assert!(granted <= 70_001, "{granted} in a tenth of a second");
}

#[test]
fn a_bad_limit_is_refused_by_the_name_of_its_field() {
    let table = [
        (json!(10), "r"),
        (json!({"interval": "second"}), "r.limit"),
        (json!({"limit": 10}), "r.interval"),
        (json!({"limit": 0, "interval": "second"}), "r.limit"),
        (json!({"limit": LIMIT_MAX + 1, "interval": "second"}), "r.limit"),
        (json!({"limit": 1.5, "interval": "second"}), "r.limit"),
        (json!({"limit": 1, "interval": "day"}), "r.interval"),
        (json!({"limit": 1, "interval": "hour", "burst": 0}), "r.burst"),
        (json!({"limit": 1, "interval": "hour", "per": 1}), "r.per"),
    ];
    for (raw, field) in table {
        assert_eq!(RateLimit::check("r", &raw).expect_err(field).field, field, "{raw}");
    }
    let refused = RateLimit::check("r", &json!({"limit": 1, "interval": "hour", "per": 1})).unwrap_err();
    assert!(refused.rule.contains("limit, interval, burst"), "{}", refused.rule);
    for (name, interval) in
        [("second", Interval::Second), ("minute", Interval::Minute), ("hour", Interval::Hour)]
    {
        let parsed = RateLimit::check("r", &json!({"limit": 5, "interval": name, "burst": 2})).unwrap();
        assert_eq!(parsed, RateLimit { limit: 5, interval, burst: Some(2) });
    }
}

fn any_limit() -> impl Strategy<Value = RateLimit> {
    let interval = prop_oneof![Just(Interval::Second), Just(Interval::Minute), Just(Interval::Hour)];
    let count = || prop_oneof![1..20u32, 1..=LIMIT_MAX as u32];
    (count(), interval, prop::option::of(count())).prop_map(|(limit, interval, burst)| RateLimit {
        limit,
        interval,
        burst,
    })
}

/// Gaps between askings, from nothing to hours, and how much is wanted.
fn askings() -> impl Strategy<Value = Vec<(i64, u32)>> {
    let gap = prop_oneof![Just(0i64), 0..1000i64, 0..10_000_000i64, 0..7_200_000_000i64];
    prop::collection::vec((gap, prop_oneof![0..5u32, 0..2_000_000u32]), 1..60)
}

proptest! {
    #[test]
    fn no_window_sees_more_than_burst_plus_rate(limit in any_limit(), askings in askings()) {
        let (mut position, mut now, mut given) = (None, 0i64, Vec::new());
        for (gap, wanted) in askings {
            now += gap;
            let grant = limit.grant(position, after(now), wanted);
            prop_assert!(grant.granted <= wanted);
            prop_assert!(grant.next_at >= after(now));
            position = Some(grant.position);
            given.push((now, i128::from(grant.granted)));
        }
        let (rate, interval) = (i128::from(limit.limit), i128::from(interval_micros(limit.interval)));
        let burst = i128::from(limit.burst.unwrap_or(limit.limit));
        for (index, (from, _)) in given.iter().enumerate() {
            let mut total = 0;
            for (to, granted) in &given[index..] {
                total += granted;
                // Positions are whole microseconds, so one of them is the tolerance.
                let allowed = burst + (i128::from(to - from) + 1) * rate / interval;
                prop_assert!(total <= allowed, "{total} of {allowed} from {from} to {to}");
            }
        }
    }

    #[test]
    fn nobody_starves_who_comes_back_when_told(limit in any_limit(), askings in askings()) {
        let (mut position, mut now) = (None, 0i64);
        for (gap, wanted) in askings {
            now += gap;
            let grant = limit.grant(position, after(now), wanted);
            position = Some(grant.position);
            if grant.granted < wanted {
                let then = limit.grant(position, grant.next_at, 1);
                prop_assert_eq!(then.granted, 1, "asked again at {}", grant.next_at);
            }
        }
    }

    #[test]
    fn a_rate_is_used_to_the_full(limit in 1..=30_000u32, burst in 1..10u32) {
        let limit = RateLimit { limit, interval: Interval::Second, burst: Some(burst) };
        let (mut position, mut now, mut granted) = (None, start(), 0u64);
        for _ in 0..500 {
            let grant = limit.grant(position, now, 1000);
            (position, now) = (Some(grant.position), grant.next_at);
            granted += u64::from(grant.granted);
        }
        let passed = (now.as_microsecond() - start().as_microsecond()) as u64;
        let reachable = passed * u64::from(limit.limit) / 1_000_000;
        prop_assert!(granted * 100 >= reachable * 97, "{granted} of {reachable}");
    }

    #[test]
    fn a_clock_that_goes_back_costs_at_most_one_step(limit in any_limit(), ahead in 0..=86_400u64, wanted in 1..100u32) {
        let ahead = start() + Duration::from_secs(ahead);
        let grant = limit.grant(None, ahead, u32::MAX);
        let after_jump = limit.grant(Some(grant.position), start(), wanted);
        if after_jump.granted == 0 {
            let step = interval_micros(limit.interval) / i64::from(limit.limit) + 1;
            prop_assert!(after_jump.next_at <= after(step), "told to wait until {}", after_jump.next_at);
            prop_assert!(limit.grant(Some(after_jump.position), after_jump.next_at, 1).granted == 1);
        }
    }
}
