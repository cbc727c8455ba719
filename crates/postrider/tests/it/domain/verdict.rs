use std::time::Duration;

use jiff::Timestamp;
use postrider::retry::{RetryOverrides, RetryPolicy};
use postrider::settings::Settings;
use postrider::verdict::{
    AttemptContext, Class, DeadReason, Failure, Outcome, RETRY_AFTER_MAX, Receipt, ReceiverHealth, Verdict,
    endpoint_hold, verdict,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const SECOND: Duration = Duration::from_secs(1);
/// The setting `retry_max_delay`.
const MAX_DELAY: Duration = Duration::from_secs(300);

fn now() -> Timestamp {
    "2026-01-15T12:00:00Z".parse().unwrap()
}

fn policy() -> RetryPolicy {
    RetryOverrides::default().over(&Settings::default())
}

fn context(budget_used: u32) -> AttemptContext {
    AttemptContext { budget_used, losses: 0, expires_at: None, auto_disable_on_gone: false }
}

fn lost_before(losses: u32, budget_used: u32) -> AttemptContext {
    AttemptContext { losses, ..context(budget_used) }
}

fn decide(outcome: &Outcome, context: AttemptContext) -> Verdict {
    verdict(outcome, context, &policy(), now(), 0.5)
}

fn failed(class: Class) -> Outcome {
    Outcome::Failed(Failure::new(class, "no"))
}

fn asked(seconds: u64) -> Outcome {
    Outcome::Failed(Failure {
        status: Some(503),
        retry_after: Some(Duration::from_secs(seconds)),
        ..Failure::retryable("busy")
    })
}

fn retry_in(seconds: u64) -> Verdict {
    Verdict::Retry { due_at: now() + SECOND * seconds as u32, asked: false }
}

const EXHAUSTED: Verdict = Verdict::Dead { reason: DeadReason::AttemptsExhausted, disable_endpoint: false };
const PERMANENT: Verdict = Verdict::Dead { reason: DeadReason::Permanent, disable_endpoint: false };

#[test]
fn each_class_has_one_consequence() {
    let delivered = Outcome::Delivered(Receipt::default());
    let table = [
        (&delivered, 1, Verdict::Complete),
        (&delivered, 11, Verdict::Complete),
        (&failed(Class::Retryable), 1, retry_in(10)),
        (&failed(Class::Retryable), 2, retry_in(20)),
        (&failed(Class::Retryable), 10, retry_in(300)),
        (&failed(Class::Retryable), 11, EXHAUSTED),
        (&failed(Class::Retryable), 12, EXHAUSTED),
        (&failed(Class::Permanent), 1, PERMANENT),
        (&failed(Class::Gone), 1, Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: false }),
        (&Outcome::Lost { alone: true }, 1, retry_in(0)),
        (&Outcome::Lost { alone: false }, 3, retry_in(0)),
        (&Outcome::Lost { alone: true }, 11, EXHAUSTED),
    ];
    for (outcome, used, expected) in table {
        assert_eq!(decide(outcome, context(used)), expected, "{outcome:?} after {used}");
    }
}

#[test]
fn only_a_message_that_was_alone_dies_of_lost_leases() {
    for used in [11, 12, 1000] {
        let spared = decide(&Outcome::Lost { alone: false }, lost_before(1, used));
        assert_eq!(spared, Verdict::Spare { due_at: now() + SECOND * 300 }, "after {used}");
        assert_eq!(decide(&Outcome::Lost { alone: true }, lost_before(1, used)), EXHAUSTED, "after {used}");
    }
}

#[test]
fn a_first_lost_lease_is_due_at_once_and_later_ones_by_the_policy() {
    // losses before, budget used, due in
    let table = [(0, 1, 0), (0, 3, 0), (1, 1, 10), (1, 2, 20), (1, 3, 40), (2, 3, 40), (9, 10, 300)];
    for (losses, used, seconds) in table {
        for alone in [true, false] {
            let decided = decide(&Outcome::Lost { alone }, lost_before(losses, used));
            assert_eq!(decided, retry_in(seconds), "{losses} losses before, {used} used, alone: {alone}");
        }
        let (failed, later) = (failed(Class::Retryable), lost_before(losses, used));
        assert_eq!(decide(&failed, later), decide(&failed, context(used)), "a failure is no loss");
    }
    let spared = decide(&Outcome::Lost { alone: false }, context(11));
    assert_eq!(spared, Verdict::Spare { due_at: now() }, "the first loss on its last attempt");
}

