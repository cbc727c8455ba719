//! What to claim: suspects, probes of half-open circuits, and due messages, shared fairly among endpoints.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use crate::breaker::Permission;
use crate::endpoint::EndpointId;
use crate::engine::endpoint_state::Work;
use crate::error::StoreError;
use crate::message::{MessageId, State};
use crate::outcome_log::{self, OutcomeLine};
use crate::store::{ClaimRequest, Claimed, Expired, NextDue, Pick, Suspect, Unreadable, Want};
use crate::verdict::Class;

/// Bounds of one claim, so that its transaction stays short.
const MESSAGES_MAX: u32 = 256;
const ENDPOINTS_MAX: usize = 128;
/// How long an endpoint's suspects are skipped if the store handed out none and does not say until when.
const SUSPECTS_REST: Duration = Duration::from_secs(1);

impl Dispatcher {
    pub(super) fn begin_claim(&mut self) {
        let may_claim = !self.stopping
            && self.parts.lease.is_valid()
            && self.parts.snapshot.paused.is_none()
            && !self.unsettled.is_full(self.parts.capacity.total());
        if may_claim && let Some(request) = self.claim_request() {
            let store = self.parts.store.clone();
            self.claiming = Some(Box::pin(async move {
                let wants = request.wants.clone();
                (wants, store.claim(request).await)
            }));
        }
    }

