//! D47: a program does not keep up: its connections wait, or its datagrams are dropped.

use crate::check::{Check, FEW, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    Basis, DatagramSockets, NetCounters, SocketOwners, Span, Tried, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::listeners::{
    Datagram, Datagrams, Listeners, PacketSocket, PacketSockets,
};

pub(crate) const CHECK: Check = Check {
    id: "D47",
    slug: "full-sockets",
    title: "a program does not read its data",
    group: Group::Tcp,
    sources: &["man-listen:backlog", "ip-sysctl:somaxconn", "man-socket:receive-buffer"],
    explanation: include_str!("full_sockets.txt"),
    absent: "there is no data on sockets",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        listeners: Tried<Span<Listeners>>,
        datagrams: Tried<DatagramSockets>,
        counters: Tried<NetCounters>,
        packets: Tried<Span<PacketSockets>>,
        owners: SocketOwners,
    }
}

/// Dropped datagrams per second from which they are more than occasional bursts.
const DROPS_MIN: f64 = 5.0;
/// Bytes that wait in a packet socket in both samples, from which no program reads it.
const CAPTURED_MIN: u64 = 64 << 10;
/// Sockets that are named.
const REPORTED_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let listeners = out.tried(&facts.listeners, "listening sockets");
    let datagrams = out.tried(&facts.datagrams, "datagram sockets");
    let packets = out.tried(&facts.packets, "packet sockets");
    if listeners.is_none() && datagrams.is_none() {
        return not_here(CHECK.absent);
    }
    let of_datagrams = datagrams.into_iter().flat_map(|DatagramSockets(tables)| tables);
    let mut bases =
        listeners.iter().map(|span| span.basis).chain(of_datagrams.map(|it| it.1.basis));
    if bases.all(|basis| basis == Basis::SinceBoot) {
        return out.one_sample("what programs read is");
    }
    if let Some(span) = listeners.filter(|span| span.basis == Basis::Samples) {
        out.add(full(facts, span).into_iter().take(REPORTED_MAX));
    }
    if let Some(DatagramSockets(tables)) = datagrams {
        let mut found: Vec<(f64, Finding)> = Vec::new();
        for (kind, span) in tables.iter().filter(|(_, span)| span.basis == Basis::Samples) {
            let sockets = span.after.sockets.iter();
            found.extend(sockets.filter_map(|(inode, after)| {
                lossy(facts, kind, span, *inode, span.before.sockets.get(inode)?, after)
            }));
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        out.add(found.into_iter().take(REPORTED_MAX).map(|(_, finding)| finding));
    }
    if let Some(span) = packets.filter(|span| span.basis == Basis::Samples) {
        out.add(captured(facts, span).into_iter().take(REPORTED_MAX));
    }
    // The ring of a capture is no memory of its socket (tpacket_rcv in net/packet/af_packet.c), so
    // an empty socket may be one that is not read.
    let is_empty = |one: &PacketSocket| one.waiting == 0;
    let may_be_ring = packets.is_some_and(|span| span.after.sockets.values().any(is_empty));
    let but = if may_be_ring { "; rings of captures cannot be judged" } else { "" };
    out.well(format!("programs read their data in time{but}"), None);
    Ok(())
}

/// A socket that loses many datagrams, with their rate; a few are many if nothing is read.
fn lossy(
    facts: &Facts,
    kind: &str,
    span: &Span<Datagrams>,
    inode: u64,
    before: &Datagram,
    after: &Datagram,
) -> Option<(f64, Finding)> {
    let drops = after.drops.saturating_sub(before.drops);
    let rate = float(drops) / span.seconds;
    let is_unread = drops >= FEW && before.waiting > 0 && before.waiting == after.waiting;
    if rate < DROPS_MIN && !is_unread {
        return None;
    }
    let (whose, what) = (whose(facts, inode), if kind == "UDP" { "port" } else { "protocol" });
    let summary = format!(
        "{whose} loses {rate:.0} datagrams a second: the buffer of its {kind} socket ({what} {}) \
         is full",
        after.port
    );
    let finding = Finding::new(Severity::Warning, whose, summary)
        .cause("It reads more slowly than datagrams arrive, or not at all.")
        .quote([span.text.quote(after.line)])
        .advise(Advice::by_hand(
            "Find out what keeps the program busy, and whether its CPU is full (D34, D35). If \
             only bursts are lost, use a larger SO_RCVBUF, up to net.core.rmem_max.",
            &["ss -uanmp"],
        ));
    Some((rate, finding))
}

/// Programs that capture packets and do not read them.
fn captured(facts: &Facts, span: &Span<PacketSockets>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (inode, after) in &span.after.sockets {
        let Some(before) = span.before.sockets.get(inode) else { continue };
        let waiting = after.waiting.min(before.waiting);
        if waiting < CAPTURED_MIN {
            continue;
        }
        let whose = whose(facts, *inode);
        let summary =
            format!("{whose} does not read its packet socket: {} KiB wait", waiting >> 10);
        found.push(
            Finding::new(Severity::Warning, whose, summary)
                .cause(
                    "Each packet that matches its filter is copied for it until its buffer is \
                     full, and then dropped for it: work for nothing.",
                )
                .quote([span.text.quote(after.line)])
                .confidence(Confidence::Medium)
                .advise(Advice::by_hand(
                    "If no one needs the capture any more, end the program.",
                    &["ss -0np"],
                )),
        );
    }
    found
}

