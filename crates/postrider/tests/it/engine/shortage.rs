//! What this node lacks costs a message no attempt, and says nothing about the receiver.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use postrider::breaker::CircuitName;
use postrider::clock::ManualClock;
use postrider::sink::{Environment, Resolve, Resource};
use postrider::{Engine, EngineOptions, NewMessage, Operate, State};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::receiver::Answer;
use super::world::{World, quick, to, until};

const A_SECOND: Duration = Duration::from_secs(1);

/// Finds the receiver, or fails as it is told.
#[derive(Debug, Default)]
struct Resolver(Mutex<(Option<Errno>, usize)>);

impl Resolver {
    fn fails(&self, with: impl Into<Option<Errno>>) {
        self.0.lock().unwrap().0 = with.into();
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

#[async_trait]
impl Resolve for Resolver {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        let mut state = self.0.lock().unwrap();
        state.1 += 1;
        match state.0 {
            Some(errno) => Err(errno.into()),
            None => Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]),
        }
    }
}

struct Short {
    world: World,
    clock: Arc<ManualClock>,
    resolver: Arc<Resolver>,
    engine: Engine,
}

impl Short {
    /// An endpoint that is found by name, on a node that lacks `errno`.
    async fn of(errno: Errno, endpoint: Value) -> Self {
        let (world, clock) = World::standing_still().await;
        world.configure("circuit_breaker_threshold", "1").await;
        world.configure("circuit_breaker_cooldown", "5").await;
        world.receiver.answer(Answer::ok());
        let mut named = json!({ "name": "a", "config": { "url": by_name(&world), "timeout": 50 } });
        named.as_object_mut().unwrap().extend(endpoint.as_object().unwrap().clone());
        world.endpoint_from(named).await;
        world.endpoint("witness").await;
        let resolver = Arc::new(Resolver::default());
        resolver.fails(errno);
        let options = world.options();
        let environment = Environment { resolver: resolver.clone(), ..options.environment };
        let engine = world.engine_with(EngineOptions { environment, ..options }).await;
        Self { world, clock, resolver, engine }
    }

    async fn until_asked(&self, times: usize) {
        until(|| self.resolver.asked() >= times).await;
    }

    /// The dispatcher has had time to do whatever it wants to do now.
    async fn settles(&self) {
        for _ in 0..3 {
            let witness = self.world.send("witness", 0).await;
            self.world.until_state(witness, State::Completed).await;
        }
    }

    fn counted(&self, resource: Resource) -> u64 {
        let figures = self.engine.measures().read();
        figures.shortages.iter().find(|(of, _)| *of == resource).expect("all are told").1
    }
}

fn by_name(world: &World) -> String {
    world.receiver.url("a").replace("127.0.0.1", "receiver.test")
}

#[tokio::test]
async fn a_shortage_is_no_attempt_and_no_failure_and_is_tried_once_a_second() {
    let short = Short::of(Errno::MFILE, json!({ "retry_policy": { "max_attempts": 1 } })).await;
    let first = short.world.send("a", 0).await;
    short.until_asked(1).await;
    short.settles().await;
    let mut sent = vec![first];
    for n in 1..10 {
        sent.push(short.world.send("a", n).await);
    }
    short.settles().await;
    assert_eq!(short.resolver.asked(), 1, "while the clock stands still nothing else is tried");
    for times in 2..5 {
        short.clock.advance(A_SECOND);
        short.until_asked(times).await;
        short.settles().await;
        assert_eq!(short.resolver.asked(), times, "one message a second finds out");
    }
    assert_eq!(short.counted(Resource::OpenFiles), 4);
    let endpoint = short.world.store.endpoint("a").await.unwrap();
    assert_eq!(endpoint.circuit.state.name(), CircuitName::Closed);
    for id in &sent {
        let story = short.world.story(*id).await;
        assert_eq!(
            (story.listed.state, story.listed.attempt_count, story.listed.last_error),
            (State::Pending, 0, None)
        );
    }

    short.resolver.fails(None);
    short.clock.advance(A_SECOND);
    for id in sent {
        let story = short.world.until_state(id, State::Completed).await;
        assert_eq!(story.listed.attempt_count, 1);
    }
    assert!(short.world.dead_letters().await.is_empty());
    short.engine.stop().await;
}

#[tokio::test]
async fn a_key_stays_in_order_through_a_shortage() {
    let short = Short::of(Errno::NOBUFS, json!({ "retry_policy": quick(1) })).await;
    let keyed = |n: usize| NewMessage { ordering_key: Some("k".to_owned()), ..to("a", n) };
    short.world.send_message(keyed(0)).await;
    short.until_asked(1).await;
    short.world.send_all((1..6).map(keyed).collect()).await;
    for times in 2..4 {
        short.clock.advance(A_SECOND);
        short.until_asked(times).await;
        short.settles().await;
    }
    assert_eq!(short.counted(Resource::Memory), 3);
    short.resolver.fails(None);
    short.clock.advance(A_SECOND);
    short.world.until_empty().await;
    let bodies: Vec<String> =
        short.world.receiver.at("a").iter().map(|arrival| arrival.payload.clone()).collect();
    assert_eq!(bodies, ["0", "1", "2", "3", "4", "5"]);
    short.engine.stop().await;
}

#[tokio::test]
async fn a_probe_that_cannot_be_made_is_given_up() {
    let short = Short::of(Errno::HOSTUNREACH, json!({ "retry_policy": quick(20) })).await;
    let id = short.world.send("a", 0).await;
    let circuit = async || short.world.store.endpoint("a").await.unwrap().circuit.state.name();
    until_async(async || circuit().await == CircuitName::Open).await;
    short.resolver.fails(Errno::ADDRNOTAVAIL);
    let asked = short.resolver.asked();
    short.clock.advance(Duration::from_secs(5));
    short.until_asked(asked + 1).await;
    short.settles().await;
    assert_eq!(circuit().await, CircuitName::HalfOpen, "nothing is known of the receiver");
    assert_eq!(short.counted(Resource::LocalPorts), 1);

    // Much sooner than the lease of a probe ends.
    short.resolver.fails(None);
    short.clock.advance(A_SECOND);
    let story = short.world.until_state(id, State::Completed).await;
    assert_eq!(story.attempt_count, 2, "the one that opened the circuit, and the one that was delivered");
    until_async(async || circuit().await == CircuitName::Closed).await;
    short.engine.stop().await;
}

async fn until_async(holds: impl AsyncFn() -> bool) {
    let asking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(super::PATIENCE, asking).await.expect("it never came");
}
