//! D45: what is sent waits in a queue, here or on the way.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::text::path_queue as text;
use ringway_evidence::fact::{Basis, Disciplines, SocketOwners, Span, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::{Socket, Sockets};

pub(crate) const CHECK: Check = Check {
    id: "D45",
    slug: "path-queue",
    title: "packets wait in a long queue",
    group: Group::Tcp,
    sources: &["rfc-7567:full-queues"],
    explanation: text::EXPLANATION,
    absent: "no connection",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sockets: Span<Sockets>,
        owners: SocketOwners,
        qdiscs: Tried<Disciplines>,
    }
}

/// Milliseconds that a queue has to hold back before it is one that people feel.
const WAITS_MS: f64 = 40.0;
/// So many times the shortest round trip.
const TIMES: f64 = 4.0;
/// Bytes a second that a connection has to move, so that it is the one that fills a queue.
const BYTES_MIN: f64 = 50_000.0;
/// Bytes in a discipline's queue from which that queue is the cause of the delay.
const BACKLOG_MIN: u64 = 20_000;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.sockets;
    if span.basis == Basis::SinceBoot {
        return not_here("how much connections move is only known since their beginning");
    }
    let waits = |socket: &Socket| Some(socket.rtt_ms? - socket.min_rtt_ms?);
    let is_queued = |socket: &&Socket| {
        let Some((rtt, least)) = socket.rtt_ms.zip(socket.min_rtt_ms) else { return false };
        let before = span.before.same(socket).map_or(0, |one| one.more.bytes_acked);
        let moved = float(socket.more.bytes_acked.saturating_sub(before)) / span.seconds;
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

fn of_one(facts: &Facts, socket: &Socket) -> Finding {
    let (rtt, least) = (socket.rtt_ms.unwrap_or(0.0), socket.min_rtt_ms.unwrap_or(0.0));
    let whose = facts.owners.whose(socket.more.inode);
    let summary = format!(
        "what is sent to {} waits {:.0} ms in a queue: a round trip takes {rtt:.1} ms, the \
         shortest took {least:.1}, of {whose}",
        socket.peer,
        rtt - least
    );
    let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .quote([facts.sockets.text.quote(socket.line)])
        .confidence(Confidence::Medium);
    let here = facts.qdiscs.ok().and_then(|qdiscs| {
        let most = qdiscs.now.all.iter().max_by_key(|qdisc| qdisc.backlog)?;
        (most.backlog >= BACKLOG_MIN)
            .then(|| (most.dev.clone(), most.backlog, qdiscs.text.quote(1)))
    });
    match here {
        Some((dev, bytes, quote)) => finding
            .cause(text::here_cause(&bytes, &dev))
            .quote([quote])
            .advise(Advice::by_hand(text::here_advice(), &["tc -s qdisc show"])),
        None => finding
            .cause(text::away_cause())
            .advise(Advice::by_hand(text::away_advice(), &["ss -ti state established"])),
    }
}
