//! D44: a connection keeps retransmitting the same data, and gets no reply.

use core::net::SocketAddr;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{Basis, SocketOwners, Span, TcpMtuProbing, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::{More, Socket, Sockets};

pub(crate) const CHECK: Check = Check {
    id: "D44",
    slug: "stuck",
    title: "a connection gets no acknowledgements",
    group: Group::Tcp,
    sources: &[
        "rfc-6298:backoff",
        "ip-sysctl:tcp-retries2",
        "rfc-2923:black-hole",
        "ip-sysctl:tcp-mtu-probing",
    ],
    explanation: include_str!("stuck.txt"),
    absent: "no connection",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sockets: Span<Sockets>,
        probing: Tried<TcpMtuProbing>,
        owners: SocketOwners,
    }
}

/// Bytes of a segment from which a path may be unable to carry it.
const LONG: u64 = 1000;
/// Connections to report.
const REPORTED_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.sockets;
    let is_stuck = |socket: &&Socket| {
        let stands = span.basis == Basis::SinceBoot
            || span
                .before
                .same(socket)
                .is_some_and(|before| before.more.bytes_acked == socket.more.bytes_acked);
        socket.gets_no_acknowledgement() && stands
    };
    let stuck = span.after.all.iter().filter(is_stuck).take(REPORTED_MAX);
    out.add(stuck.map(|socket| of_one(facts, socket)));
    out.well(
        format!("each of {} connections gets its acknowledgements", span.after.all.len()),
        None,
    );
    Ok(())
}

fn of_one(facts: &Facts, socket: &Socket) -> Finding {
    let span = &facts.sockets;
    let owner = facts.owners.whose(socket.more.inode);
    let summary = format!(
        "{owner} has sent the same data to {} {} times without an acknowledgement{}",
        socket.peer,
        socket.more.retransmits,
        waited(socket)
    );
    let finding = Finding::new(Severity::Problem, socket.peer.clone(), summary)
        .quote([span.text.quote(socket.line)])
        .confidence(Confidence::Medium);
    let peer: Option<SocketAddr> = socket.peer.parse().ok();
    let probe = peer.map(|peer| format!("ringway doctor --path {} --interval 1", peer.ip()));
    let probe: Vec<&str> = probe.iter().map(String::as_str).collect();
    // Something passed, if only to make the connection: the first octet is its beginning's.
    let has_passed = socket.more.bytes_received > 0 || socket.more.bytes_acked > 1;
    let has_carried = carried_full_segments(socket);
    if !has_passed || socket.mss < LONG || has_carried || waits_in_short_ones(socket) {
        return finding.cause(other_cause(socket, has_carried)).advise(Advice::by_hand(
            "Check whether the other end can be reached at all, and whether it still has the \
             connection.",
            &probe,
        ));
    }
    let finding = finding
        .cause(format!(
            "The connection was established and some data passed; segments of {mss} bytes are \
             stuck. Most likely a hop drops packets of this length, and its report does not come \
             back.",
            mss = socket.mss
        ))
        .advise(Advice::by_hand(
            "Find out how long a packet may be on this path, and fix the hop that rejects longer \
             ones.",
            &probe,
        ));
    probed(facts, finding)
}

/// Why a connection is stuck whose segments are not known to be too long for the path from the
/// start.
fn other_cause(socket: &Socket, has_carried: bool) -> String {
    // The other end was there when it acknowledged what had overtaken these.
    if has_carried && socket.more.sacked > 0 && socket.mss >= LONG {
        return format!(
            "Segments as long as these have been acknowledged before. Now one behind them arrived, \
             and these do not: the path may have changed to one on which a hop drops packets of {} \
             bytes, and its report does not come back. Otherwise the other end is gone.",
            socket.mss
        );
    }
    let before = match has_carried {
        true => "Segments as long as these have been acknowledged, so the path carried them. ",
        false => "",
    };
    format!(
        "{before}The other end is gone, or something on the path drops the packets: a firewall or \
         NAT that dropped its entry, a route that changed, perhaps to a smaller MTU, a neighbour \
         that does not reply."
    )
}

/// What helps until the path is fixed, unless it is set.
fn probed(facts: &Facts, finding: Finding) -> Finding {
    let knob = Knob::Sysctl { name: "net.ipv4.tcp_mtu_probing".to_owned() };
    let setting = facts.probing.ok();
    let change = setting.and_then(|text| Change::raise(knob, text.number().ok()?, 1));
    match change {
        Some(change) => {
            let quote = setting.map(|text| text.quote(1));
            finding.quote(quote).advise(Advice::by_change(
                "Until that is done, let TCP try shorter segments after timeouts. This also helps \
                 connections that are stuck now, at their next timeout.",
                [change],
            ))
        }
        None => finding,
    }
}

