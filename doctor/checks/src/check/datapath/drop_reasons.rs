//! D49: packets that the kernel drops, with its reasons.

use std::collections::BTreeMap;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Netns;
use ringway_evidence::fact::{DropReasons, Namespace, Span, Tried, float, sum};
use ringway_evidence::facts;
use ringway_evidence::parse::drops::Drop;
use ringway_evidence::parse::nic::NicCounters;

pub(crate) const CHECK: Check = Check {
    id: "D49",
    slug: "drop-reasons",
    title: "the kernel drops packets and reports why",
    group: Group::Datapath,
    sources: &["kernel-drop-reasons:reasons", "kernel-ftrace:instances"],
    explanation: include_str!("drop_reasons.txt"),
    absent: "the record does not contain what the kernel dropped",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        drops: DropReasons,
        netns: Namespace,
        moved: Tried<Span<NicCounters>>,
    }
}

/// Drops per second, and their fraction of all packets, from which they are more than strays.
const RATE_MIN: f64 = 20.0;
const PART_MIN: f64 = 0.001;
/// Drops per second from which a reason is shown at all.
const SHOWN_MIN: f64 = 1.0;
/// Reasons that are shown, and lines of each.
const SHOWN_MAX: usize = 8;
const QUOTES_MAX: usize = 3;

/// Whether a packet that is dropped for a reason was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    /// A receiver misses it.
    Wanted,
    /// A filter or a program drops it on purpose, and someone may miss it.
    Filtered,
    /// A full queue by which TCP finds its rate drops it, or it has no receiver.
    Expected,
}
use Was::{Expected, Filtered, Wanted};

/// The meaning of a reason, and the check that covers it.
struct Meaning {
    reason: &'static str,
    was: Was,
    what: &'static str,
    check: Option<&'static str>,
}

const fn of(
    reason: &'static str,
    was: Was,
    what: &'static str,
    check: Option<&'static str>,
) -> Meaning {
    Meaning { reason, was, what, check }
}

