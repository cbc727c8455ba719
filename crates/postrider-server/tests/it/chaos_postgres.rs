//! Two nodes on one PostgreSQL: nodes are killed and frozen, the server is stopped in the middle of things or gone for
//! good, and applications commit and roll back all the while.

use std::time::Duration;

use rand::RngExt;
use test_servers::postgres::Postgres;

use crate::eventually;
use crate::node::{Home, Node};
use crate::seed::Seed;
use crate::sql_load::{Ledger, Senders, Sent, prepare, until_settled};

const ROUNDS: u32 = 12;
/// Enough to call it load.
const MANY: usize = 300;
/// More than one phase sends.
const PHASE: u32 = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

fn start(home: &Home, url: &str) -> Node {
    home.start_with(&["--allow-internal", "--store", url])
}

#[test]
fn what_was_committed_arrives_in_order_whoever_dies() {
    Seed::runs().for_each(kill_freeze_and_restart);
}

fn kill_freeze_and_restart(seed: Seed) {
    let ledger = Ledger::open(seed);
    let mut server = Postgres::start().expect("a server of its own");
    let (home, url) = (Home::new(), server.url());
    prepare(&server, &home, &url);
    let mut nodes = vec![start(&home, &url), start(&home, &url)];
    ledger.create_endpoint(&nodes[0]);
    let mut sent = undisturbed(&ledger, &server, seed, 0);
    let senders = Senders::start(&url, seed, PHASE);
    let mut dice = seed.dice("faults");
    for round in 0..ROUNDS {
        std::thread::sleep(Duration::from_millis(dice.random_range(100..700)));
        match round % 4 {
            3 => {
                server.stop_immediately();
                server.start_again().expect("it starts");
            }
            2 => {
                // Longer than its lease: the other one takes over, and its late results are fenced.
                let frozen = &nodes[(round / 4) as usize % 2];
                frozen.signal("STOP");
                std::thread::sleep(Duration::from_secs(6));
                frozen.signal("CONT");
            }
            _ => {
                let killed = nodes.remove(dice.random_range(0..2));
                killed.kill();
                nodes.push(start(&home, &url));
            }
        }
    }
    let under_faults = senders.stop();
    let committed = under_faults.committed.len();
    assert!(committed > MANY, "only {committed} were committed: this is no load");
    until_settled(&server);
    sent.add(under_faults);
    sent.add(undisturbed(&ledger, &server, seed, 2 * PHASE));
    let status = home.json(&["status", "--store", &url]);
    assert_eq!(status["dead"], 0, "nothing died: {status:#}");
    ledger.check(&sent);
}

/// A while without a fault, in which everything is delivered once and no more.
fn undisturbed(ledger: &Ledger, server: &Postgres, seed: Seed, first: u32) -> Sent {
    let (accepted, duplicates) = (ledger.accepted(), ledger.duplicates());
    let senders = Senders::start(&server.url(), seed, first);
    eventually(PATIENCE, "deliveries", || (ledger.accepted() > accepted + MANY).then_some(()));
    let sent = senders.stop();
    until_settled(server);
    assert_eq!(ledger.duplicates() - duplicates, 0, "delivered again without a fault");
    sent
}

#[test]
fn a_failover_to_a_synchronous_standby_loses_nothing() {
    Seed::runs().for_each(fail_over);
}

fn fail_over(seed: Seed) {
    let ledger = Ledger::open(seed);
    let mut primary = Postgres::start().expect("a server of its own");
    let home = Home::new();
    prepare(&primary, &home, &primary.url());
    let standby = primary.synchronous_standby().expect("a standby");
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        standby.port(),
        primary.port()
    );
    let mut nodes = [start(&home, &url), start(&home, &url)];
    ledger.create_endpoint(&nodes[0]);
    let senders = Senders::start(&url, seed, 0);
    eventually(PATIENCE, "the first deliveries", || (ledger.accepted() > MANY).then_some(()));

    primary.stop_immediately();
    standby.promote().expect("the standby takes over");
    let before = ledger.accepted();
    eventually(PATIENCE, "deliveries from the standby", || (ledger.accepted() > before + MANY).then_some(()));
    let sent = senders.stop();
    until_settled(&standby);
    let dead = home.json(&["status", "--store", &url]);
    assert_eq!(dead["dead"], 0, "nothing died: {dead:#}");
    ledger.check(&sent);
    assert!(!nodes.iter_mut().any(Node::has_ended), "they found the standby by themselves");
    let states = standby.query("SELECT state FROM postrider.nodes ORDER BY id").expect("the nodes");
    assert_eq!(states, "live\nlive", "and kept their leases");
}
