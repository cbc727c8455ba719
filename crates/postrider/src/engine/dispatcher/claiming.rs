//! What to claim: suspects on trial, probes of circuits, and whatever is due, shared fairly.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{CLAIM_ENDPOINTS_MAX, CLAIM_MESSAGES_MAX, Dispatcher, STORE_BACKOFF_MIN, SUSPECTS_REST};
use crate::breaker::Permission;
use crate::endpoint::EndpointId;
use crate::engine::journal::{self, Line};
use crate::engine::lane::Work;
use crate::error::StoreError;
use crate::message::{MessageId, State};
use crate::store::{ClaimRequest, Claimed, Expired, NextDue, Pick, Suspect, Unreadable, Want};

impl Dispatcher {
    /// None when there is nothing to ask for, or no room.
    pub(super) fn claim_request(&mut self) -> Option<ClaimRequest> {
        let mut request = ClaimRequest {
            node: self.parts.lease.node(),
            batch: self.next_batch,
            wants: Vec::new(),
            alone: false,
        };
        // Suspects are claimed in a batch of their own, in turn with the others.
        let others_first = self.suspects_had_their_turn;
        if !others_first {
            self.want_suspects(&mut request);
        }
        self.suspects_had_their_turn = !request.wants.is_empty();
        if request.wants.is_empty() && !self.probation.wants_the_node_empty() {
            self.want_probes(&mut request);
            self.want_due(&mut request);
        }
        if request.wants.is_empty() && others_first {
            self.want_suspects(&mut request);
        }
        if request.wants.is_empty() {
            return None;
        }
        self.next_batch += 1;
        Some(request)
    }

    /// Shares the node's free room evenly among the endpoints in line.
    fn want_due(&mut self, request: &mut ClaimRequest) {
        let now = self.parts.store.now();
        let suspected: HashSet<EndpointId> = self.probation.due_endpoints(now).into_iter().collect();
        let mut left = CLAIM_MESSAGES_MAX.min(self.parts.slots.free());
        let in_turn = self.lanes.in_line().min(CLAIM_ENDPOINTS_MAX);
        let share = (left / in_turn.max(1) as u32).max(1);
        for _ in 0..in_turn {
            if left == 0 {
                return;
            }
            let Some(id) = self.lanes.next_in_line() else { return };
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            match lane.permission(now) {
                // What changes that wakes it again.
                None => {}
                Some(Permission::Wait { until }) => self.lanes.wait_until(id, until),
                Some(Permission::Probe) => self.take_probe(id, now),
                Some(Permission::Deliver) => {
                    // A stock would keep suspects from finding room.
                    let limit =
                        if suspected.contains(&id) { lane.concurrency.limit() } else { lane.claims_max() };
                    let wanted = lane.supply.at_once(share.min(left));
                    let room = self.parts.slots.reserve_due(&lane.slot, limit, wanted);
                    if room > 0 {
                        lane.supply.claimed(now);
                        lane.work = Work::Asked;
                        left -= room;
                        request.wants.push(Want { endpoint: id, room, pick: Pick::Due });
                    } else if self.parts.slots.free() == 0 {
                        // Senders took the node's last room meanwhile: it is this one's turn again.
                        self.lanes.first_in_line(id);
                        return;
                    } else if self.parts.slots.only_kept_room_for(&lane.slot) {
                        // Behind it there may be prompt ones.
                        self.lanes.has_room_again(id);
                    }
                    // Without room of its own it waits for one of its attempts to end.
                }
            }
        }
    }

    /// One message for each half-open circuit whose probe this node holds.
    fn want_probes(&mut self, request: &mut ClaimRequest) {
        while let Some(id) = self.circuits.next_probe() {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if self.parts.slots.reserve(&lane.slot, u32::MAX, 1) == 0 {
                self.circuits.may_probe(id);
                return;
            }
            lane.work = Work::Asked;
            request.wants.push(Want { endpoint: id, room: 1, pick: Pick::Probe });
        }
    }