#[test]
fn an_attempt_that_a_stop_cut_off_costs_no_budget() {
    for context in [context(1), context(11), lost_before(3, 11), lost_before(1, 1000)] {
        assert_eq!(decide(&Outcome::CutOff, context), Verdict::Spare { due_at: now() }, "{context:?}");
    }
}

#[test]
fn one_attempt_means_at_most_one_start() {
    let once = policy().limited_to(Some(1));
    let ends = [
        Outcome::Lost { alone: false },
        Outcome::Lost { alone: true },
        Outcome::CutOff,
        failed(Class::Retryable),
    ];
    for outcome in ends {
        for (losses, used) in [(0, 1), (1, 1), (2, 1), (1, 2), (0, 1000)] {
            let decided = verdict(&outcome, lost_before(losses, used), &once, now(), 0.5);
            assert_eq!(decided, EXHAUSTED, "{outcome:?} with {losses} losses before, {used} used");
        }
    }
}

/// What the stores do with a verdict: a spared attempt keeps its number and costs no budget.
fn starts_until_dead(policy: &RetryPolicy, ends: impl IntoIterator<Item = Outcome>) -> (u32, u32) {
    let (mut starts, mut budget_used, mut losses) = (0, 0, 0);
    for outcome in ends {
        starts += 1;
        budget_used += 1;
        match verdict(&outcome, lost_before(losses, budget_used), policy, now(), 0.5) {
            Verdict::Retry { .. } => {}
            Verdict::Spare { .. } => budget_used -= 1,
            Verdict::Dead { .. } => return (starts, budget_used),
            decided @ (Verdict::Complete | Verdict::Expire) => panic!("{decided:?} after {outcome:?}"),
        }
        losses += u32::from(matches!(outcome, Outcome::Lost { .. }));
    }
    panic!("it never dies")
}

proptest! {
    /// Whatever happens, the last of its attempts is made alone and ends it, or fails and ends it.
    #[test]
    fn a_message_dies_of_its_budget_and_is_started_again_only_when_spared(
        max_attempts in 1..8u32,
        ends in vec(select(vec![None, Some(false), Some(true)]), 0..30),
    ) {
        let end = |alone: Option<bool>| alone.map_or(failed(Class::Retryable), |alone| Outcome::Lost { alone });
        let in_company = ends.iter().filter(|alone| **alone == Some(false)).count() as u32;
        let ends = ends.iter().copied().chain(std::iter::repeat(Some(true))).map(end);
        let (starts, budget_used) = starts_until_dead(&policy().limited_to(Some(max_attempts)), ends);
        prop_assert_eq!(budget_used, max_attempts);
        prop_assert!(starts <= max_attempts + in_company);
        prop_assert!(max_attempts > 1 || starts == 1);
    }
}

#[test]
fn no_limit_of_attempts_means_no_death_of_attempts() {
    let endless = RetryPolicy { max_attempts: 0, ..policy() };
    for outcome in [failed(Class::Retryable), Outcome::Lost { alone: true }] {
        let verdict = verdict(&outcome, lost_before(1, u32::MAX), &endless, now(), 0.5);
        assert_eq!(verdict, retry_in(300));
    }
}

#[test]
fn gone_disables_the_endpoint_only_when_asked_to() {
    for auto_disable_on_gone in [true, false] {
        let context = AttemptContext { auto_disable_on_gone, ..context(1) };
        let expected = Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: auto_disable_on_gone };
        assert_eq!(decide(&failed(Class::Gone), context), expected);
        assert_eq!(decide(&failed(Class::Permanent), context), PERMANENT);
    }
}

