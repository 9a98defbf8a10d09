//! Routes, neighbours and addresses in the form for people.

use serde_json::Value;

use super::{Address, Addressed, Addresses, Hop, Neighbour, Neighbours, Route, Routes};
use crate::Text;

/// Types of routes other than unicast, which are shown first in their line.
const OTHER_TYPES: [&str; 9] = [
    "anycast",
    "blackhole",
    "broadcast",
    "local",
    "multicast",
    "prohibit",
    "throw",
    "unreachable",
    "nat",
];
/// What a route sets for TCP, as in the output with `-j`.
const METRICS: [&str; 7] = ["advmss", "cwnd", "initcwnd", "initrwnd", "mtu", "rto_min", "window"];
/// States of a neighbour, in the last column.
const STATES: [&str; 8] =
    ["DELAY", "FAILED", "INCOMPLETE", "NOARP", "PERMANENT", "PROBE", "REACHABLE", "STALE"];

/// `ip route show table all`: one route a line, and below it the next hops, if there are several.
pub(super) fn routes(text: &Text) -> Routes {
    let mut routes = Routes::default();
    // Whether next hops belong to the last route that was read.
    let mut is_open = false;
    for (_, row) in text.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["nexthop", rest @ ..] => match routes.all.last_mut().filter(|_| is_open) {
                Some(route) => route.nexthops.push(Hop {
                    gateway: gateway(rest),
                    dev: after("dev", rest),
                    flags: flags(rest),
                }),
                None => routes.skipped += usize::from(is_open),
            },
            [kind, ..] if OTHER_TYPES.contains(kind) => is_open = false,
            ["unicast", dst, rest @ ..] | [dst, rest @ ..] if is_destination(dst) => {
                is_open = true;
                routes.all.push(Route {
                    dst: (*dst).to_owned(),
                    gateway: gateway(rest),
                    dev: after("dev", rest),
                    nexthops: Vec::new(),
                    flags: flags(rest),
                    metrics: METRICS
                        .iter()
                        .filter_map(|name| Some([((*name).to_owned(), metric(name, rest)?)].into()))
                        .collect(),
                    ..Route::default()
                });
            }
            _ => {
                is_open = false;
                routes.skipped += 1;
            }
        }
    }
    routes
}

/// `ip -s neigh show`.
pub(super) fn neighbours(text: &Text) -> Neighbours {
    let mut neighbours = Neighbours::default();
    for (_, row) in text.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let state: Vec<String> = words
            .iter()
            .filter(|word| STATES.contains(word))
            .map(|word| (*word).to_owned())
            .collect();
        match words.as_slice() {
            [] => {}
            // What this host replies for, on behalf of others.
            [_, "dev", _, rest @ ..] if rest.contains(&"proxy") => {}
            [dst, "dev", dev, rest @ ..] if is_destination(dst) && !state.is_empty() => {
                neighbours.all.push(Neighbour {
                    dst: (*dst).to_owned(),
                    dev: (*dev).to_owned(),
                    lladdr: after("lladdr", rest),
                    state,
                });
            }
            _ => neighbours.skipped += 1,
        }
    }
    neighbours
}

/// `ip -d address`, or `ip address`.
pub(super) fn addresses(text: &Text) -> Addresses {
    let mut addresses = Addresses::default();
    // Whether addresses belong to the last interface that was read.
    let mut is_open = false;
    for (_, row) in text.lines() {
        let words: Vec<&str> = row.split_whitespace().collect();
        match words.as_slice() {
            [index, name, flags, rest @ ..]
                if row.starts_with(|one: char| one.is_ascii_digit()) =>
            {
                let addressed = interface(index, name, flags, rest);
                is_open = addressed.is_some();
                addresses.skipped += usize::from(!is_open);
                addresses.all.extend(addressed);
            }
            [family @ ("inet" | "inet6"), local, ..] if is_open => {
                let address = local.split_once('/').unwrap_or((local, ""));
                let length = match (address.1.parse(), *family) {
                    (Ok(length), _) => Some(length),
                    // A point-to-point address has its length behind the other end's.
                    (Err(_), "inet") => Some(32),
                    (Err(_), _) => None,
                };
                match (length, addresses.all.last_mut()) {
                    (Some(prefixlen), Some(last)) if is_destination(address.0) => {
                        last.addr_info.push(Address {
                            family: (*family).to_owned(),
                            local: address.0.to_owned(),
                            prefixlen,
                        });
                    }
                    _ => addresses.skipped += 1,
                }
            }
            _ => {}
        }
    }
    addresses
}

fn interface(index: &str, name: &str, flags: &str, rest: &[&str]) -> Option<Addressed> {
    index.strip_suffix(':')?.parse::<u32>().ok()?;
    let name = name.strip_suffix(':')?;
    let (name, link) = name.split_once('@').map_or((name, None), |(name, at)| (name, Some(at)));
    let flags = flags.strip_prefix('<')?.strip_suffix('>')?;
    Some(Addressed {
        ifname: name.to_owned(),
        link: link.filter(|link| *link != "NONE").map(str::to_owned),
        master: after("master", rest),
        flags: flags.split(',').map(str::to_owned).collect(),
        addr_info: Vec::new(),
    })
}

/// Whether a word is `default`, an address or a network.
fn is_destination(word: &str) -> bool {
    let (address, length) = word.split_once('/').unwrap_or((word, "0"));
    let is_address = address.parse::<std::net::IpAddr>().is_ok();
    // Old versions shorten networks: 10.98/16.
    let is_short =
        address.contains('.') && address.bytes().all(|it| it == b'.' || it.is_ascii_digit());
    word == "default" || ((is_address || is_short) && length.parse::<u8>().is_ok())
}