/// Known reasons, by name.
const MEANINGS: [Meaning; 52] = [
    of("BRIDGE_INGRESS_STP_STATE", Expected, "the port of a bridge is not forwarding yet", None),
    of("CPU_BACKLOG", Wanted, "the backlog of a CPU is full", Some("D18")),
    of("DEV_READY", Expected, "the device is not up", None),
    of("DUP_FRAG", Expected, "a fragment arrived twice", None),
    of("FRAG_REASM_TIMEOUT", Wanted, "the other fragments did not arrive in time", Some("D33")),
    of("FULL_RING", Wanted, "the reader of a TAP device's ring is too slow", Some("D38")),
    of("HDR_TRUNC", Wanted, "they are too short for their headers", None),
    of("ICMP_CSUM", Wanted, "the ICMP checksum is wrong", Some("D33")),
    of("IP_CSUM", Wanted, "the IP checksum is wrong", Some("D33")),
    of(
        "IP_INADDRERRORS",
        Expected,
        "their destination is not an address of this host",
        Some("D33"),
    ),
    of("IP_INHDR", Wanted, "they passed too many routers, or have a bad header", Some("D33")),
    of("IP_INNOROUTES", Wanted, "there is no route for received packets", Some("D33")),
    of("IP_INVALID_SOURCE", Expected, "their source is not the address of a host", None),
    of("IP_OUTNOROUTES", Wanted, "there is no route for packets to send", Some("D33")),
    of("IP_RPFILTER", Wanted, "the reverse-path filter rejects their senders", Some("D41")),
    of("MAC_INVALID_SOURCE", Expected, "their source link address is not that of a device", None),
    of("NEIGH_CREATEFAIL", Wanted, "the neighbour table is full", Some("D39")),
    of("NEIGH_FAILED", Wanted, "their next hop does not reply", Some("D39")),
    of(
        "NEIGH_QUEUEFULL",
        Wanted,
        "too many packets wait for the address of a next hop",
        Some("D39"),
    ),
    of("NETFILTER_DROP", Filtered, "a filter rule drops them", Some("D43")),
    of("NOMEM", Wanted, "there is no memory for them", Some("D36")),
    of("NO_SOCKET", Expected, "no program listens on their port", None),
    of("NO_TX_TARGET", Wanted, "a bridge or tunnel has no port for them", None),
    of("OTHERHOST", Expected, "they are for other hosts", Some("D42")),
    of(
        "PKT_TOO_BIG",
        Wanted,
        "they are longer than the MTU of the outgoing interface",
        Some("D08"),
    ),
    of(
        "PROTO_MEM",
        Wanted,
        "sockets together use all the memory that they are allowed",
        Some("D33"),
    ),
    of("QDISC_CONGESTED", Expected, "a discipline drops early to slow senders down", None),
    of("QDISC_DROP", Expected, "a queueing discipline drops them", Some("D38")),
    of("QDISC_OVERLIMIT", Expected, "a queueing discipline is full", Some("D38")),
    of("QUEUE_PURGE", Expected, "their queue was emptied, for example with its socket", None),
    of("SKB_CSUM", Wanted, "a checksum is wrong", Some("D33")),
    of("SOCKET_BACKLOG", Wanted, "a program's socket is busy and its backlog is full", Some("D47")),
    of("SOCKET_CLOSE", Expected, "their socket was closed", None),
    of("SOCKET_FILTER", Expected, "a program's own filter rejects them", None),
    of("SOCKET_RCVBUFF", Wanted, "the receive buffer of a program is full", Some("D47")),
    of("TCP_ABORT_ON_DATA", Expected, "their program has closed the connection", None),
    of("TCP_CLOSE", Expected, "their connection is closed", None),
    of("TCP_CSUM", Wanted, "the TCP checksum is wrong", Some("D33")),
    of("TCP_LISTEN_OVERFLOW", Wanted, "a program does not accept its connections", Some("D47")),
    of("TCP_OFOMERGE", Expected, "TCP has their data already", None),
    of("TCP_OLD_ACK", Expected, "TCP has had their acknowledgement already", None),
    of("TCP_OLD_DATA", Expected, "TCP has had their data already", None),
    of("TCP_OLD_SEQUENCE", Expected, "TCP has had their data already, or no window for it", None),
    of("TCP_OVERWINDOW", Expected, "they are more than TCP has offered to take", Some("D46")),
    of("TCP_ZEROWINDOW", Expected, "the receive buffer of their program is full", Some("D46")),
    of("TC_EGRESS", Filtered, "a tc filter drops outgoing packets", Some("D30")),
    of("TC_INGRESS", Filtered, "a tc filter drops incoming packets", Some("D30")),
    of("UDP_CSUM", Wanted, "the UDP checksum is wrong", Some("D33")),
    of("UNHANDLED_PROTO", Expected, "this host does not support their protocol", None),
    of("VXLAN_INVALID_HDR", Wanted, "their VXLAN header is invalid", None),
    of(
        "VXLAN_VNI_NOT_FOUND",
        Wanted,
        "no tunnel on this host has their VXLAN network identifier",
        None,
    ),
    of("XDP", Filtered, "an XDP program drops them", None),
];

/// Functions that drop without a reason what may be missed.
const DEAD_ENDS: [&str; 2] = ["ip_error", "nf_hook_slow"];

/// Functions that drop the reply to a ping which a raw socket has taken already: this copy has no
/// socket.
const ECHOES: [&str; 3] = ["icmp_rcv", "icmpv6_rcv", "ping_rcv"];

