//! D46: what holds a connection down: its program, its segments, packets that overtake.

#[path = "held_connections/limits.rs"]
mod limits;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::text::held_connections as text;
use ringway_evidence::fact::{Basis, SocketOwners, Span, float, share};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::{Socket, Sockets};

pub(crate) const CHECK: Check = Check {
    id: "D46",
    slug: "held-connections",
    title: "a connection is held down at its ends",
    group: Group::Tcp,
    sources: &["man-tc-fq:pacing", "rfc-8985:reordering", "rfc-3168:marks"],
    explanation: text::EXPLANATION,
    absent: "no connection",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sockets: Span<Sockets>,
        owners: SocketOwners,
    }
}

/// Bytes a second from which a connection is at work.
const BYTES_MIN: f64 = 20_000.0;
/// Part of its program's limit that it reaches.
const PACED: f64 = 0.75;
/// Bytes that wait for a program, and seconds that it takes for them, in both samples.
const UNREAD_MIN: u64 = 32 << 10;
const UNREAD_SECONDS: f64 = 1.0;
/// A segment that is shorter costs more in headers and interrupts than it has to.
const MSS_SHORT: u64 = 600;
/// Times a second that segments overtake one another, from which TCP takes it for loss.
const REORDERED_MIN: f64 = 5.0;
/// Part of what arrives that a queue marked as too much.
const MARKED: f64 = 0.05;

/// A connection at work.
struct Work<'a> {
    socket: &'a Socket,
    before: &'a Socket,
    seconds: f64,
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.sockets;
    if span.basis == Basis::SinceBoot {
        return not_here("what connections do is only known since their beginning");
    }
    let works: Vec<Work<'_>> = span
        .after
        .all
        .iter()
        .filter_map(|socket| {
            let before = span.before.same(socket)?;
            Some(Work { socket, before, seconds: span.seconds })
        })
        .collect();
    for judge in [paced, unread, short, reordered, marked] {
        // Of each kind the connection that moves the most: a thousand may be alike.
        let found = works.iter().filter_map(|work| Some((work, judge(work)?)));
        let most = found.max_by(|a, b| a.0.sent().total_cmp(&b.0.sent()));
        out.add(most.map(|(work, said)| said.finding(facts, work.socket)));
    }
    out.add(limits::of_senders(facts, &works));
    out.well(format!("none of {} connections is held down at its ends", works.len()), None);
    Ok(())
}

impl Work<'_> {
    /// Bytes a second that arrived.
    fn sent(&self) -> f64 {
        let acked = |one: &Socket| one.more.bytes_acked;
        float(acked(self.socket).saturating_sub(acked(self.before))) / self.seconds
    }

    fn received(&self) -> f64 {
        let received = |one: &Socket| one.more.bytes_received;
        float(received(self.socket).saturating_sub(received(self.before))) / self.seconds
    }

    fn rate(&self, of: impl Fn(&Socket) -> u64) -> f64 {
        float(of(self.socket).saturating_sub(of(self.before))) / self.seconds
    }
}

/// What is said of one kind.
struct Said {
    what: String,
    severity: Severity,
    cause: &'static str,
    advice: &'static str,
}

impl Said {
    fn finding(self, facts: &Facts, socket: &Socket) -> Finding {
        let owner = facts.owners.whose(socket.more.inode);
        let summary = format!("the connection to {}, of {owner}, {}", socket.peer, self.what);
        Finding::new(self.severity, socket.peer.clone(), summary)
            .cause(self.cause)
            .quote([facts.sockets.text.quote(socket.line)])
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(self.advice, &["ss -ti state established"]))
    }
}

/// Its program asked not to be let send faster.
fn paced(work: &Work<'_>) -> Option<Said> {
    let limit = work.socket.program_limit()?;
    (work.sent() >= PACED * float(limit)).then(|| Said {
        what: format!(
            "sends the {:.1} Mbit/s that its program allows it",
            float(limit) * 8.0 / 1e6
        ),
        severity: Severity::Warning,
        cause: text::paced_cause(),
        advice: text::paced_advice(),
    })
}

/// A program here that does not read.
fn unread(work: &Work<'_>) -> Option<Said> {
    let waiting = work.socket.more.recv_queue.min(work.before.more.recv_queue);
    let takes = work.received().max(1.0);
    if waiting < UNREAD_MIN || float(waiting) / takes < UNREAD_SECONDS {
        return None;
    }
    Some(Said {
        what: format!("has {} KiB that its program does not read", waiting >> 10),
        severity: Severity::Warning,
        cause: text::unread_cause(),
        advice: text::unread_advice(),
    })
}

fn short(work: &Work<'_>) -> Option<Said> {
    let Socket { mss, more, .. } = work.socket;
    if *mss == 0 || *mss > MSS_SHORT || work.sent() < BYTES_MIN {
        return None;
    }
    let path = if more.pmtu > 0 { format!(" (path: {})", more.pmtu) } else { String::new() };
    Some(Said {
        what: format!("sends segments of {mss} bytes{path}"),
        severity: Severity::Warning,
        cause: text::short_cause(),
        advice: text::short_advice(),
    })
}

fn reordered(work: &Work<'_>) -> Option<Said> {
    let rate = work.rate(|socket| socket.more.reord_seen);
    let resent = work.rate(|socket| socket.more.total_retrans);
    (rate >= REORDERED_MIN && !work.socket.is_local()).then(|| Said {
        what: format!(
            "has segments that overtake one another, {rate:.0} times a second; {resent:.0} are \
             sent again"
        ),
        severity: Severity::Note,
        cause: text::reordered_cause(),
        advice: text::reordered_advice(),
    })
}

/// Queues on the way say that they are full, by ECN.
fn marked(work: &Work<'_>) -> Option<Said> {
    let of = |name: fn(&Socket) -> u64| name(work.socket).saturating_sub(name(work.before));
    let part = share(of(|one| one.more.delivered_ce), of(|one| one.more.delivered));
    (part >= MARKED).then(|| Said {
        what: format!("has {:.0} % of its segments marked by a queue that fills", part * 100.0),
        severity: Severity::Note,
        cause: text::marked_cause(),
        advice: text::marked_advice(),
    })
}