/// Whether the path has carried segments of full length: those that were acknowledged had more than
/// half of it on average. A message longer than a segment makes full ones and a shorter last one.
fn carried_full_segments(socket: &Socket) -> bool {
    let More { data_segs_out, total_retrans, bytes_acked, .. } = socket.more;
    let acked = data_segs_out.saturating_sub(total_retrans).saturating_sub(socket.unacked);
    data_segs_out > 0 && bytes_acked.saturating_mul(2) > acked.max(1).saturating_mul(socket.mss)
}

/// Whether what is on its way is shorter than what a path may drop for its length: a message longer
/// than a segment makes full ones and a shorter last one. If the bytes are unknown, it is not.
fn waits_in_short_ones(socket: &Socket) -> bool {
    let waiting = socket.more.send_queue;
    let sent = waiting.saturating_sub(socket.notsent_bytes);
    let is_short = sent.saturating_mul(2) <= socket.unacked.saturating_mul(socket.mss);
    waiting > 0 && (sent < LONG || is_short)
}

/// How long it has waited, how much waits, and how long it is until the next try.
fn waited(socket: &Socket) -> String {
    let More { last_ack_recv, rto, send_queue, .. } = socket.more;
    if last_ack_recv == 0 || rto == 0 {
        return String::new();
    }
    let seconds = |ms: u64| float(ms) / 1000.0;
    format!(
        " for {:.0} s; {} KiB wait, and tries are {:.1} s apart",
        seconds(last_ack_recv),
        send_queue.div_ceil(1 << 10),
        seconds(rto / 1000)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    /// What is said of a connection with these bytes and segments, of which 10 are on their way.
    fn said(bytes_acked: u64, segments: u64) -> Finding {
        of(&format!("unacked=10 bytes_acked={bytes_acked} data_segs_out={segments}"))
    }

    /// What is said of a connection with segments of 1448 bytes at most, and these fields.
    fn of(fields: &str) -> Finding {
        let row = |retransmits: u64, resent: u64| {
            format!(
                "connections: 1 of 1\n10.0.0.1:5001 10.0.0.2:4000 cubic \
                 retransmits={retransmits} rto=800000 snd_mss=1448 total_retrans={resent} \
                 last_ack_recv=9000 {fields}\n"
            )
        };
        let pieces = [
            ("proc/sys/net/ipv4/tcp_mtu_probing", "0\n".to_owned()),
            ("sample-1/monotonic", "1.0\n".to_owned()),
            ("sample-2/monotonic", "6.0\n".to_owned()),
            ("sample-1/netlink/connections", row(3, 3)),
            ("sample-2/netlink/connections", row(5, 5)),
        ];
        CHECK.run(&host(pieces)).into_iter().next().expect("it is stuck")
    }

    #[test]
    fn a_path_that_carried_full_segments_is_no_black_hole() {
        for (bytes, segments) in [(28_960_001, 20_015), (28_961, 35), (1_500_000, 1515)] {
            let gone = said(bytes, segments);
            assert!(gone.cause.contains("the path carried them"), "{gone:#?}");
            assert!(gone.advice.iter().all(|one| one.changes.is_empty()), "{gone:#?}");
        }
        // Nothing, or short messages however many.
        for (bytes, segments) in [(38, 16), (4_000_000, 20_015)] {
            let hole = said(bytes, segments);
            assert!(hole.cause.contains("a hop drops packets of this length"), "{hole:#?}");
            assert_eq!(hole.advice[1].commands, ["sysctl -w net.ipv4.tcp_mtu_probing=1"]);
        }
    }

    #[test]
    fn a_path_that_has_changed_may_carry_only_shorter_segments_than_before() {
        let of_sacked = |sacked: u64| {
            of(&format!(
                "unacked=91 sacked={sacked} lost=90 send_queue=131072 bytes_acked=524326 \
                 data_segs_out=462"
            ))
        };
        let [gone, changed] = [0, 1].map(|sacked| of_sacked(sacked).cause);
        assert!(changed.contains("the path may have changed"), "{changed}");
        assert!(changed.contains("drops packets of 1448 bytes"), "{changed}");
        assert!(gone.contains("the path carried them. The other end is gone"), "{gone}");
    }

    #[test]
    fn short_packets_that_get_no_reply_are_no_matter_of_length() {
        let session = "bytes_acked=48000 bytes_received=3000 data_segs_out=600";
        let is_hole = |unacked: u64, waiting: u64, unsent: u64| {
            let waits = format!("unacked={unacked} send_queue={waiting} notsent_bytes={unsent}");
            !of(&format!("{session} {waits}")).advice.iter().all(|one| one.changes.is_empty())
        };
        // Keys that are pressed after the other end has gone, and many of them.
        assert!(!is_hole(2, 120, 0) && !is_hole(40, 2400, 0));
        // A request that makes one full segment, and the beginning of a transfer.
        assert!(is_hole(2, 1600, 0) && is_hole(12, 79_640, 62_264));
    }
}
