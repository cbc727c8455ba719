//! Random operations against the store and an obvious model of it, in lockstep: every answer and every
//! message's state must be the same.

use std::time::Duration;

use postrider::endpoint::EndpointId;
use postrider::error::StoreError;
use postrider::message::NodeId;
use postrider::store::{self, DlqStatus, End, Pick, Redrive, Want};
use postrider::verdict::Verdict;
use postrider::{MessageId, Operate, State, Store};
use proptest::sample::Index;
use serde_json::json;

use self::mail::{Accepted, ENDPOINTS, Effect, Mail, Place};
use super::world::{DEAD, Harness, Ticket, World, retry_at};

pub(crate) use operations::{Ending, Letter, Operation, operations};

mod mail;
mod operations;

/// How many of those that nothing can happen to any more are tried all the same.
const STALE_MAX: usize = 2;
/// As often as nodes do it: a store that hears of nobody for longer takes itself to have been away.
const HEARTBEAT_SECONDS: u64 = 5;

/// Runs the operations; panics at the first difference.
pub(crate) async fn run<H: Harness>(operations: Vec<Operation>) {
    Pair::<H>::start().await.run(operations).await;
}

/// The same with a move to another store in the middle.
pub(crate) async fn run_and_move<H: Harness, G: Harness>(
    before: Vec<Operation>,
    to_another: impl AsyncFnOnce(World<H>) -> World<G>,
    after: Vec<Operation>,
) {
    let mut pair = Pair::<H>::start().await;
    pair.run(before).await;
    pair.moved(to_another).await.run(after).await;
}

/// A store and its model.
struct Pair<H: Harness> {
    world: World<H>,
    mail: Mail,
    endpoints: Vec<EndpointId>,
    nodes: [NodeId; 2],
    /// Every claim ever made.
    tickets: Vec<Ticket>,
}

impl<H: Harness> Pair<H> {
    async fn start() -> Self {
        let world = World::<H>::start().await;
        let mut endpoints = vec![world.a];
        for policy in &ENDPOINTS[1..] {
            let scope = if policy.global { "global" } else { "endpoint" };
            let on_dead = if policy.hold { "hold" } else { "continue" };
            endpoints
                .push(world.endpoint(policy.name, json!({"key_scope": scope, "on_dead": on_dead})).await);
        }
        let nodes = [world.node, world.another_node().await];
        Self { world, mail: Mail::default(), endpoints, nodes, tickets: Vec::new() }
    }

    async fn run(&mut self, operations: Vec<Operation>) {
        for (step, operation) in operations.into_iter().enumerate() {
            self.step(operation).await;
            self.compare_waiting().await;
            self.compare_suspects().await;
            if step % 32 == 31 {
                self.compare().await;
            }
        }
        self.compare().await;
    }

    /// Its nodes died; what they held is lost.
    async fn moved<G: Harness>(self, to_another: impl AsyncFnOnce(World<H>) -> World<G>) -> Pair<G> {
        let (world, mut mail) = (to_another(self.world).await, self.mail);
        for lost in world.store().lost_claims(1000).await.unwrap() {
            let fence = mail.messages.get_mut(&lost.id).and_then(|message| message.fence.as_mut());
            let fence = fence.expect("only what was claimed is lost");
            // Batches are counted anew; the node is the one it was.
            assert_eq!(lost.fence.node, fence.node);
            *fence = lost.fence;
        }
        let nodes = [world.node, world.another_node().await];
        let mut pair = Pair { world, mail, endpoints: self.endpoints, nodes, tickets: self.tickets };
        pair.lose_claims(&self.nodes, false).await;
        pair
    }

    async fn step(&mut self, operation: Operation) {
        match operation {
            Operation::Send(letter) => self.send(&[letter], false).await,
            Operation::Batch(letters) => self.send(&letters, true).await,
            Operation::Claim { node, endpoint, room } => self.claim(node, endpoint, room).await,
            Operation::ClaimSuspects { node } => self.claim_suspects(node).await,
            Operation::Settle(which, ending) => self.settle(which, ending).await,
            Operation::Freeze { node, dead } => self.freeze(node, dead).await,
            Operation::Crash => self.crash().await,
            Operation::Pass(seconds) => self.pass(seconds, &[0, 1]).await,
            Operation::Cancel(which) => self.cancel(which).await,
            Operation::Reschedule(which, seconds) => self.reschedule(which, seconds).await,
            Operation::RedriveOne(which) => self.redrive_one(which).await,
            Operation::RedriveEndpoint(endpoint) => {
                let selection = Redrive::Endpoint(ENDPOINTS[endpoint].name.into());
                self.redrive(selection, self.mail.redrivable(Some(endpoint))).await;
            }
            Operation::RedriveAll => self.redrive(Redrive::All, self.mail.redrivable(None)).await,
            Operation::Discard(which) => self.discard(which).await,
            Operation::Release { key, endpoint } => {
                let (name, text) = (ENDPOINTS[endpoint].name, format!("key {key}"));
                let released = self.world.store().release_key(&text, Some(name)).await.unwrap();
                assert_eq!(released, self.mail.release(mail::key_of(endpoint, key)));
            }
        }
    }

