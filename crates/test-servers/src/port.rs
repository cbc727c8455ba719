//! Free ports.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

/// Below the ports that the system gives to outgoing connections: a server that is down for a while finds
/// its port free again.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

pub(crate) fn free() -> u16 {
    let dice = RandomState::new();
    let candidates = (0..1000).map(|draw| FIRST + (dice.hash_one(draw) % u64::from(COUNT)) as u16);
    let mut free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().expect("one port in a thousand is free")
}
