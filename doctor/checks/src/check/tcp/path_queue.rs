//! D45: packets wait in a queue, here or on the path.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, Disciplines, SocketOwners, Span, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::{Socket, Sockets};

pub(crate) const CHECK: Check = Check {
    id: "D45",
    slug: "path-queue",
    title: "packets wait in a long queue",
    group: Group::Tcp,
    sources: &["rfc-7567:full-queues"],
    explanation: include_str!("path_queue.txt"),
    absent: "no connection",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sockets: Span<Sockets>,
        qdiscs: Tried<Disciplines>,
        owners: SocketOwners,
    }
}

/// Queueing delay in milliseconds from which people notice it.
const WAITS_MS: f64 = 40.0;
/// Multiple of the shortest round trip from which there is a queue.
const TIMES: f64 = 4.0;
/// Bytes per second from which a connection may be the one that fills the queue.
const BYTES_MIN: f64 = 50_000.0;
/// Bytes in a discipline's queue from which that queue may be the cause of the delay, and the
/// fraction of what waits that must be there: a queue varies, and another interface may have one.
const BACKLOG_MIN: u64 = 20_000;
const BACKLOG_PART: f64 = 0.25;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.sockets;
    if span.basis == Basis::SinceBoot {
        return not_here("connections' traffic is only known since their start");
    }
    let waits = |socket: &Socket| Some(socket.rtt_ms? - socket.min_rtt_ms?);
    let is_queued = |socket: &&Socket| {
        let Some((rtt, least)) = socket.rtt_ms.zip(socket.min_rtt_ms) else { return false };
        let moved = sent_a_second(facts, socket);
        !socket.is_local()
            && rtt - least >= WAITS_MS
            && rtt >= TIMES * least
            && moved >= BYTES_MIN
            && socket.unacked > 1
    };
    let longest = span
        .after
        .all
        .iter()
        .filter(is_queued)
        .max_by(|a, b| waits(a).unwrap_or(0.0).total_cmp(&waits(b).unwrap_or(0.0)));
    if let Some(socket) = longest {
        out.add([of_one(facts, socket)]);
    }
    out.well("no connection waits long in a queue", None);
    Ok(())
}

/// Bytes a second that arrived.
fn sent_a_second(facts: &Facts, socket: &Socket) -> f64 {
    let span = &facts.sockets;
    let before = span.before.same(socket).map_or(0, |one| one.more.bytes_acked);
    float(socket.more.bytes_acked.saturating_sub(before)) / span.seconds
}

fn of_one(facts: &Facts, socket: &Socket) -> Finding {
    let (rtt, least) = (socket.rtt_ms.unwrap_or(0.0), socket.min_rtt_ms.unwrap_or(0.0));
    let whose = facts.owners.whose(socket.more.inode);
    let waiting = sent_a_second(facts, socket) * (rtt - least) / 1e3;
    let summary = format!(
        "packets to {} wait {:.0} ms in a queue, about {:.0} KiB of them: a round trip takes \
         {rtt:.1} ms, the shortest took {least:.1}, of {whose}",
        socket.peer,
        rtt - least,
        waiting / 1024.0
    );
    let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .quote([facts.sockets.text.quote(socket.line)])
        .confidence(Confidence::Medium);
    let here = facts.qdiscs.ok().and_then(|qdiscs| {
        let most = qdiscs.now.all.iter().max_by_key(|qdisc| qdisc.backlog)?;
        (most.backlog >= BACKLOG_MIN && float(most.backlog) >= BACKLOG_PART * waiting)
            .then(|| (most.dev.clone(), most.backlog, qdiscs.text.quote(1)))
    });
    match here {
        Some((dev, bytes, quote)) => finding
            .cause(format!("{bytes} bytes wait before {dev} on this host, so the queue is here."))
            .quote([quote])
            .advise(Advice::by_hand(
                "Keep the queue short: fq_codel below the limit, or less latency or limit in the \
                 discipline that holds these bytes.",
                &["tc -s qdisc show"],
            )),
        None => finding
            .cause(
                "No queue of this host holds so much, so the queue is on the path or at the other \
                 end: before the narrowest link, or a slow CPU.",
            )
            .advise(Advice::by_hand(
                "Find the narrowest link of the path and use fq_codel or cake there. If you do \
                 not control it, send a little less than it carries, through cake with a \
                 bandwidth.",
                &["ss -ti state established"],
            )),
    }
}