    async fn send(&mut self, letters: &[Letter], as_batch: bool) {
        let now = self.world.now();
        let mut messages = letters.iter().map(|letter| letter.message(now));
        let sent = match as_batch {
            true => self.world.store().send_batch(messages.collect()).await,
            false => {
                self.world.store().send(messages.next().expect("one letter")).await.map(|sent| vec![sent])
            }
        };
        // All or nothing: a refused batch leaves the model as it was.
        let mut after = self.mail.clone();
        for (at, letter) in letters.iter().enumerate() {
            match (after.accept(letter, now), &sent) {
                (Accepted::New, Ok(sent)) => {
                    assert!(!sent[at].duplicate, "{letter:?}");
                    after.insert(sent[at].id, letter, now);
                }
                (Accepted::Duplicate(id), Ok(sent)) => {
                    assert_eq!((sent[at].id, sent[at].duplicate), (id, true))
                }
                (Accepted::Conflict(id), Err(StoreError::IdempotencyConflict { holder, at: refused })) => {
                    // Nobody is told of one that is rolled back with the batch.
                    let stays = self.mail.messages.contains_key(&id);
                    assert_eq!((*holder, *refused), (stays.then_some(id), at));
                    return;
                }
                (Accepted::Conflict(id), other) => panic!("{other:?} instead of a conflict with {id}"),
                (Accepted::New, Err(StoreError::IdempotencyConflict { .. })) => {
                    // A later one of the batch is to blame; stand in for what was rolled back.
                    after.insert(MessageId(i64::MAX - at as i64), letter, now);
                }
                (Accepted::Duplicate(_), Err(StoreError::IdempotencyConflict { .. })) => {}
                (accepted, Err(error)) => panic!("{error} instead of {accepted:?}"),
            }
        }
        assert!(sent.is_ok(), "{sent:?} and nothing was wrong with {letters:?}");
        self.mail = after;
    }

