//! Messages whose claim was lost with its node come back a few at a time, so that the one which kills its
//! node is found without taking its neighbours along. Pure: picks who is next.

use jiff::Timestamp;

use crate::store::{PROBATION_BATCH, Suspect};

/// Who is tried next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// Once-lost messages, at most [`PROBATION_BATCH`], beside the node's other work.
    Group(Vec<Suspect>),
    /// Lost at least twice: no other suspect beside it.
    Single(Suspect),
    /// Its last attempt: nothing else may be in flight on the node, for this one can die of a lost lease.
    Isolated(Suspect),
}

impl Trial {
    pub(super) fn suspects(&self) -> &[Suspect] {
        match self {
            Self::Group(group) => group,
            Self::Single(suspect) | Self::Isolated(suspect) => std::slice::from_ref(suspect),
        }
    }
}

/// `may_try` says whether a suspect's endpoint may be delivered to; `is_last` whether its next attempt is
/// the last of its budget. Suspects come oldest due first.
pub(super) fn next_trial(
    suspects: &[Suspect],
    now: Timestamp,
    may_try: impl Fn(&Suspect) -> bool,
    is_last: impl Fn(&Suspect) -> bool,
) -> Option<Trial> {
    let mut due = suspects.iter().filter(|suspect| suspect.due_at <= now && may_try(suspect));
    let first = *due.next()?;
    if first.losses >= 2 {
        return Some(if is_last(&first) { Trial::Isolated(first) } else { Trial::Single(first) });
    }
    let others = due.filter(|suspect| suspect.losses < 2).copied();
    Some(Trial::Group(std::iter::once(first).chain(others).take(PROBATION_BATCH).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointId;
    use crate::message::MessageId;

    fn suspect(id: i64, losses: u32, due: i64) -> Suspect {
        Suspect {
            id: MessageId(id),
            endpoint: EndpointId(1),
            losses,
            due_at: Timestamp::from_second(due).expect("in range"),
            budget_used: losses,
        }
    }

    fn trial(suspects: &[Suspect], is_last: bool) -> Option<Trial> {
        next_trial(suspects, Timestamp::from_second(100).expect("in range"), |_| true, |_| is_last)
    }

    #[test]
    fn once_lost_messages_come_back_at_most_eight_at_a_time() {
        let many: Vec<Suspect> = (1..=20).map(|id| suspect(id, 1, id)).collect();
        assert_eq!(trial(&many, false).expect("some are due").suspects().len(), PROBATION_BATCH);
    }

    #[test]
    fn a_twice_lost_message_has_no_other_suspect_beside_it() {
        let suspects = [suspect(1, 2, 1), suspect(2, 1, 2)];
        assert_eq!(trial(&suspects, false), Some(Trial::Single(suspects[0])));
        let suspects = [suspect(1, 1, 1), suspect(2, 2, 2), suspect(3, 1, 3)];
        assert_eq!(trial(&suspects, false), Some(Trial::Group(vec![suspects[0], suspects[2]])));
    }

    #[test]
    fn a_last_attempt_is_isolated() {
        let suspects = [suspect(1, 2, 1)];
        assert_eq!(trial(&suspects, true), Some(Trial::Isolated(suspects[0])));
    }

    #[test]
    fn nobody_is_tried_before_he_is_due() {
        assert_eq!(trial(&[suspect(1, 1, 101)], false), None);
    }
}