    /// None when there is nothing to claim, or no free slot.
    fn claim_request(&mut self) -> Option<ClaimRequest> {
        let mut request = ClaimRequest {
            node: self.parts.lease.node(),
            batch: self.next_batch,
            wants: Vec::new(),
            alone: false,
        };
        // Suspects have claims to themselves, in turn with the other messages.
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

    /// Shares the node's free slots evenly among the endpoints in line.
    fn want_due(&mut self, request: &mut ClaimRequest) {
        let now = self.parts.store.now();
        let suspected: HashSet<EndpointId> = self.probation.due_endpoints(now).into_iter().collect();
        let mut left = MESSAGES_MAX.min(self.parts.capacity.free());
        let in_turn = self.endpoints.in_line().min(ENDPOINTS_MAX);
        let share = (left / in_turn.max(1) as u32).max(1);
        for _ in 0..in_turn {
            if left == 0 {
                return;
            }
            let Some(id) = self.endpoints.next_in_line() else { return };
            let Some(state) = self.endpoints.get_mut(id) else { continue };
            match state.permission(now) {
                // What changes the permission wakes the endpoint.
                None => {}
                Some(Permission::Wait { until }) => self.endpoints.wait_until(id, until),
                Some(Permission::Probe) => self.take_probe(id, now),
                Some(Permission::Deliver) => {
                    // Prefetched claims would leave no slots for suspects.
                    let limit =
                        if suspected.contains(&id) { state.concurrency.limit() } else { state.claims_max() };
                    let wanted = state.shortage.at_once(share.min(left));
                    let room = self.parts.capacity.reserve_due(&state.capacity, limit, wanted);
                    if room > 0 {
                        state.shortage.claimed(now);
                        state.work = Work::Asked;
                        left -= room;
                        request.wants.push(Want { endpoint: id, room, pick: Pick::Due });
                    } else if self.parts.capacity.free() == 0 {
                        // Direct claims took the last free slots: this endpoint stays first.
                        self.endpoints.first_in_line(id);
                        return;
                    } else if self.parts.capacity.only_reserve_left_for(&state.capacity) {
                        // Prompt endpoints may follow it in the line.
                        self.endpoints.reconsider(id);
                    }
                    // An endpoint at its own limit is lined up again when one of its attempts ends.
                }
            }
        }
    }

    /// One message for each half-open circuit whose probe this node holds.
    fn want_probes(&mut self, request: &mut ClaimRequest) {
        while let Some(id) = self.circuits.next_probe() {
            let Some(state) = self.endpoints.get_mut(id) else { continue };
            if self.parts.capacity.reserve(&state.capacity, u32::MAX, 1) == 0 {
                self.circuits.add_probe(id);
                return;
            }
            state.work = Work::Asked;
            request.wants.push(Want { endpoint: id, room: 1, pick: Pick::Probe });
        }
    }

    /// The next suspects that may be tried. A suspect that must be alone is the only one in its claim.
    fn want_suspects(&mut self, request: &mut ClaimRequest) {
        if self.parts.capacity.free() == 0 {
            return;
        }
        let now = self.parts.store.now();
        for endpoint in self.probation.due_endpoints(now) {
            // If it has only suspects, one of them probes the circuit.
            let permission = self.endpoints.get(endpoint).and_then(|state| state.permission(now));
            if permission == Some(Permission::Probe) {
                self.wake(endpoint);
            }
        }
        let endpoints = &self.endpoints;
        let may_try = |suspect: &Suspect| {
            endpoints.get(suspect.endpoint).is_some_and(|state| {
                state.permission(now) == Some(Permission::Deliver)
                    && state.capacity.has_free(state.endpoint.max_in_flight())
            })
        };
        let is_last = |suspect: &Suspect| {
            endpoints.get(suspect.endpoint).is_some_and(|state| {
                !state.policy.limited_to(suspect.max_attempts).allows_another(suspect.budget_used + 1)
            })
        };
        let was_filling = !self.probation.wants_the_node_empty();
        let batch = self.probation.next_batch(now, self.parts.capacity.is_idle(), may_try, is_last);
        if was_filling && self.probation.wants_the_node_empty() {
            self.update_direct_limits();
            self.release_all_prefetched();
        }
        let Some(batch) = batch else { return };
        let mut by_endpoint: HashMap<EndpointId, Vec<MessageId>> = HashMap::new();
        for suspect in batch.suspects {
            by_endpoint.entry(suspect.endpoint).or_default().push(suspect.id);
        }
        for (endpoint, mut ids) in by_endpoint {
            // The endpoint may have been dropped since the store listed its suspects.
            let Some(state) = self.endpoints.get_mut(endpoint) else {
                ids.into_iter().for_each(|id| self.probation_ended(id));
                continue;
            };
            let limit = state.endpoint.max_in_flight();
            let wanted = state.shortage.at_once(ids.len() as u32);
            let room = self.parts.capacity.reserve(&state.capacity, limit, wanted);
            let without_room = ids.split_off(room as usize);
            if room > 0 {
                state.shortage.claimed(now);
                request.alone = batch.isolated;
                request.wants.push(Want { endpoint, room, pick: Pick::Suspects(ids) });
            }
            without_room.into_iter().for_each(|id| self.probation_ended(id));
        }
    }

    pub(super) fn claim_answered(&mut self, wants: Vec<Want>, claimed: Result<Claimed, StoreError>) {
        let claimed = match claimed {
            Ok(claimed) => {
                self.backoff.succeeded();
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
        for (n, want) in wants.into_iter().enumerate() {
            let of_endpoint = got.entry(want.endpoint).or_default();
            let used = match &want.pick {
                Pick::Suspects(ids) => ids.iter().filter(|id| is_claimed(id)).count() as u32,
                // Wants for suspects come first, so theirs are subtracted already.
                Pick::Due | Pick::Probe => want.room.min(*of_endpoint),
            };
            *of_endpoint -= used;
            self.parts.capacity.release(want.endpoint, want.room - used);
            if matches!(want.pick, Pick::Probe) && used == 0 {
                self.give_up_probe(want.endpoint);
            }
            match (want.pick, claimed.next.get(n)) {
                // This says nothing about the endpoint's other messages.
                (Pick::Suspects(ids), next) => {
                    ids.into_iter().filter(|id| !is_claimed(id)).for_each(|id| self.probation_ended(id));
                    if let Some((id, next)) = next.filter(|_| used < want.room) {
                        let until = match next {
                            NextDue::At(until) => *until,
                            NextDue::Now | NextDue::Nothing => self.parts.store.now() + SUSPECTS_REST,
                        };
                        self.probation.rest(*id, until);
                    }
                }
                (Pick::Due | Pick::Probe, Some((id, next))) => self.endpoints.claim_answered(*id, *next),
                (Pick::Due | Pick::Probe, None) => self.wake(want.endpoint),
            }
        }
        self.log_expired(&claimed.expired);
        self.log_unreadable(claimed.unreadable);
        claimed.claims.into_iter().for_each(|claim| self.take_up(claim));
    }

    fn log_expired(&self, expired: &[Expired]) {
        if !expired.is_empty() && outcome_log::is_enabled(State::Expired) {
            for Expired { id, endpoint, attempts } in expired {
                let name = self.name_of(*endpoint);
                self.parts.outcome_log.put(OutcomeLine::new(*id, name, State::Expired, *attempts));
            }
        }
    }

    fn log_unreadable(&self, unreadable: Vec<Unreadable>) {
        for Unreadable { id, endpoint, attempts, error } in unreadable {
            self.parts.outcome_log.put(OutcomeLine {
                class: Some(Class::Permanent),
                error: Some(error),
                ..OutcomeLine::new(id, self.name_of(endpoint), State::Dead, attempts)
            });
        }
    }

    fn name_of(&self, endpoint: EndpointId) -> Arc<str> {
        self.endpoints.get(endpoint).map_or_else(|| "".into(), |state| state.endpoint.name.clone())
    }
}
