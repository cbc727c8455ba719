//! Messages whose claim was lost with its node (suspects) are claimed a few at a time, so that a message that kills its
//! node is found without the others losing attempts. Pure: picks the next suspects and tracks those in flight.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::endpoint::EndpointId;
use crate::message::MessageId;
use crate::store::Suspect;

/// How many messages that lost one claim may be in flight on a node at a time.
const PROBATION_BATCH: usize = 8;

#[derive(Default)]
pub(super) struct Probation {
    /// As the store last listed them, oldest due first.
    suspects: Vec<Suspect>,
    /// Endpoints for which the store handed out no suspects, and until when they are skipped, so that suspects of other
    /// endpoints do not wait behind them.
    resting: HashMap<EndpointId, Timestamp>,
    stage: ProbationStage,
}

/// Which suspects are in flight on this node.
#[derive(Debug, Default, PartialEq, Eq)]
enum ProbationStage {
    #[default]
    Idle,
    /// Messages lost once, at most [`PROBATION_BATCH`]. The next joins as soon as one has ended.
    Together(Vec<MessageId>),
    /// A message lost twice or more; no other suspect is in flight.
    Single(MessageId),
    /// On its last attempt: waits until nothing else is in flight.
    Emptying(Suspect),
    /// On its last attempt; nothing else is in flight.
    Alone(MessageId),
}

/// Suspects to claim now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProbationBatch {
    pub(super) suspects: Vec<Suspect>,
    /// Nothing else is or will be in flight on the node, so a lost lease is this message's doing.
    pub(super) isolated: bool,
}

impl Probation {
    pub(super) fn found(&mut self, suspects: Vec<Suspect>) {
        self.suspects = suspects;
        // Some were claimed after the store listed them.
        let stage = &self.stage;
        self.suspects.retain(|suspect| !stage.includes(suspect.id));
    }

    /// `may_try`: the suspect's endpoint may be delivered to. `is_last`: the suspect's next attempt is the last of its
    /// budget, so that it could be dead after it.
    pub(super) fn next_batch(
        &mut self,
        now: Timestamp,
        node_is_empty: bool,
        may_try: impl Fn(&Suspect) -> bool,
        is_last: impl Fn(&Suspect) -> bool,
    ) -> Option<ProbationBatch> {
        match self.stage {
            ProbationStage::Idle | ProbationStage::Together(_) => {}
            ProbationStage::Emptying(suspect) if node_is_empty => return Some(self.try_one(suspect, true)),
            ProbationStage::Single(_) | ProbationStage::Emptying(_) | ProbationStage::Alone(_) => {
                return None;
            }
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
        if self.stage != ProbationStage::Idle {
            // It is next, after those in flight; no other joins them.
            return None;
        }
        if is_last(&first) && !node_is_empty {
            self.stage = ProbationStage::Emptying(first);
            return None;
        }
        Some(self.try_one(first, is_last(&first)))
    }

    /// Nothing else may start on this node.
    pub(super) fn wants_the_node_empty(&self) -> bool {
        match self.stage {
            ProbationStage::Emptying(_) | ProbationStage::Alone(_) => true,
            ProbationStage::Idle | ProbationStage::Together(_) | ProbationStage::Single(_) => false,
        }
    }

    /// A message is settled, or could not be claimed. True if it was a suspect in flight.
    #[must_use]
    pub(super) fn ended(&mut self, id: MessageId) -> bool {
        if !self.stage.includes(id) {
            return false;
        }
        match &mut self.stage {
            ProbationStage::Together(messages) if messages.len() > 1 => {
                messages.retain(|message| *message != id)
            }
            ProbationStage::Together(_) | ProbationStage::Single(_) | ProbationStage::Alone(_) => {
                self.stage = ProbationStage::Idle
            }
            ProbationStage::Idle | ProbationStage::Emptying(_) => {}
        }
        true
    }

    pub(super) fn due_endpoints(&self, now: Timestamp) -> Vec<EndpointId> {
        self.suspects.iter().filter(|suspect| suspect.due_at <= now).map(|suspect| suspect.endpoint).collect()
    }

    /// When the next suspect is due, or may be asked for again.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.suspects.iter().map(|suspect| suspect.due_at);
        due.chain(self.resting.values().copied()).filter(|due_at| *due_at > now).min()
    }

    /// Skips the endpoint's suspects until then.
    pub(super) fn rest(&mut self, endpoint: EndpointId, until: Timestamp) {
        self.resting.insert(endpoint, until);
    }

    /// Endpoints or settings changed: no endpoint is skipped any more.
    pub(super) fn wake_all(&mut self) {
        self.resting.clear();
    }

