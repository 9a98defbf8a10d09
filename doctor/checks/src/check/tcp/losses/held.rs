//! A connection that loss holds down, however few segments that is.

use super::{Facts, NEEDLESS, RESENT};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, Span, float, share};
use ringway_evidence::parse::sockets::{Socket, Sockets};

/// Part of its segments from which loss holds a connection: with one lost in a thousand, about 40
/// are in flight, whatever the path could carry (`1.22 / sqrt(loss)`).
const PART_MIN: f64 = 0.001;
/// Segments sent again, below which that part is chance.
const RESENT_MIN: u64 = 5;
/// Part of the time in which it had something to send and nothing else held it.
const BUSY: f64 = 0.5;
/// So many times the shortest round trip is one with a queue in it: then the narrowest link is
/// full, and its losses are how TCP finds that.
const QUEUED: f64 = 1.5;
/// Shorter round trips vary more by the load of the hosts than by queues.
const RTT_MS_MIN: f64 = 0.1;

/// The connection that sends the most of those that loss holds.
pub(super) fn by_loss(facts: &Facts) -> Option<Finding> {
    let span = facts.sockets.ok().filter(|span| span.basis == Basis::Samples)?;
    let held = span.after.all.iter().filter_map(|socket| {
        let loss = Loss::of(span, socket)?;
        // Segments that the other end had already were late, not lost.
        let is_lost = facts.counters.since(NEEDLESS) < loss.resent / 2;
        (loss.part >= PART_MIN && loss.resent >= RESENT_MIN && is_lost).then_some((socket, loss))
    });
    let (socket, Loss { bits, part, rtt_ms, least_ms, .. }) =
        held.max_by(|a, b| a.1.bits.total_cmp(&b.1.bits))?;
    let summary = format!(
        "loss holds the connection to {} at {:.1} Mbit/s: {:.2} % of its segments are sent again",
        socket.peer,
        bits / 1e6,
        part * 100.0
    );
    let finding = Finding::new(Severity::Warning, format!("{RESENT} to {}", socket.peer), summary)
        .cause(format!(
            "It always had data to send, and neither window nor buffer held it. A round trip takes \
             {rtt_ms:.1} ms, hardly more than the shortest ({least_ms:.1} ms): no queue is full, \
             so this is no loss by which TCP finds its rate. A link with errors, a limit that \
             drops, or a short queue on the path."
        ))
        .quote([span.text.quote(socket.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "Find out where on the path packets are lost: errors of links and limits at both ends \
             (D37, D30), and the counters of what is between.",
            &["ss -ti state established", "ip -s -s link show"],
        ));
    Some(finding)
}

/// What a connection lost between both samples.
struct Loss {
    bits: f64,
    resent: u64,
    part: f64,
    rtt_ms: f64,
    least_ms: f64,
}

impl Loss {
    /// None if something else may hold the connection.
    fn of(span: &Span<Sockets>, socket: &Socket) -> Option<Loss> {
        let before = span.before.same(socket)?;
        let grown = |of: fn(&Socket) -> u64| of(socket).saturating_sub(of(before));
        let (rtt_ms, least_ms) = socket.rtt_ms.zip(socket.min_rtt_ms)?;
        let held = |one: &Socket| one.busy_ms * (one.rwnd_limited + one.sndbuf_limited);
        let free = (socket.busy_ms - held(socket)) - (before.busy_ms - held(before));
        let is_free = free / 1e3 >= BUSY * span.seconds && !socket.more.is_app_limited;
        let is_queued = rtt_ms > QUEUED * least_ms || least_ms < RTT_MS_MIN;
        // BBR keeps to the rate that it measures, whatever is lost.
        if !is_free || is_queued || socket.congestion.starts_with("bbr") {
            return None;
        }
        let resent = grown(|one| one.more.total_retrans);
        Some(Loss {
            bits: float(grown(|one| one.more.bytes_acked)) * 8.0 / span.seconds,
            resent,
            part: share(resent, grown(|one| one.more.data_segs_out)),
            rtt_ms,
            least_ms,
        })
    }
}