fn after(name: &str, words: &[&str]) -> Option<String> {
    words.windows(2).find(|two| two[0] == name).map(|two| two[1].to_owned())
}

/// `via 192.0.2.1`, or `via inet6 fe80::1` for a gateway of the other family.
fn gateway(words: &[&str]) -> Option<String> {
    let gateway = after("via", words)?;
    match gateway.as_str() {
        family @ ("inet" | "inet6") => after(family, words),
        _ => Some(gateway),
    }
}

fn flags(words: &[&str]) -> Vec<String> {
    let known = ["dead", "linkdown", "onlink"];
    words.iter().filter(|word| known.contains(word)).map(|word| (*word).to_owned()).collect()
}

/// `mtu 1400`, `mtu lock 1400`, `rto_min lock 5ms`.
fn metric(name: &str, words: &[&str]) -> Option<Value> {
    let at = words.iter().position(|word| *word == name)?;
    let value = match words.get(at + 1..)? {
        ["lock", value, ..] | [value, ..] => *value,
        [] => return None,
    };
    let number = match name {
        "rto_min" => value.strip_suffix("ms")?,
        _ => value,
    };
    number.parse::<u64>().ok().map(Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::Counters;

    fn text(text: &str) -> Text {
        Text::new("ip", text)
    }

    #[test]
    fn routes_for_people_are_read() {
        // Linux 6.12 with iproute2 6.15; RHEL 8 prints the same without `nhid`.
        let all = Routes::parse(&text(
            "default via 10.98.0.9 dev eth0 proto static metric 100 \n\
             blackhole 10.99.0.0/16 \n\
             10.98.9.0/24 proto static \n\
             \tnexthop via 10.98.0.9 dev eth0 weight 1 dead linkdown \n\
             \tnexthop via 10.98.0.2 dev eth0 weight 1 \n\
             10.98.8.0/24 via 10.98.0.9 dev eth0 table 100 mtu lock 1400 advmss 500 window 4096 \
             initcwnd 4 rto_min lock 5s\n\
             10.98.7.0/24 via inet6 fe80::1 dev eth0 onlink \n\
             local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1 \n\
             \tnexthop via 10.98.0.3 dev eth0 weight 1 \n\
             fd99::/64 nhid 7 via fd98::9 dev eth0 metric 1024 mtu 1400 pref medium\n\
             what is this\n",
        ))
        .expect("sound");
        let dst: Vec<&str> = all.all.iter().map(|route| route.dst.as_str()).collect();
        let expected = ["default", "10.98.9.0/24", "10.98.8.0/24", "10.98.7.0/24", "fd99::/64"];
        assert_eq!(dst, expected);
        assert_eq!(all.skipped, 1);
        assert_eq!(all.all[1].nexthops.len(), 2);
        assert_eq!(all.all[1].nexthops[0].flags, ["dead", "linkdown"]);
        let metric = |name: &str| all.all[2].metric(name);
        assert_eq!(
            (metric("mtu"), metric("window"), metric("rto_min")),
            (Some(1400), Some(4096), None)
        );
        assert_eq!(all.all[3].gateway.as_deref(), Some("fe80::1"));
        assert_eq!(all.all[4].gateway.as_deref(), Some("fd98::9"));
    }

    #[test]
    fn neighbours_for_people_are_read() {
        let all = Neighbours::parse(&text(
            "10.98.0.9 dev eth0 lladdr 02:00:00:00:00:09 ref 1 used 0/0/0 probes 1 REACHABLE\n\
             10.98.0.77 dev eth0  used 9/9/3 probes 6 FAILED\n\
             fe80::1 dev eth0 lladdr 02:00:00:00:00:09 router used 1/1/1 probes 0 STALE \n\
             10.98.0.5 dev eth0  proxy\n\
             10.98.0.6 on eth0 LOST\n",
        ))
        .expect("sound");
        assert_eq!((all.all.len(), all.skipped), (3, 1));
        assert_eq!(all.all[0].lladdr.as_deref(), Some("02:00:00:00:00:09"));
        assert!(all.all[1].is_failed() && all.all[1].lladdr.is_none());
        assert_eq!(all.all[2].state, ["STALE"]);
    }

    #[test]
    fn addresses_for_people_are_read() {
        let all = Addresses::parse(&text(
            "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default\n\
             \x20   link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00 promiscuity 0\n\
             \x20   inet 127.0.0.1/8 scope host lo\n\
             \x20      valid_lft forever preferred_lft forever\n\
             2: a@b: <UP> mtu 1500 qdisc noqueue master br0 state UP group default\n\
             \x20   inet 10.98.0.1 peer 10.98.0.2/32 scope global a\n\
             \x20   inet6 fe80::1/64 scope link \n\
             3: c: no flags\n\
             \x20   inet 10.98.0.3/24 scope global c\n",
        ))
        .expect("sound");
        assert_eq!((all.all.len(), all.skipped), (2, 1));
        let second = &all.all[1];
        assert_eq!((second.link.as_deref(), second.master.as_deref()), (Some("b"), Some("br0")));
        let lengths: Vec<u32> = second.addr_info.iter().map(|one| one.prefixlen).collect();
        assert_eq!(lengths, [32, 64]);
    }

    #[test]
    fn foreign_text_is_refused() {
        assert!(Routes::parse(&text("0 0 0 0\n<html>\n7 : = \"\n")).is_err());
        assert!(Neighbours::parse(&text("0 0 0 0\n")).is_err());
    }
}