    async fn claim(&mut self, node: usize, endpoint: Place, room: u32) {
        self.expire().await;
        let mut expected = self.mail.claimable(endpoint, self.world.now());
        expected.truncate(room as usize);
        let tickets = self.world.claim_as(self.nodes[node], self.endpoints[endpoint], room).await;
        assert_eq!(tickets.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), expected);
        self.note_claims(tickets);
    }

    async fn claim_suspects(&mut self, node: usize) {
        self.expire().await;
        let now = self.world.now();
        let suspects = self.mail.suspects();
        for endpoint in 0..ENDPOINTS.len() {
            let of_it = |id: &&MessageId| self.mail.messages[id].endpoint == endpoint;
            let asked: Vec<MessageId> = suspects.iter().filter(of_it).copied().collect();
            let due: Vec<MessageId> =
                asked.iter().copied().filter(|id| self.mail.messages[id].due_at <= now).collect();
            let want = Want { endpoint: self.endpoints[endpoint], room: 100, pick: Pick::Suspects(asked) };
            let claimed = self.world.ask(self.nodes[node], false, vec![want]).await;
            let tickets: Vec<Ticket> = claimed.claims.iter().map(Ticket::of).collect();
            assert_eq!(tickets.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), due);
            self.note_claims(tickets);
        }
    }

    fn note_claims(&mut self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.mail.claim(ticket.id, ticket.fence);
            assert_eq!(ticket.attempt, self.mail.messages[&ticket.id].attempts);
            self.tickets.push(ticket);
        }
    }

    async fn settle(&mut self, which: Index, ending: Ending) {
        let is_current = |ticket: &&Ticket| self.mail.messages[&ticket.id].fence == Some(ticket.fence);
        let current = self.tickets.iter().filter(is_current);
        let stale = self.tickets.iter().rev().filter(|ticket| !is_current(ticket)).take(STALE_MAX);
        let tickets: Vec<Ticket> = current.chain(stale).copied().collect();
        if tickets.is_empty() {
            return;
        }
        let ticket = *which.get(&tickets);
        let ending = match ending {
            // Only what can expire does.
            Ending::Expire | Ending::Unstarted if self.mail.messages[&ticket.id].expires_at.is_none() => {
                Ending::Released
            }
            ending => ending,
        };
        self.settle_ticket(ticket, ending).await;
    }

    async fn settle_ticket(&mut self, ticket: Ticket, ending: Ending) {
        let now = self.world.now();
        let settled = match ending {
            Ending::Complete => self.world.complete(ticket).await,
            Ending::Retry(seconds) => self.world.retry(ticket, seconds).await,
            Ending::Dead => self.world.die(ticket).await,
            Ending::Expire => self.world.settle(ticket, Verdict::Expire).await,
            Ending::Released => self.world.end(ticket, End::Released).await,
            Ending::Unstarted => self.world.end(ticket, End::ExpiredUnstarted).await,
            Ending::Lost => self.world.lose_ticket(ticket, retry_at(now)).await,
            Ending::LostForGood => self.world.lose_ticket(ticket, DEAD).await,
        };
        let letter = match settled.effect {
            store::Effect::Applied(State::Dead) => self.world.story(ticket.id).await.dlq_id,
            _ => None,
        };
        let (effect, next) = self.mail.settle(ticket.id, ticket.fence, ending, letter, now);
        let expected = match effect {
            Effect::Applied(state) => store::Effect::Applied(state),
            Effect::Fenced => store::Effect::Fenced,
            Effect::Noted => store::Effect::Noted,
        };
        assert_eq!(settled.effect, expected, "{ticket:?} {ending:?}");
        let unblocked = next.map(|next| self.endpoints[self.mail.messages[&next].endpoint]);
        assert_eq!(settled.unblocked, unblocked, "{ticket:?} {ending:?}");
    }

    /// One node is silent until its lease is over; another takes its place.
    async fn freeze(&mut self, node: usize, dead: bool) {
        self.pass(16, &[1 - node]).await;
        self.lose_claims(&[self.nodes[node]], dead).await;
        self.nodes[node] = self.world.another_node().await;
    }

    async fn crash(&mut self) {
        let before = self.nodes;
        self.world.crash().await;
        self.nodes = [self.world.node, self.world.another_node().await];
        self.pass(16, &[0, 1]).await;
        self.lose_claims(&before, false).await;
    }

    async fn lose_claims(&mut self, of: &[NodeId], dead: bool) {
        let mut lost = self.world.store().lost_claims(1000).await.unwrap();
        lost.sort_by_key(|lost| lost.id);
        let held = |message: &mail::Message| message.fence.is_some_and(|fence| of.contains(&fence.node));
        let expected: Vec<MessageId> =
            self.mail.messages.iter().filter(|(_, message)| held(message)).map(|(id, _)| *id).collect();
        assert_eq!(lost.iter().map(|lost| lost.id).collect::<Vec<_>>(), expected);
        for lost in lost {
            let message = &self.mail.messages[&lost.id];
            assert_eq!((lost.attempt, lost.losses), (message.attempts, message.losses));
            assert_eq!(Some(lost.fence), message.fence);
            let ticket =
                Ticket { id: lost.id, endpoint: lost.endpoint, fence: lost.fence, attempt: lost.attempt };
            self.settle_ticket(ticket, if dead { Ending::LostForGood } else { Ending::Lost }).await;
        }
    }

    async fn pass(&mut self, seconds: u64, alive: &[usize]) {
        for begin in (0..seconds).step_by(HEARTBEAT_SECONDS as usize) {
            self.world.advance((seconds - begin).min(HEARTBEAT_SECONDS));
            for node in alive {
                self.world.store().heartbeat(self.nodes[*node]).await.expect("a living node keeps its lease");
            }
        }
    }

    async fn expire(&mut self) {
        let expired = self.world.store().upkeep(1000).await.unwrap().len();
        assert_eq!(expired, self.mail.expire(self.world.now()));
    }

    fn pick_message(&self, which: Index) -> Option<MessageId> {
        let is_queued =
            |id: &&MessageId| matches!(self.mail.messages[id].state, State::Pending | State::Processing);
        let queued = self.mail.messages.keys().filter(is_queued);
        let finished = self.mail.messages.keys().rev().filter(|id| !is_queued(id)).take(STALE_MAX);
        let ids: Vec<MessageId> = queued.chain(finished).copied().collect();
        (!ids.is_empty()).then(|| *which.get(&ids))
    }

    fn pick_letter(&self, which: Index) -> Option<i64> {
        let is_failed = |id: &&i64| self.mail.letters[id].status == DlqStatus::Failed;
        let failed = self.mail.letters.keys().filter(is_failed);
        let ended = self.mail.letters.keys().rev().filter(|id| !is_failed(id)).take(STALE_MAX);
        let ids: Vec<i64> = failed.chain(ended).copied().collect();
        (!ids.is_empty()).then(|| *which.get(&ids))
    }

    async fn cancel(&mut self, which: Index) {
        let Some(id) = self.pick_message(which) else { return };
        let done = self.world.store().cancel(id).await;
        assert_eq!(done.is_ok(), self.mail.cancel(id), "{id}: {done:?}");
    }

    async fn reschedule(&mut self, which: Index, seconds: u64) {
        let Some(id) = self.pick_message(which) else { return };
        let at = self.world.now() + Duration::from_secs(seconds);
        let done = self.world.store().reschedule(id, at).await;
        assert_eq!(done.is_ok(), self.mail.reschedule(id, at), "{id}: {done:?}");
    }

    async fn redrive_one(&mut self, which: Index) {
        let Some(letter) = self.pick_letter(which) else { return };
        match self.mail.letters[&letter].status {
            DlqStatus::Failed => self.redrive(Redrive::One(letter), vec![letter]).await,
            DlqStatus::Redriven | DlqStatus::Discarded => {
                self.world
                    .store()
                    .redrive(Redrive::One(letter))
                    .await
                    .expect_err("it is not failed any more");
            }
        }
    }

    async fn redrive(&mut self, selection: Redrive, letters: Vec<i64>) {
        let redriven = self.world.store().redrive(selection).await.unwrap();
        assert_eq!(redriven, letters.len() as u64);
        self.mail.redrive(&letters, self.world.now());
    }

    async fn discard(&mut self, which: Index) {
        let Some(letter) = self.pick_letter(which) else { return };
        let failed = self.mail.letters[&letter].status == DlqStatus::Failed;
        assert_eq!(self.world.store().discard(letter).await.is_ok(), failed);
        if failed {
            self.mail.end_letter(letter, DlqStatus::Discarded);
        }
    }

    async fn compare(&mut self) {
        self.expire().await;
        for (id, message) in &self.mail.messages {
            let story = self.world.story(*id).await;
            assert_eq!(story.state, message.state, "{id}: {message:?}");
            let unfinished = matches!(message.state, State::Pending | State::Processing | State::Dead);
            assert!(!unfinished || story.attempt_count == message.attempts, "{id}: {message:?} {story:?}");
            let due_at = (message.state == State::Pending).then_some(message.due_at);
            assert_eq!(story.due_at, due_at, "{id}: {message:?}");
        }
        for letter in self.world.letters().await {
            assert_eq!(letter.status, self.mail.letters[&letter.id].status, "{letter:?}");
        }
        self.compare_counts().await;
    }

    async fn compare_suspects(&self) {
        let suspects = self.world.store().suspects(1000).await.unwrap();
        let mut ids: Vec<MessageId> = suspects.iter().map(|suspect| suspect.id).collect();
        ids.sort();
        assert_eq!(ids, self.mail.suspects());
    }

    async fn compare_waiting(&self) {
        let mut waiting = self.world.store().waiting().await.unwrap();
        waiting.sort_by_key(|waiting| waiting.endpoint);
        let earliest = |endpoint: Place| {
            let free = |(id, message): &(&MessageId, &mail::Message)| {
                message.endpoint == endpoint && message.losses == 0 && self.mail.is_free(**id)
            };
            self.mail.messages.iter().filter(free).map(|(_, message)| message.due_at).min()
        };
        let expected = (0..ENDPOINTS.len()).filter_map(|endpoint| {
            earliest(endpoint).map(|due_at| store::Waiting { endpoint: self.endpoints[endpoint], due_at })
        });
        assert_eq!(waiting, expected.collect::<Vec<_>>());
    }

    async fn compare_counts(&self) {
        let status = self.world.store().status().await.unwrap();
        for (endpoint, policy) in ENDPOINTS.iter().enumerate() {
            let of_it = status.endpoints.iter().find(|of| of.name == policy.name).expect("every endpoint");
            let count = |state| self.mail.count(endpoint, state);
            assert_eq!((of_it.pending, of_it.processing), (count(State::Pending), count(State::Processing)));
            assert_eq!(of_it.dead, self.mail.redrivable(Some(endpoint)).len() as u64, "{}", policy.name);
        }
        let sum = |of: fn(&store::EndpointStatus) -> u64| status.endpoints.iter().map(of).sum::<u64>();
        assert_eq!((status.pending, status.processing), (sum(|of| of.pending), sum(|of| of.processing)));
        assert_eq!(status.dead, sum(|of| of.dead));
    }
}