/// The purposes of functions that drop without a reason, or on kernels without reasons.
const PLACES: [(&str, &str); 21] = [
    ("__dev_queue_xmit", "a queueing discipline or device does not accept them"),
    ("__netif_receive_skb_core", "nothing on this host accepts such frames"),
    ("__udp4_lib_rcv", "UDP: no program listens, or a checksum is wrong"),
    ("arp_process", "ARP: a request or reply that is not for this host"),
    ("br_handle_frame", "a bridge does not accept them"),
    ("enqueue_to_backlog", "the backlog of a CPU is full"),
    ("icmp_rcv", "ICMP: no program waits for this type"),
    ("ip6_mc_input", "IPv6: multicast that no program on this host wants"),
    ("ip_error", "IP: there is no route for received packets, or one that drops them"),
    ("ip_forward", "IP: they cannot be forwarded"),
    ("ip_rcv_finish_core", "IP: routing rejects them"),
    ("neigh_invalidate", "the next hop does not reply"),
    ("nf_hook_slow", "a filter rule drops them"),
    ("packet_rcv", "a capturing program has no room for its copy"),
    ("sk_stream_kill_queues", "TCP: the connection was closed"),
    ("tbf_enqueue", "a token bucket has no room for them"),
    ("tcp_rcv_state_process", "TCP: they only begin or end a connection"),
    ("tcp_v4_rcv", "TCP: this host does not have their connection"),
    ("tpacket_rcv", "the ring of a capturing program has no room for its copy"),
    ("tun_net_xmit", "the reader of a TAP device's ring is too slow"),
    ("veth_xmit", "the other end of a veth does not accept them"),
];

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let DropReasons { drops, text: file } = &facts.drops;
    let mut by_reason: BTreeMap<&str, (u64, Vec<&Drop>)> = BTreeMap::new();
    let is_lost = |drop: &&Drop| {
        drop.reason.name != "NO_SOCKET" || !ECHOES.contains(&drop.reason.place.as_str())
    };
    for drop in drops.all.iter().filter(is_lost) {
        let (count, all) = by_reason.entry(&drop.reason.name).or_default();
        *count = count.saturating_add(drop.count);
        all.push(drop);
    }
    let mut reasons: Vec<(&str, u64, Vec<&Drop>)> =
        by_reason.into_iter().map(|(name, (count, all))| (name, count, all)).collect();
    reasons.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    let shown = reasons.iter().filter(|(_, count, _)| float(*count) / drops.seconds >= SHOWN_MIN);
    let shown: Vec<_> = shown.take(SHOWN_MAX).collect();
    if facts.netns.0 == Some(Netns::Initial) {
        out.add(shown.into_iter().map(|(name, count, all)| finding(facts, name, *count, all)));
    } else if !shown.is_empty() {
        out.add([elsewhere(facts, &shown)]);
    }
    let counts: Vec<u64> = reasons.iter().map(|(_, count, _)| *count).collect();
    let more = if drops.lost > 0 { format!(" and {} more", drops.lost) } else { String::new() };
    out.well(
        format!("{} packets{more} were dropped in {:.1} s", sum(&counts), drops.seconds),
        Some(file.quote(1)),
    );
    Ok(())
}

/// The drops may be those of another namespace than this one, and the trace does not say which: one
/// note for all of them.
fn elsewhere(facts: &Facts, reasons: &[&(&str, u64, Vec<&Drop>)]) -> Finding {
    let DropReasons { drops, text: file } = &facts.drops;
    let said = |(name, count, all): &&(&str, u64, Vec<&Drop>)| {
        let place = all.first().map(|drop| drop.reason.place.as_str()).unwrap_or_default();
        let name = if *name == "-" { place } else { name };
        format!("{name} {:.0}", float(*count) / drops.seconds)
    };
    let said: Vec<String> = reasons.iter().map(said).collect();
    let summary = format!(
        "the kernel drops packets in some network namespace, a second: {}",
        said.join(", ")
    );
    let quotes = reasons.iter().filter_map(|(_, _, all)| Some(file.quote(all.first()?.line)));
    Finding::new(Severity::Note, "drops", summary)
        .cause(
            "The numbers cover all network namespaces of the machine, and the kernel does not \
             report which one: run the doctor on the machine itself for their meaning.",
        )
        .quote(quotes.take(QUOTES_MAX))
        .confidence(Confidence::Low)
}

