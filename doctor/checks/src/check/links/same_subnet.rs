//! D41: two interfaces in one network, and packets that are refused because of asymmetric paths.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use core::net::Ipv4Addr;
use ringway_evidence::Quote;
use ringway_evidence::fact::{Basis, NetCounters, Routing, Switches, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::routes::{Address, Addressed};

pub(crate) const CHECK: Check = Check {
    id: "D41",
    slug: "same-subnet",
    title: "two interfaces are in one network, or paths are asymmetric",
    group: Group::Links,
    sources: &["ip-sysctl:arp-filter", "ip-sysctl:arp-ignore", "ip-sysctl:rp-filter"],
    explanation: include_str!("same_subnet.txt"),
    absent: "there is no data on addresses",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        routing: Tried<Routing>,
        switches: Switches,
        counters: Tried<NetCounters>,
    }
}

const REFUSED_ADVICE: &str = "If packets should arrive on this interface, make the filter loose: \
                              it then accepts senders to which there is any route.";

/// Refused packets per second from which they are more than strays.
const REFUSED_MIN: f64 = 1.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let Some(routing) = facts.routing.ok() else { return not_here(CHECK.absent) };
    let all: Vec<(&Addressed, &Address, u32)> = routing
        .addresses
        .all
        .iter()
        .filter(|nic| nic.flags.iter().any(|flag| flag == "UP") && nic.ifname != "lo")
        .flat_map(|nic| nic.addr_info.iter().map(move |address| (nic, address)))
        .filter_map(|(nic, address)| Some((nic, address, network(address)?)))
        .collect();
    for (index, &(nic, address, network)) in all.iter().enumerate() {
        let is_same = |(other, more, same): &&(&Addressed, &Address, u32)| {
            *same == network
                && more.prefixlen == address.prefixlen
                && other.ifname != nic.ifname
                && other.master == nic.master
                && other.link.as_ref() != Some(&nic.ifname)
                && nic.link.as_ref() != Some(&other.ifname)
        };
        let earlier = all.get(..index).unwrap_or_default().iter().find(is_same);
        if let Some(&(other, more, _)) = earlier {
            out.add(flux(facts, (nic, address), (other, more)));
        }
    }
    out.add(refused(facts, routing.addresses.all.iter().map(|nic| nic.ifname.as_str())));
    out.well("each interface is in its own network", None);
    Ok(())
}

/// The network of an IPv4 address, if it can have neighbours.
fn network(address: &Address) -> Option<u32> {
    let local: Ipv4Addr = address.local.parse().ok()?;
    let bits = address.prefixlen;
    (1..=30).contains(&bits).then(|| u32::from(local) >> (32 - bits) << (32 - bits))
}

fn flux(
    facts: &Facts,
    (nic, address): (&Addressed, &Address),
    (other, more): (&Addressed, &Address),
) -> Option<Finding> {
    let value = |nic: &str, name: &str| facts.switches.of(nic, name);
    let names = [nic.ifname.as_str(), other.ifname.as_str()];
    // With either setting each interface replies for its own addresses only.
    let is_kept =
        |name: &str| names.iter().all(|nic| value(nic, name).is_none_or(|(it, _)| it > 0));
    if is_kept("arp_ignore") || is_kept("arp_filter") {
        return None;
    }
    let quote = |nic: &str, address: &Address| Quote {
        file: "ip addr show".to_owned(),
        line: None,
        text: format!("{nic} {}/{}", address.local, address.prefixlen),
    };
    let summary = format!(
        "{} and {} are both in {}/{}, and each replies for the other",
        other.ifname, nic.ifname, more.local, more.prefixlen
    );
    let finding = Finding::new(Severity::Warning, nic.ifname.clone(), summary)
        .cause(
            "Neighbours use the first reply, so traffic for one interface arrives on the other, \
             and all outgoing packets use one of them.",
        )
        .quote([quote(&other.ifname, more), quote(&nic.ifname, address)])
        .quote(value(&nic.ifname, "arp_ignore").map(|(_, text)| text.quote(1)))
        .confidence(Confidence::Medium);
    // Not an automatic change: with arp_ignore, addresses on no interface of this network, such as
    // those of load balancers, no longer get ARP replies.
    Some(finding.advise(Advice::by_hand(
        "Give each interface its own network, or make a bond of them. If both must stay, let each \
         reply for its own addresses only: net.ipv4.conf.NIC.arp_ignore=1 and arp_announce=2 of \
         both. Addresses on lo or a dummy device, such as those of a load balancer, then get no \
         reply any more.",
        &["ip addr show"],
    )))
}

/// Drops of the reverse-path filter, with the interfaces on which they may occur.
fn refused<'a>(facts: &Facts, nics: impl Iterator<Item = &'a str>) -> Option<Finding> {
    let counters = facts.counters.ok().filter(|counters| counters.basis == Basis::Samples)?;
    let rate = float(counters.since("TcpExt.IPReversePathFilter")) / counters.seconds;
    if rate < REFUSED_MIN {
        return None;
    }
    let strict: Vec<(&str, Quote)> = nics
        .filter(|nic| *nic != "lo")
        .filter_map(|nic| {
            let (value, text) = facts.switches.of(nic, "rp_filter")?;
            (value == 1).then(|| (nic, text.quote(1)))
        })
        .collect();
    if strict.is_empty() {
        return None;
    }
    let names: Vec<&str> = strict.iter().map(|(nic, _)| *nic).collect();
    let summary = format!(
        "the reverse-path filter drops {rate:.1} packets a second; it is strict on {}",
        names.join(", ")
    );
    let changes = strict.iter().filter_map(|(nic, _)| {
        let name = format!("net.ipv4.conf.{}.rp_filter", nic.replace('.', "/"));
        let now = facts.switches.get(&name)?.number().ok()?;
        Change::raise(Knob::Sysctl { name }, now, 2)
    });
    let changes: Vec<Change> = changes.collect();
    let finding = Finding::new(Severity::Warning, "rp_filter", summary)
        .cause(
            "Replies to these senders would leave by another interface: routes are asymmetric, or \
             the senders are forged.",
        )
        .quote(strict.into_iter().map(|(_, quote)| quote));
    Some(match changes.is_empty() {
        true => finding.advise(Advice::by_hand(REFUSED_ADVICE, &["ip route show"])),
        false => finding.advise(Advice::by_change(REFUSED_ADVICE, changes)),
    })
}
