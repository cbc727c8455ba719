//! Which addresses are internal. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Not a public unicast address, or one that carries such an address inside.
pub(super) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_internal_v4(address),
        IpAddr::V6(address) => is_internal_v6(address),
    }
}

/// Networks of the IANA special-purpose registry that are not public, and Azure's metadata service,
/// which hides in a public range.
const INTERNAL_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

fn is_internal_v4(address: Ipv4Addr) -> bool {
    let within = |(net, length): &(Ipv4Addr, u32)| (address.to_bits() ^ net.to_bits()) >> (32 - length) == 0;
    INTERNAL_V4.iter().any(within)
}

fn is_internal_v6(address: Ipv6Addr) -> bool {
    let inner = match carried(address) {
        Carried::Nothing => false,
        Carried::Addresses(inner) => return inner.into_iter().any(is_internal_v4),
        Carried::Isatap(inner) => is_internal_v4(inner),
    };
    let [first, second, ..] = address.segments();
    // Public unicast is 2000::/3. All else is loopback, unspecified, local, multicast or unassigned.
    let public = first >> 13 == 1;
    // 2001::/23 is for protocols (Teredo was seen to above); 2001:db8::/32 and 3fff::/20 for documents.
    let protocols = first == 0x2001 && second < 0x200;
    let documents = first == 0x2001 && second == 0xdb8 || first == 0x3fff && second < 0x1000;
    inner || !public || protocols || documents
}

/// The IPv4 address that packets to this one end at, where there is just one.
pub(super) fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => match carried(address) {
            Carried::Addresses([inner, other]) if inner == other => Some(inner),
            Carried::Addresses(_) | Carried::Isatap(_) | Carried::Nothing => None,
        },
    }
}

enum Carried {
    Nothing,
    /// Mapped, compatible, NAT64, 6to4 (one address, twice) or Teredo (server and client).
    Addresses([Ipv4Addr; 2]),
    /// A public prefix, but the interface is an IPv4 address.
    Isatap(Ipv4Addr),
}

fn carried(address: Ipv6Addr) -> Carried {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let last = v4(segments[6], segments[7]);
    match segments {
        // ::ffff:a.b.c.d and its translated form ::ffff:0:a.b.c.d.
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => Carried::Addresses([last; 2]),
        // ::a.b.c.d; `::` and `::1` are 0.0.0.0 and 0.0.0.1 in it, which are internal too.
        [0, 0, 0, 0, 0, 0, _, _] => Carried::Addresses([last; 2]),
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => Carried::Addresses([last; 2]),
        [0x2002, high, low, ..] => Carried::Addresses([v4(high, low); 2]),
        [0x2001, 0, high, low, ..] => Carried::Addresses([v4(high, low), v4(!segments[6], !segments[7])]),
        [.., 0 | 0x200, 0x5efe, _, _] => Carried::Isatap(last),
        _ => Carried::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_addresses_are_told_from_public_ones_in_every_disguise() {
        let internal = [
            "127.0.0.1",
            "127.255.255.254",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "::",
            "::1",
            "fd00:ec2::254",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "2001:db8::1",
            "3fff::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "::10.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:1::10.0.0.1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::1",
            "2001:0:7f00:1::f7f7:f7f7",
            "2001:0:808:808::80ff:fffe",
            "2a00::5efe:10.0.0.1",
            "2a00::200:5efe:192.168.0.1",
            "4000::1",
            "5f00::1",
        ];
        for text in internal {
            assert!(is_internal(text.parse().unwrap()), "{text} is internal");
        }
        let public = [
            "8.8.8.8",
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "169.253.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2a00:1450::1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2001:0:808:808::f7f7:f7f7",
            "2001:4860::8888",
            "2a00::5efe:8.8.8.8",
        ];
        for text in public {
            assert!(!is_internal(text.parse().unwrap()), "{text} is public");
        }
    }
}
