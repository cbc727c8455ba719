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

/// Who is on trial on this node.
#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Once-lost ones, at most [`PROBATION_BATCH`]: the next may join as soon as one of them ended.
    Together(Vec<MessageId>),
    /// No other suspect beside it.
    Single(MessageId),
    /// This one must be alone: it waits until nothing else is in flight.
    Emptying(Suspect),
    /// Nothing else beside it.
    Alone(MessageId),
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
        // Some may have been claimed since the store was asked.
        let stage = &self.stage;
        self.suspects.retain(|suspect| !stage.tries(suspect.id));
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
        match self.stage {
            Stage::Idle | Stage::Together(_) => {}
            Stage::Emptying(suspect) if node_is_empty => return Some(self.try_one(suspect, true)),
            Stage::Single(_) | Stage::Emptying(_) | Stage::Alone(_) => return None,
        }
        let mut due = self.suspects.iter().filter(|suspect| {
            suspect.due_at <= now && !self.rests(suspect.endpoint, now) && may_try(suspect)
        });
        let first = *due.next()?;
        if first.losses < 2 {
            let others = due.filter(|suspect| suspect.losses < 2).copied();
            let group = std::iter::once(first).chain(others).take(self.stage.room()).collect();
            return self.try_together(group);
        }
        if self.stage != Stage::Idle {
            // It is next: nobody joins those on trial any more, and it comes when they have ended.
            return None;
        }
        if is_last(&first) && !node_is_empty {
            self.stage = Stage::Emptying(first);
            return None;
        }
        Some(self.try_one(first, is_last(&first)))
    }

    /// Nothing else may start on this node.
    pub(super) fn wants_the_node_empty(&self) -> bool {
        match self.stage {
            Stage::Emptying(_) | Stage::Alone(_) => true,
            Stage::Idle | Stage::Together(_) | Stage::Single(_) => false,
        }
    }

    /// A message is settled, or could not be claimed. True when it was on trial.
    #[must_use]
    pub(super) fn ended(&mut self, id: MessageId) -> bool {
        if !self.stage.tries(id) {
            return false;
        }
        match &mut self.stage {
            Stage::Together(messages) if messages.len() > 1 => messages.retain(|message| *message != id),
            Stage::Together(_) | Stage::Single(_) | Stage::Alone(_) => self.stage = Stage::Idle,
            Stage::Idle | Stage::Emptying(_) => {}
        }
        true
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

    fn try_one(&mut self, suspect: Suspect, isolated: bool) -> Trial {
        self.stage = if isolated { Stage::Alone(suspect.id) } else { Stage::Single(suspect.id) };
        self.suspects.retain(|other| other.id != suspect.id);
        Trial { suspects: vec![suspect], isolated }
    }

    /// Beside those on trial already. None when there is room for none of them.
    fn try_together(&mut self, group: Vec<Suspect>) -> Option<Trial> {
        let joining = group.iter().map(|suspect| suspect.id);
        match &mut self.stage {
            Stage::Together(messages) => messages.extend(joining),
            stage => *stage = Stage::Together(joining.collect()),
        }
        let stage = &self.stage;
        self.suspects.retain(|suspect| !stage.tries(suspect.id));
        (!group.is_empty()).then_some(Trial { suspects: group, isolated: false })
    }
}

impl Stage {
    fn tries(&self, id: MessageId) -> bool {
        match self {
            Self::Idle | Self::Emptying(_) => false,
            Self::Together(messages) => messages.contains(&id),
            Self::Single(message) | Self::Alone(message) => *message == id,
        }
    }

    /// For once-lost ones.
    fn room(&self) -> usize {
        match self {
            Self::Idle => PROBATION_BATCH,
            Self::Together(messages) => PROBATION_BATCH.saturating_sub(messages.len()),
            Self::Single(_) | Self::Emptying(_) | Self::Alone(_) => 0,
        }
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
    }

    #[test]
    fn the_next_one_joins_as_soon_as_one_has_ended() {
        let many: Vec<Suspect> = (1..=20).map(|id| suspect(id, 1, id)).collect();
        let mut probation = probation(&many);
        assert!(next(&mut probation, false, false).is_some());
        for ended in 1..=12 {
            assert!(probation.ended(MessageId(ended)));
            let joins = many[PROBATION_BATCH + ended as usize - 1];
            let trial = next(&mut probation, false, false);
            assert_eq!(trial, Some(Trial { suspects: vec![joins], isolated: false }));
        }
        assert!(probation.ended(MessageId(20)));
        assert_eq!(next(&mut probation, false, false), None, "nobody is left");
        assert!(!probation.ended(MessageId(20)), "it has ended before");
    }

    #[test]
    fn what_the_store_said_before_a_claim_tries_nobody_twice() {
        let mut probation = probation(&[suspect(1, 1, 1)]);
        assert!(next(&mut probation, false, false).is_some());
        probation.found(vec![suspect(1, 1, 1)]);
        assert_eq!(next(&mut probation, false, false), None);
    }

    #[test]
    fn a_twice_lost_message_waits_for_those_on_trial_and_lets_nobody_go_first() {
        let suspects = [suspect(1, 1, 1), suspect(2, 2, 2), suspect(3, 1, 3)];
        let mut probation = probation(&suspects[..1]);
        assert!(next(&mut probation, false, false).is_some());
        probation.found(suspects[1..].to_vec());
        assert_eq!(next(&mut probation, false, false), None);
        assert!(probation.ended(MessageId(1)));
        let trial = next(&mut probation, false, false);
        assert_eq!(trial, Some(Trial { suspects: vec![suspects[1]], isolated: false }));
        assert_eq!(next(&mut probation, false, false), None, "no other suspect beside it");
        assert!(probation.ended(MessageId(2)));
        assert!(next(&mut probation, false, false).is_some());
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
        assert!(probation.ended(MessageId(1)));
        assert!(!probation.wants_the_node_empty());
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