    /// The next suspects that may be tried; a claim with one that must be alone asks for nothing else.
    fn want_suspects(&mut self, request: &mut ClaimRequest) {
        if self.parts.slots.free() == 0 {
            return;
        }
        let now = self.parts.store.now();
        for endpoint in self.probation.due_endpoints(now) {
            // Suspects can probe a circuit too, when nothing else is there to do it.
            if self.lanes.get(endpoint).is_some_and(|lane| lane.permission(now) == Some(Permission::Probe)) {
                self.wake(endpoint);
            }
        }
        let lanes = &self.lanes;
        let may_try = |suspect: &Suspect| {
            lanes.get(suspect.endpoint).is_some_and(|lane| {
                lane.permission(now) == Some(Permission::Deliver)
                    && lane.slot.has_room(lane.endpoint.max_in_flight())
            })
        };
        let is_last = |suspect: &Suspect| {
            let lane = lanes.get(suspect.endpoint);
            lane.is_some_and(|lane| {
                !lane.policy.limited_to(suspect.max_attempts).allows_another(suspect.budget_used + 1)
            })
        };
        let was_filling = !self.probation.wants_the_node_empty();
        let trial = self.probation.next_trial(now, self.parts.slots.is_idle(), may_try, is_last);
        if was_filling && self.probation.wants_the_node_empty() {
            self.publish_room();
            self.give_back_stocks();
        }
        let Some(trial) = trial else { return };
        let mut by_endpoint: HashMap<EndpointId, Vec<MessageId>> = HashMap::new();
        for suspect in trial.suspects {
            by_endpoint.entry(suspect.endpoint).or_default().push(suspect.id);
        }
        for (endpoint, mut ids) in by_endpoint {
            // Its endpoint may have been dropped since it was found.
            let Some(lane) = self.lanes.get_mut(endpoint) else {
                ids.into_iter().for_each(|id| self.trial_ended(id));
                continue;
            };
            let limit = lane.endpoint.max_in_flight();
            let wanted = lane.supply.at_once(ids.len() as u32);
            let room = self.parts.slots.reserve(&lane.slot, limit, wanted);
            let without_room = ids.split_off(room as usize);
            if room > 0 {
                lane.supply.claimed(now);
                request.alone = trial.isolated;
                request.wants.push(Want { endpoint, room, pick: Pick::Suspects(ids) });
            }
            without_room.into_iter().for_each(|id| self.trial_ended(id));
        }
    }

    pub(super) fn claim_answered(&mut self, claiming: Vec<Want>, claimed: Result<Claimed, StoreError>) {
        let claimed = match claimed {
            Ok(claimed) => {
                self.backoff = STORE_BACKOFF_MIN;
                claimed
            }
            Err(error) => {
                self.store_failed("claim", &error);
                Claimed::default()
            }
        };
        let mut got: HashMap<EndpointId, u32> = HashMap::new();
        claimed.claims.iter().for_each(|claim| *got.entry(claim.message.endpoint).or_default() += 1);
        let is_claimed = |id: &MessageId| claimed.claims.iter().any(|claim| claim.message.id == *id);
        for (n, want) in claiming.into_iter().enumerate() {
            let of_endpoint = got.entry(want.endpoint).or_default();
            let used = match &want.pick {
                Pick::Suspects(ids) => ids.iter().filter(|id| is_claimed(id)).count() as u32,
                // Suspects are asked for first, so theirs are taken off already.
                Pick::Due | Pick::Probe => want.room.min(*of_endpoint),
            };
            *of_endpoint -= used;
            self.parts.slots.release(want.endpoint, want.room - used);
            if matches!(want.pick, Pick::Probe) && used == 0 {
                self.give_up_probe(want.endpoint);
            }
            match (want.pick, claimed.next.get(n)) {
                // It says nothing about the endpoint's other messages, for which the same claim may ask.
                (Pick::Suspects(ids), next) => {
                    ids.into_iter().filter(|id| !is_claimed(id)).for_each(|id| self.trial_ended(id));
                    if let Some((id, next)) = next.filter(|_| used < want.room) {
                        let until = match next {
                            NextDue::At(until) => *until,
                            NextDue::Now | NextDue::Nothing => self.parts.store.now() + SUSPECTS_REST,
                        };
                        self.probation.rest(*id, until);
                    }
                }
                (Pick::Due | Pick::Probe, Some((id, next))) => self.lanes.answered(*id, *next),
                (Pick::Due | Pick::Probe, None) => self.wake(want.endpoint),
            }
        }
        self.log_expired(&claimed.expired);
        self.log_unreadable(claimed.unreadable);
        claimed.claims.into_iter().for_each(|claim| self.take_up(claim));
    }

    fn log_expired(&self, expired: &[Expired]) {
        if expired.is_empty() || !journal::is_enabled(State::Expired) {
            return;
        }
        for expired in expired {
            self.parts.journal.put(Line::expired(*expired, self.name_of(expired.endpoint)));
        }
    }

    fn log_unreadable(&self, unreadable: Vec<Unreadable>) {
        for unreadable in unreadable {
            let name = self.name_of(unreadable.endpoint);
            self.parts.journal.put(Line::unreadable(unreadable, name));
        }
    }

    fn name_of(&self, endpoint: EndpointId) -> Arc<str> {
        self.lanes.get(endpoint).map_or_else(|| "".into(), |lane| lane.endpoint.name.clone())
    }
}
