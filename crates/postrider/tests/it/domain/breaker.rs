use std::time::Duration;

use jiff::Timestamp;
use postrider::breaker::{Circuit, CircuitName, CircuitState, Failures, Permission, Sign};
use postrider::message::NodeId;
use proptest::prelude::*;

const THRESHOLD: u32 = 3;
const COOLDOWN: Duration = Duration::from_secs(30);
const PROBE_LEASE: Duration = Duration::from_secs(20);

fn start() -> Timestamp {
    "2026-01-15T12:00:00Z".parse().unwrap()
}

fn at(seconds: u64) -> Timestamp {
    start() + Duration::from_secs(seconds)
}

fn observe(failures: &mut Failures, circuit: Circuit, begun: Circuit, sign: Sign) -> Option<Circuit> {
    failures.observe(circuit, begun.epoch, sign, start(), THRESHOLD, COOLDOWN)
}

#[test]
fn it_opens_at_the_threshold_of_consecutive_failures_and_not_before() {
    let (mut failures, circuit) = (Failures::default(), Circuit::default());
    for _ in 0..5 {
        assert_eq!(observe(&mut failures, circuit, circuit, Sign::Failing), None);
        assert_eq!(observe(&mut failures, circuit, circuit, Sign::Failing), None);
        assert_eq!(observe(&mut failures, circuit, circuit, Sign::Healthy), None);
    }
    assert_eq!(observe(&mut failures, circuit, circuit, Sign::Failing), None);
    assert_eq!(observe(&mut failures, circuit, circuit, Sign::Neutral), None, "a neutral sign breaks no run");
    assert_eq!(observe(&mut failures, circuit, circuit, Sign::Failing), None);
    let opened = observe(&mut failures, circuit, circuit, Sign::Failing).expect("the third in a row opens");
    assert_eq!(opened.state, CircuitState::Open { until: start() + COOLDOWN });
    assert_eq!(opened.epoch, circuit.epoch + 1);
}

#[test]
fn neutral_signs_never_open_a_circuit() {
    let (mut failures, circuit) = (Failures::default(), Circuit::default());
    for _ in 0..1000 {
        assert_eq!(observe(&mut failures, circuit, circuit, Sign::Neutral), None);
    }
    assert_eq!(failures, Failures::default());
}

#[test]
fn what_is_allowed_follows_from_state_and_time() {
    let probe = |until| Circuit::default().probing(NodeId(1), at(until));
    let open = Circuit::default().opened(start(), COOLDOWN);
    let table = [
        (Circuit::default(), 0, Permission::Deliver),
        (open, 0, Permission::Wait { until: at(30) }),
        (open, 29, Permission::Wait { until: at(30) }),
        (open, 30, Permission::Probe),
        (probe(20), 0, Permission::Wait { until: at(20) }),
        (probe(20), 20, Permission::Probe),
        (open.probe_given_up(), 0, Permission::Probe),
        (open.closed(), 0, Permission::Deliver),
    ];
    for (circuit, seconds, expected) in table {
        assert_eq!(circuit.permission(at(seconds)), expected, "{circuit:?} after {seconds} s");
        assert_eq!(circuit.permission(at(seconds)), expected, "asking changes nothing");
    }
}

#[test]
fn a_probe_decides_for_all() {
    let probing = Circuit::default().opened(start(), COOLDOWN).probing(NodeId(1), at(50));
    let table = [
        (Sign::Healthy, CircuitState::Closed),
        (Sign::Failing, CircuitState::Open { until: start() + COOLDOWN }),
        (Sign::Neutral, CircuitState::HalfOpen { probe: None }),
    ];
    for (sign, expected) in table {
        let moved =
            observe(&mut Failures::default(), probing, probing, sign).expect("a probe always decides");
        assert_eq!(moved.state, expected, "{sign:?}");
        assert_eq!(moved.epoch, probing.epoch + 1);
    }
}

#[test]
fn results_begun_before_a_transition_never_count() {
    let before = Circuit::default();
    let opened = before.opened(start(), COOLDOWN);
    let probing = opened.probing(NodeId(1), at(50));
    let closed = probing.closed();
    for current in [opened, probing, closed] {
        let mut failures = Failures::default();
        for sign in [Sign::Healthy, Sign::Failing, Sign::Neutral].repeat(20) {
            assert_eq!(observe(&mut failures, current, before, sign), None, "{sign:?} in {current:?}");
        }
        assert_eq!(failures, Failures::default());
    }
}

#[test]
fn failures_counted_before_another_node_closed_the_circuit_are_forgotten() {
    let before = Circuit::default();
    let mut failures = Failures::default();
    assert_eq!(observe(&mut failures, before, before, Sign::Failing), None);
    assert_eq!(observe(&mut failures, before, before, Sign::Failing), None);
    let closed = before.opened(start(), COOLDOWN).probing(NodeId(2), at(50)).closed();
    assert_eq!(observe(&mut failures, closed, closed, Sign::Failing), None, "one failure of this epoch");
    assert_eq!(observe(&mut failures, closed, closed, Sign::Failing), None);
    assert!(observe(&mut failures, closed, closed, Sign::Failing).is_some());
}