fn whose(facts: &Facts, inode: u64) -> String {
    facts.owners.whose(inode)
}

/// Programs whose queue of new connections is full in both samples, or that the kernel refused
/// connections for.
fn full(facts: &Facts, span: &Span<Listeners>) -> Vec<Finding> {
    let overflows = facts.counters.ok().map_or(0, |all| all.since("TcpExt.ListenOverflows"));
    let mut found = Vec::new();
    for one in &span.after.all {
        let same = span.before.all.iter().find(|before| before.inode == one.inode);
        // The kernel lets one more connection wait than was requested.
        let is_full = one.waiting >= one.most.max(1);
        let was_full = same.is_some_and(|before| before.waiting >= before.most.max(1));
        if !is_full || !(was_full || overflows > 0) {
            continue;
        }
        let whose = whose(facts, one.inode);
        let summary = format!(
            "{whose} does not accept connections to {}: {} wait, {} may",
            one.local, one.waiting, one.most
        );
        found.push(
            Finding::new(Severity::Problem, one.local.clone(), summary)
                .cause(
                    "It accepts connections more slowly than they arrive, or not at all. New ones \
                     are dropped, and a client tries again after one, two and four seconds.",
                )
                .quote([span.text.quote(one.line)])
                .confidence(Confidence::High)
                .advise(Advice::by_hand(
                    "Find out what keeps the program busy. If only bursts are lost, use a longer \
                     queue: its own backlog, up to net.core.somaxconn.",
                    &["ss -ltnp"],
                )),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    #[test]
    fn a_capture_that_is_not_read_has_an_owner() {
        let found = |before: u64, after: u64| {
            let table = |waiting: u64| {
                format!(
                    "sk RefCnt Type Proto Iface R Rmem User Inode\n0 3 3 0003 2 1 {waiting} 0 9\n"
                )
            };
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "2.0\n".to_owned()),
                ("sample-1/proc/net/packet", table(before)),
                ("sample-2/proc/net/packet", table(after)),
                ("sample-1/netlink/listeners", "listeners: 0\n".to_owned()),
                ("sample-2/netlink/listeners", "listeners: 0\n".to_owned()),
                ("owners", "owners: 1 refused=0 late=0\n9 7 tcpdump\n".to_owned()),
            ];
            CHECK.run(&host(pieces)).remove(0)
        };
        let full = found(213_120, 213_120);
        assert!(full.summary.starts_with("tcpdump (process 7) does not read"), "{full:#?}");
        let burst = found(0, 213_120);
        assert_eq!(burst.severity, Severity::Ok);
        assert_eq!(burst.summary, "programs read their data in time");
        assert!(found(0, 0).summary.ends_with("rings of captures cannot be judged"));
    }

    #[test]
    fn a_socket_that_is_not_read_loses_what_little_arrives() {
        let found = |waiting: u64| {
            let table = |drops: u64, waiting: u64| {
                format!(
                    "sl local rem st queues tr tm retrnsmt uid timeout inode ref pointer drops\n\
                     1: 00000000:14C8 00000000:0000 07 00000000:{waiting:08X} 00:00000000 0 0 0 9 \
                     2 0 {drops}\n"
                )
            };
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "2.0\n".to_owned()),
                ("sample-1/netlink/listeners", "listeners: 0\n".to_owned()),
                ("sample-2/netlink/listeners", "listeners: 0\n".to_owned()),
                ("sample-1/proc/net/udp", table(1, 2304)),
                ("sample-2/proc/net/udp", table(4, waiting)),
                ("owners", "owners: 1 refused=0 late=0\n9 7 named\n".to_owned()),
            ];
            CHECK.run(&host(pieces)).remove(0)
        };
        let unread = found(2304);
        assert_eq!(unread.severity, Severity::Warning, "{unread:#?}");
        assert!(unread.summary.starts_with("named (process 7) loses 3 datagrams"), "{unread:#?}");
        assert_eq!(found(0).severity, Severity::Ok, "a burst");
    }

    #[test]
    fn packet_sockets_that_may_not_be_read_have_no_check_mark() {
        let listeners = ("sample-2/netlink/listeners", "listeners: 0\n");
        let pieces = [
            ("sample-1/monotonic", "1.0\n"),
            ("sample-2/monotonic", "2.0\n"),
            ("sample-1/netlink/listeners", listeners.1),
            listeners,
            ("refused", "proc/net/packet\tPermission denied (os error 13)\n"),
        ];
        let found = CHECK.run(&host(pieces));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Unknown), "{found:#?}");
    }
}
