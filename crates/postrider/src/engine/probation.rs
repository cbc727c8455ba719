//! Messages whose claim was lost with its node come back a few at a time, so that the one which kills its
//! node is found without taking its neighbours along. Asks nobody: picks who is next and keeps the score.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::endpoint::EndpointId;
use crate::message::MessageId;
use crate::store::{PROBATION_BATCH, Suspect};

#[derive(Default)]
pub(super) struct Probation {
    /// As far as the store was asked, oldest due first.
    suspects: Vec<Suspect>,
    /// Endpoints whose suspects the store did not hand out, and until when nobody asks for them: the others
    /// do not wait behind them.
    resting: HashMap<EndpointId, Timestamp>,
    stage: Stage,
}

/// At most one trial at a time on a node.
#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// This one must be alone: it waits until nothing else is in flight.
    Emptying(Suspect),
    Running {
        isolated: bool,
        messages: Vec<MessageId>,
    },
}

/// Who is tried now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) suspects: Vec<Suspect>,
    /// Nothing else is in flight on the node, nor will be: it alone can die of a lost lease.
    pub(super) isolated: bool,
}

impl Probation {
    pub(super) fn found(&mut self, suspects: Vec<Suspect>) {
        self.suspects = suspects;
    }

    /// `may_try` says whether a suspect's endpoint may be delivered to; `is_last` whether its next attempt
    /// is the last of its budget, so that it could die of it.
    pub(super) fn next_trial(
        &mut self,
        now: Timestamp,
        node_is_empty: bool,
        may_try: impl Fn(&Suspect) -> bool,
        is_last: impl Fn(&Suspect) -> bool,
    ) -> Option<Trial> {
        if self.stage == Stage::Idle {
            let mut due = self.suspects.iter().filter(|suspect| {
                suspect.due_at <= now && !self.rests(suspect.endpoint, now) && may_try(suspect)
            });
            let first = *due.next()?;
            if first.losses < 2 {
                let others = due.filter(|suspect| suspect.losses < 2).copied();
                let group = std::iter::once(first).chain(others).take(PROBATION_BATCH).collect();
                return Some(self.run(Trial { suspects: group, isolated: false }));
            }
            if !is_last(&first) {
                return Some(self.run(Trial { suspects: vec![first], isolated: false }));
            }
            self.stage = Stage::Emptying(first);
        }
        match self.stage {
            Stage::Emptying(suspect) if node_is_empty => {
                Some(self.run(Trial { suspects: vec![suspect], isolated: true }))
            }
            Stage::Idle | Stage::Emptying(_) | Stage::Running { .. } => None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Idle && self.suspects.is_empty()
    }

    /// Nothing else may start on this node.
    pub(super) fn wants_the_node_empty(&self) -> bool {
        match self.stage {
            Stage::Emptying(_) => true,
            Stage::Running { isolated, .. } => isolated,
            Stage::Idle => false,
        }
    }

    /// Only these of the trial were claimed. True when that ends it.
    #[must_use]
    pub(super) fn claimed(&mut self, claimed: impl Fn(MessageId) -> bool) -> bool {
        self.keep(claimed)
    }

    /// A message is settled. True when that ends the trial.
    #[must_use]
    pub(super) fn settled(&mut self, id: MessageId) -> bool {
        self.keep(|message| message != id)
    }

    pub(super) fn due_endpoints(&self, now: Timestamp) -> Vec<EndpointId> {
        self.suspects.iter().filter(|suspect| suspect.due_at <= now).map(|suspect| suspect.endpoint).collect()
    }

    /// When the next suspect comes due.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.suspects.iter().map(|suspect| suspect.due_at);
        due.chain(self.resting.values().copied()).filter(|due_at| *due_at > now).min()
    }

    /// Its suspects may not be claimed before then, though it looked as if they might.
    pub(super) fn rest(&mut self, endpoint: EndpointId, until: Timestamp) {
        self.resting.insert(endpoint, until);
    }

    /// Something changed: whoever rested may be asked for again.
    pub(super) fn wake_all(&mut self) {
        self.resting.clear();
    }