#[test]
fn a_failure_past_the_expiry_is_expired_not_dead() {
    let outcomes = [
        failed(Class::Retryable),
        failed(Class::Permanent),
        failed(Class::Gone),
        asked(10),
        Outcome::Lost { alone: true },
        Outcome::Lost { alone: false },
    ];
    for outcome in &outcomes {
        for used in [1, 11] {
            for past in [Duration::ZERO, SECOND] {
                let context = AttemptContext { expires_at: Some(now() - past), ..context(used) };
                assert_eq!(decide(outcome, context), Verdict::Expire, "{outcome:?} after {used}");
            }
        }
    }
    let context = AttemptContext { expires_at: Some(now() - SECOND), ..context(1) };
    assert_eq!(decide(&Outcome::Delivered(Receipt::default()), context), Verdict::Complete);
}

#[test]
fn a_failure_before_the_expiry_is_judged_as_ever() {
    let live = |used| AttemptContext { expires_at: Some(now() + SECOND), ..context(used) };
    assert_eq!(decide(&failed(Class::Retryable), live(1)), retry_in(10));
    assert_eq!(decide(&failed(Class::Retryable), live(11)), EXHAUSTED);
    assert_eq!(decide(&failed(Class::Permanent), live(1)), PERMANENT);
}

/// What the endpoint said must not be lost with the message that heard it.
#[test]
fn gone_disables_the_endpoint_even_when_the_message_expired() {
    let context =
        AttemptContext { expires_at: Some(now() - SECOND), auto_disable_on_gone: true, ..context(1) };
    let expected = Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: true };
    assert_eq!(decide(&failed(Class::Gone), context), expected);
}

#[test]
fn retry_after_replaces_the_delay_and_holds_the_endpoint_within_limits() {
    // asked for, put off, endpoint held
    let table = [
        (0, 0, 0),
        (7, 7, 7),
        (300, 300, 300),
        (301, 301, 300),
        (86_400, 86_400, 300),
        (86_401, 86_400, 300),
    ];
    for (seconds, put_off, held) in table {
        let expected = Verdict::Retry { due_at: now() + SECOND * put_off, asked: true };
        assert_eq!(decide(&asked(seconds), context(1)), expected, "Retry-After: {seconds}");
        let hold = endpoint_hold(&asked(seconds), MAX_DELAY, now());
        assert_eq!(hold, Some(now() + SECOND * held), "Retry-After: {seconds}");
    }
    assert_eq!(RETRY_AFTER_MAX, Duration::from_secs(86_400));
    assert_eq!(decide(&asked(u64::from(u32::MAX) * 1000), context(1)), decide(&asked(86_400), context(1)));
}

#[test]
fn retry_after_buys_no_further_attempt() {
    assert_eq!(decide(&asked(5), context(11)), EXHAUSTED);
}

#[test]
fn busy_receivers_and_bad_messages_do_not_count_for_the_breaker() {
    let with = |class, receiver| Failure { receiver, ..Failure::new(class, "no") };
    let table = [
        (Failure::retryable("no"), true, false),
        (Failure::timed_out(SECOND), true, true),
        (with(Class::Retryable, ReceiverHealth::Overloaded), true, true),
        (with(Class::Retryable, ReceiverHealth::Failing), true, false),
        (with(Class::Retryable, ReceiverHealth::Busy), false, true),
        (with(Class::Retryable, ReceiverHealth::Unknown), false, false),
        (Failure::permanent("no"), false, false),
        (Failure::new(Class::Gone, "no"), false, false),
    ];
    for (failure, counts, overload) in table {
        assert_eq!((failure.counts_for_breaker(), failure.is_overload()), (counts, overload), "{failure:?}");
    }
}

#[test]
fn an_error_begins_with_the_tag_of_its_class() {
    let table = [
        (Class::Retryable, "retryable", "[RETRYABLE] no"),
        (Class::Permanent, "permanent", "[PERMANENT] no"),
        (Class::Gone, "gone", "[DISABLE] no"),
    ];
    for (class, name, tagged) in table {
        assert_eq!(Failure::new(class, "no").tagged(), tagged);
        assert_eq!(class.as_str(), name);
    }
}