#[test]
fn names_are_the_ones_people_read() {
    let names = [CircuitName::Closed, CircuitName::HalfOpen, CircuitName::Open].map(CircuitName::as_str);
    assert_eq!(names, ["closed", "half_open", "open"]);
    assert_eq!(Circuit::default().state.name(), CircuitName::Closed);
}

/// One node: what it last read of the circuit, and the attempt it has running.
#[derive(Clone, Copy, Default)]
struct Node {
    read: Circuit,
    failures: Failures,
    running: Option<Running>,
}

#[derive(Clone, Copy)]
struct Running {
    begun_epoch: i64,
    is_probe: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    /// Asks the circuit as last read; a probe is taken by compare-and-swap.
    Start(usize),
    Finish(usize, Sign),
    Die(usize),
    Pass(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let node = 0..4usize;
    let sign = prop_oneof![2 => Just(Sign::Failing), 1 => Just(Sign::Healthy), 1 => Just(Sign::Neutral)];
    prop_oneof![
        3 => node.clone().prop_map(Step::Read),
        4 => node.clone().prop_map(Step::Start),
        4 => (node.clone(), sign).prop_map(|(node, sign)| Step::Finish(node, sign)),
        1 => node.prop_map(Step::Die),
        2 => (1..25u64).prop_map(Step::Pass),
    ]
}

/// Four nodes over one circuit that moves by compare-and-swap, as a store keeps it.
#[derive(Default)]
struct Fleet {
    stored: Circuit,
    nodes: [Node; 4],
    /// Every probe that was ever taken, with the end of its lease.
    seconds: u64,
}

impl Fleet {
    fn swap(&mut self, from_epoch: i64, to: Circuit) -> bool {
        let won = self.stored.epoch == from_epoch;
        if won {
            self.stored = to;
        }
        won
    }

    fn start(&mut self, index: usize) {
        let node = self.nodes[index];
        if node.running.is_some() {
            return;
        }
        match node.read.permission(at(self.seconds)) {
            Permission::Deliver => {
                self.nodes[index].running = Some(Running { begun_epoch: node.read.epoch, is_probe: false });
            }
            Permission::Probe => {
                let to = node.read.probing(NodeId(index as i64), at(self.seconds) + PROBE_LEASE);
                if self.swap(node.read.epoch, to) {
                    self.nodes[index].read = to;
                    self.nodes[index].running = Some(Running { begun_epoch: to.epoch, is_probe: true });
                }
            }
            Permission::Wait { .. } => {}
        }
    }

    /// Where this result moved the stored circuit, if it did.
    fn finish(&mut self, index: usize, sign: Sign) -> Option<(Running, Circuit)> {
        let running = self.nodes[index].running.take()?;
        let now = at(self.seconds);
        let node = &mut self.nodes[index];
        let to = node.failures.observe(node.read, running.begun_epoch, sign, now, THRESHOLD, COOLDOWN)?;
        let from = node.read.epoch;
        self.swap(from, to).then_some((running, to))
    }

    /// Probes that run now and whose lease still holds.
    fn live_probes(&self) -> usize {
        let CircuitState::HalfOpen { probe: Some(probe) } = self.stored.state else { return 0 };
        if probe.lease_until <= at(self.seconds) {
            return 0;
        }
        let current = |node: &&Node| {
            node.running.is_some_and(|running| running.is_probe && running.begun_epoch == self.stored.epoch)
        };
        self.nodes.iter().filter(current).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn never_two_probes_whatever_the_interleaving(steps in prop::collection::vec(any_step(), 1..200)) {
        let mut fleet = Fleet::default();
        for step in steps {
            let before = fleet.stored;
            match step {
                Step::Read(node) => fleet.nodes[node].read = fleet.stored,
                Step::Start(node) => {
                    let may = before.permission(at(fleet.seconds));
                    fleet.start(node);
                    if fleet.stored != before {
                        prop_assert_eq!(may, Permission::Probe, "a probe was taken while it was not free");
                    }
                }
                Step::Finish(node, sign) => {
                    if let Some((running, to)) = fleet.finish(node, sign) {
                        prop_assert_eq!(running.begun_epoch, before.epoch, "a result of another epoch counted");
                        prop_assert_eq!(to.epoch, before.epoch + 1);
                        let was_half_open = matches!(before.state, CircuitState::HalfOpen { .. });
                        prop_assert_eq!(running.is_probe, was_half_open, "only its probe ends a half-open circuit");
                    }
                }
                Step::Die(node) => fleet.nodes[node] = Node { read: fleet.stored, ..Node::default() },
                Step::Pass(seconds) => fleet.seconds += seconds,
            }
            prop_assert!(fleet.live_probes() <= 1);
        }
        // However it stands, and whoever died: a node that looks again gets on within cooldown and lease.
        fleet.seconds += (COOLDOWN + PROBE_LEASE).as_secs();
        let permission = fleet.stored.permission(at(fleet.seconds));
        prop_assert!(!matches!(permission, Permission::Wait { .. }), "{:?} sticks", fleet.stored);
    }
}
