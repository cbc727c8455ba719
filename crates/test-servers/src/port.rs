//! Free ports.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex};

/// Below the ports that the system gives to outgoing connections: a server that is down for a while finds
/// its port free again.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Never the same twice in one process: brokers are given several before they listen on any.
pub(crate) fn free() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut given = GIVEN.lock().expect("no draw panics with the lock");
    let dice = RandomState::new();
    let candidates = (0..1000).map(|draw| FIRST + (dice.hash_one(draw) % u64::from(COUNT)) as u16);
    let mut free = candidates
        .filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok() && given.insert(*port));
    free.next().expect("one port in a thousand is free")
}
