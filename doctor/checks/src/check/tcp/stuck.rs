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
    if !has_passed || socket.mss < LONG {
        return finding
            .cause(
                "The other end is gone, or something on the path drops the packets: a firewall or \
                 NAT that dropped its entry, a route that changed, a neighbour that does not \
                 reply.",
            )
            .advise(Advice::by_hand(
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