    fn rests(&self, endpoint: EndpointId, now: Timestamp) -> bool {
        self.resting.get(&endpoint).is_some_and(|until| *until > now)
    }

    fn try_one(&mut self, suspect: Suspect, isolated: bool) -> ProbationBatch {
        self.stage =
            if isolated { ProbationStage::Alone(suspect.id) } else { ProbationStage::Single(suspect.id) };
        self.suspects.retain(|other| other.id != suspect.id);
        ProbationBatch { suspects: vec![suspect], isolated }
    }

    /// Together with those in flight. None if no more may join.
    fn try_together(&mut self, group: Vec<Suspect>) -> Option<ProbationBatch> {
        let joining = group.iter().map(|suspect| suspect.id);
        match &mut self.stage {
            ProbationStage::Together(messages) => messages.extend(joining),
            stage => *stage = ProbationStage::Together(joining.collect()),
        }
        let stage = &self.stage;
        self.suspects.retain(|suspect| !stage.includes(suspect.id));
        (!group.is_empty()).then_some(ProbationBatch { suspects: group, isolated: false })
    }
}

impl ProbationStage {
    fn includes(&self, id: MessageId) -> bool {
        match self {
            Self::Idle | Self::Emptying(_) => false,
            Self::Together(messages) => messages.contains(&id),
            Self::Single(message) | Self::Alone(message) => *message == id,
        }
    }

    /// How many messages lost once may join.
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

    fn next(probation: &mut Probation, empty: bool, is_last: bool) -> Option<ProbationBatch> {
        probation.next_batch(at(100), empty, |_| true, |_| is_last)
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
            let batch = next(&mut probation, false, false);
            assert_eq!(batch, Some(ProbationBatch { suspects: vec![joins], isolated: false }));
        }
        assert!(probation.ended(MessageId(20)));
        assert_eq!(next(&mut probation, false, false), None, "none is left");
        assert!(!probation.ended(MessageId(20)), "it has ended before");
    }

    #[test]
    fn a_list_from_before_a_claim_tries_no_suspect_twice() {
        let mut probation = probation(&[suspect(1, 1, 1)]);
        assert!(next(&mut probation, false, false).is_some());
        probation.found(vec![suspect(1, 1, 1)]);
        assert_eq!(next(&mut probation, false, false), None);
    }

    #[test]
    fn a_twice_lost_message_waits_for_those_in_flight_and_lets_none_go_first() {
        let suspects = [suspect(1, 1, 1), suspect(2, 2, 2), suspect(3, 1, 3)];
        let mut probation = probation(&suspects[..1]);
        assert!(next(&mut probation, false, false).is_some());
        probation.found(suspects[1..].to_vec());
        assert_eq!(next(&mut probation, false, false), None);
        assert!(probation.ended(MessageId(1)));
        let batch = next(&mut probation, false, false);
        assert_eq!(batch, Some(ProbationBatch { suspects: vec![suspects[1]], isolated: false }));
        assert_eq!(next(&mut probation, false, false), None, "no other suspect beside it");
        assert!(probation.ended(MessageId(2)));
        assert!(next(&mut probation, false, false).is_some());
    }

    #[test]
    fn a_twice_lost_message_has_no_other_suspect_beside_it() {
        let suspects = [suspect(1, 2, 1), suspect(2, 1, 2)];
        let batch = next(&mut probation(&suspects), false, false);
        assert_eq!(batch, Some(ProbationBatch { suspects: vec![suspects[0]], isolated: false }));
        let suspects = [suspect(1, 1, 1), suspect(2, 2, 2), suspect(3, 1, 3)];
        let batch = next(&mut probation(&suspects), false, false);
        assert_eq!(batch, Some(ProbationBatch { suspects: vec![suspects[0], suspects[2]], isolated: false }));
    }

    #[test]
    fn a_last_attempt_waits_for_an_empty_node_and_keeps_it_empty() {
        let suspects = [suspect(1, 2, 1)];
        let mut probation = probation(&suspects);
        assert_eq!(next(&mut probation, false, true), None);
        assert!(probation.wants_the_node_empty());
        let batch = next(&mut probation, true, true);
        assert_eq!(batch, Some(ProbationBatch { suspects: suspects.to_vec(), isolated: true }));
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
            Some(ProbationBatch { suspects: vec![other], isolated: false })
        );
    }

    #[test]
    fn no_suspect_is_tried_before_it_is_due() {
        assert_eq!(next(&mut probation(&[suspect(1, 1, 101)]), true, false), None);
    }
}