    fn rests(&self, endpoint: EndpointId, now: Timestamp) -> bool {
        self.resting.get(&endpoint).is_some_and(|until| *until > now)
    }

    fn run(&mut self, trial: Trial) -> Trial {
        let messages = trial.suspects.iter().map(|suspect| suspect.id).collect();
        self.stage = Stage::Running { isolated: trial.isolated, messages };
        trial
    }

    fn keep(&mut self, keep: impl Fn(MessageId) -> bool) -> bool {
        let Stage::Running { messages, .. } = &mut self.stage else { return false };
        messages.retain(|message| keep(*message));
        let over = messages.is_empty();
        if over {
            self.stage = Stage::Idle;
            // Where they stand now is for the store to say.
            self.suspects.clear();
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn suspect(id: i64, losses: u32, due: i64) -> Suspect {
        let (budget_used, max_attempts) = (losses, None);
        Suspect {
            id: MessageId(id),
            endpoint: EndpointId(1),
            losses,
            due_at: at(due),
            budget_used,
            max_attempts,
        }
    }

    fn probation(suspects: &[Suspect]) -> Probation {
        Probation { suspects: suspects.to_vec(), ..Probation::default() }
    }

    fn next(probation: &mut Probation, empty: bool, is_last: bool) -> Option<Trial> {
        probation.next_trial(at(100), empty, |_| true, |_| is_last)
    }

    #[test]
    fn once_lost_messages_come_back_at_most_eight_at_a_time() {
        let many: Vec<Suspect> = (1..=20).map(|id| suspect(id, 1, id)).collect();
        let mut probation = probation(&many);
        assert_eq!(next(&mut probation, false, false).expect("some are due").suspects.len(), PROBATION_BATCH);
        assert_eq!(next(&mut probation, false, false), None, "the next ones wait for these");
        for id in 1..=8 {
            assert_eq!(probation.settled(MessageId(id)), id == 8);
        }
    }

    #[test]
    fn a_twice_lost_message_has_no_other_suspect_beside_it() {
        let suspects = [suspect(1, 2, 1), suspect(2, 1, 2)];
        let trial = next(&mut probation(&suspects), false, false);
        assert_eq!(trial, Some(Trial { suspects: vec![suspects[0]], isolated: false }));
        let suspects = [suspect(1, 1, 1), suspect(2, 2, 2), suspect(3, 1, 3)];
        let trial = next(&mut probation(&suspects), false, false);
        assert_eq!(trial, Some(Trial { suspects: vec![suspects[0], suspects[2]], isolated: false }));
    }

    #[test]
    fn a_last_attempt_waits_for_an_empty_node_and_keeps_it_empty() {
        let suspects = [suspect(1, 2, 1)];
        let mut probation = probation(&suspects);
        assert_eq!(next(&mut probation, false, true), None);
        assert!(probation.wants_the_node_empty());
        let trial = next(&mut probation, true, true);
        assert_eq!(trial, Some(Trial { suspects: suspects.to_vec(), isolated: true }));
        assert!(probation.wants_the_node_empty());
        assert!(probation.settled(MessageId(1)));
        assert!(!probation.wants_the_node_empty());
    }

    #[test]
    fn a_trial_that_claimed_nothing_is_over() {
        let mut probation = probation(&[suspect(1, 1, 1)]);
        assert!(next(&mut probation, false, false).is_some());
        assert!(probation.claimed(|_| false));
    }

    #[test]
    fn suspects_of_a_resting_endpoint_let_those_of_others_go_first() {
        let other = Suspect { endpoint: EndpointId(2), ..suspect(2, 1, 2) };
        let mut probation = probation(&[suspect(1, 1, 1), other]);
        probation.rest(EndpointId(1), at(101));
        assert_eq!(probation.next_due(at(100)), Some(at(101)));
        assert_eq!(
            next(&mut probation, false, false),
            Some(Trial { suspects: vec![other], isolated: false })
        );
    }

    #[test]
    fn nobody_is_tried_before_he_is_due() {
        assert_eq!(next(&mut probation(&[suspect(1, 1, 101)]), true, false), None);
    }
}