fn finding(facts: &Facts, name: &str, count: u64, all: &[&Drop]) -> Finding {
    let DropReasons { drops, text: file } = &facts.drops;
    let rate = float(count) / drops.seconds;
    let known = MEANINGS.iter().find(|known| known.reason == name);
    let is_much = rate >= RATE_MIN && part(facts, rate) >= PART_MIN;
    let is = |was| is_much && known.is_some_and(|known| known.was == was);
    let severity = if is(Wanted) { Severity::Warning } else { Severity::Note };
    let place = all.first().map(|drop| drop.reason.place.as_str()).unwrap_or_default();
    let of_place = PLACES.iter().find(|(known, _)| *known == place).map(|(_, what)| *what);
    let what = known
        .map(|known| known.what)
        .or(of_place)
        .unwrap_or("include/net/dropreason-core.h in the kernel's source explains this reason");
    let said = if name == "-" { place.to_owned() } else { format!("{name} in {place}") };
    let summary = format!("the kernel drops {rate:.1} packets a second ({said}): {what}");
    let mut finding = Finding::new(severity, name, summary)
        .cause(
            "The kernel reports this itself. The number covers all network namespaces of the \
             machine.",
        )
        .quote(all.iter().take(QUOTES_MAX).map(|drop| file.quote(drop.line)))
        .confidence(Confidence::Medium);
    if is(Filtered) || (is_much && DEAD_ENDS.contains(&place)) {
        finding = finding.loses(format!("{rate:.0} packets a second die, as {what} ({said})"));
    }
    match known.and_then(|known| known.check) {
        Some(check) => finding
            .advise(Advice::by_hand(
                format!(
                    "{check} checks for the cause of this. If it finds nothing, run the doctor in \
                     the network namespace that the packets are in, or with --all-netns."
                ),
                &[&format!("ringway doctor explain {check}")],
            ))
            .follows(check),
        None => finding.advise(Advice::by_hand(
            format!(
                "Find out who sends these packets (tcpdump on the interface that they arrive on). \
                 The function {place} in the kernel's source shows what it rejects."
            ),
            &[],
        )),
    }
}

/// Drops as a fraction of all packets here; 1 if the number of packets is unknown.
fn part(facts: &Facts, rate: f64) -> f64 {
    let Some(span) = facts.moved.ok() else { return 1.0 };
    let moved = span.after.nics.iter().filter_map(|(nic, after)| {
        Some(after.since(&span.past(span.before.nics.get(nic))?).packets())
    });
    let moved = float(sum(&moved.collect::<Vec<_>>())) / span.seconds;
    rate / moved.max(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::hosts::host;

    /// What is found where these drops were seen in ten seconds.
    fn found(netns: &str, drops: &[(&str, &str, u64)]) -> Vec<Finding> {
        let lines: String =
            drops.iter().map(|(name, place, count)| format!("{count} {name} {place}\n")).collect();
        let pieces = [
            ("drops", format!("drops: {} seconds=10.0 lost=0\n{lines}", drops.len())),
            ("netns", format!("{netns}\n")),
        ];
        CHECK.run(&host(pieces))
    }

    #[test]
    fn what_a_filter_drops_is_said_in_the_verdict() {
        let found = found("initial", &[("NETFILTER_DROP", "nft_do_chain", 1000)]);
        let loss = found[0].loss.as_deref().unwrap_or_default();
        assert!(loss.starts_with("100 packets a second die, as a filter rule"), "{found:#?}");
        assert_eq!(found[0].severity, Severity::Note);
    }

    #[test]
    fn drops_of_other_namespaces_are_one_note() {
        let drops = [
            ("NETFILTER_DROP", "nft_do_chain", 1000),
            ("XDP", "do_xdp_generic", 500),
            ("-", "x", 90),
        ];
        let found = found("other", &drops);
        assert_eq!((found.len(), found[0].severity), (1, Severity::Note), "{found:#?}");
        assert!(found[0].summary.ends_with("NETFILTER_DROP 100, XDP 50, x 9"), "{found:#?}");
        assert_eq!(found[0].loss, None);
    }

    #[test]
    fn a_full_ring_of_a_capture_has_a_meaning() {
        let found = found("initial", &[("PACKET_SOCK_ERROR", "tpacket_rcv", 1000)]);
        assert!(found[0].summary.ends_with("a capturing program has no room for its copy"));
    }

    #[test]
    fn the_reply_to_a_ping_is_no_drop() {
        let found = found("initial", &[("NO_SOCKET", "icmp_rcv", 1000)]);
        assert_eq!(found[0].severity, Severity::Ok, "{found:#?}");
    }

    #[test]
    fn meanings_are_in_order_and_name_checks_that_there_are() {
        assert!(MEANINGS.windows(2).all(|two| two[0].reason < two[1].reason));
        assert!(PLACES.windows(2).all(|two| two[0].0 < two[1].0));
        for meaning in &MEANINGS {
            assert!(meaning.check.is_none_or(|id| check::find(id).is_some()), "{}", meaning.reason);
        }
    }
}
