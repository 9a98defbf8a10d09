//! D46: what limits a connection: its program, its segment size, reordering.

#[path = "held_connections/limits.rs"]
mod limits;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, CpuWaits, SocketOwners, Span, float, share};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::{Socket, Sockets};

pub(crate) const CHECK: Check = Check {
    id: "D46",
    slug: "held-connections",
    title: "one of its ends limits a connection",
    group: Group::Tcp,
    sources: &["man-tc-fq:pacing", "rfc-8985:reordering", "rfc-3168:marks"],
    explanation: include_str!("held_connections.txt"),
    absent: "no connection",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sockets: Span<Sockets>,
        waits: CpuWaits,
        owners: SocketOwners,
    }
}

const SHORT_ADVICE: &str = "Find out which end announces it (advmss, rcvmss), and check its \
                            routes (D40), rules and MTU (D08).";
const UNREAD_ADVICE: &str =
    "Find out what keeps the program busy: its CPU (D34, D35), a disk (D36), a lock.";

const STARVED_CAUSE: &str = "The program reads late because it waits for a CPU, which other \
                             programs use (D35): neither the program nor the network is at fault.";

/// Bytes per second from which a connection is active.
const BYTES_MIN: f64 = 20_000.0;
/// Fraction of its program's limit that it must reach.
const PACED: f64 = 0.75;
/// Bytes that wait for a program, and seconds that it takes for them, in both samples.
const UNREAD_MIN: u64 = 32 << 10;
const UNREAD_SECONDS: f64 = 1.0;
/// Seconds that it takes for a full buffer: a fast program has read one after some milliseconds.
const SLOW_SECONDS: f64 = 0.1;
/// Part of a receive buffer from which it is full: the kernel opens the window again only once much
/// of it was read.
const BUFFER_FULL: f64 = 0.5;
/// Segment size below which headers and interrupts cost more than necessary.
const MSS_SHORT: u64 = 600;
/// Reordering events per second from which TCP mistakes them for loss.
const REORDERED_MIN: f64 = 5.0;
/// Fraction of delivered segments with a congestion mark.
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
        return not_here("data on connections is only known since their start");
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
    for judge in [paced, unread, slow, short, announced, reordered, marked] {
        // Of each kind the connection that moves the most: a thousand may be alike.
        let found = works.iter().filter_map(|work| Some((work, judge(work)?)));
        let most = found.max_by(|a, b| a.0.sent().total_cmp(&b.0.sent()));
        out.add(most.map(|(work, said)| said.finding(facts, work.socket)));
    }
    out.add(limits::of_senders(facts, &works));
    out.add(limits::of_receivers(facts, &works));
    out.well(format!("none of {} connections is limited by its ends", works.len()), None);
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

    /// Whether the receive buffer was full in both samples.
    fn is_buffer_full(&self) -> bool {
        [self.before, self.socket].iter().all(|one| {
            let more = &one.more;
            more.rcvbuf > 0 && float(more.rmem_alloc) >= BUFFER_FULL * float(more.rcvbuf)
        })
    }

    /// Whether a sample was taken while the send buffer was full.
    fn is_send_buffer_full(&self) -> bool {
        let is_full = |one: &&Socket| one.more.sndbuf > 0 && one.more.send_queue >= one.more.sndbuf;
        [self.before, self.socket].iter().any(is_full)
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
        let lacks_cpu = facts.waits.lacks(facts.owners.process(socket.more.inode));
        let (severity, cause) = match self.advice == UNREAD_ADVICE && lacks_cpu {
            true => (Severity::Note, STARVED_CAUSE),
            false => (self.severity, self.cause),
        };
        Finding::new(severity, socket.peer.clone(), summary)
            .cause(cause)
            .quote([facts.sockets.text.quote(socket.line)])
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(self.advice, &["ss -ti state established"]))
    }
}

/// Its program limited its sending rate.
fn paced(work: &Work<'_>) -> Option<Said> {
    let limit = work.socket.program_limit()?;
    (work.sent() >= PACED * float(limit)).then(|| Said {
        what: format!(
            "sends at the {:.1} Mbit/s that its program allows",
            float(limit) * 8.0 / 1e6
        ),
        severity: Severity::Warning,
        cause: "Its program set SO_MAX_PACING_RATE, so the network does not limit it.",
        advice: "If it should be faster, change the program's own limit (--fq-rate of iperf3, \
                 limit-rate and the like).",
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
        what: format!("has {} KiB of data that its program does not read", waiting >> 10),
        severity: Severity::Warning,
        cause: "In both samples, received data waited longer than a second for the program on \
                this host. Its window closes, and the other end must wait.",
        advice: UNREAD_ADVICE,
    })
}

/// A program here that reads less than comes.
fn slow(work: &Work<'_>) -> Option<Said> {
    let more = &work.socket.more;
    let waiting = more.rmem_alloc.min(work.before.more.rmem_alloc);
    let is_slow = float(waiting) / work.received().max(1.0) >= SLOW_SECONDS;
    if !work.is_buffer_full() || more.rcvbuf < UNREAD_MIN || !is_slow || unread(work).is_some() {
        return None;
    }
    Some(Said {
        what: format!(
            "has {} KiB of received data waiting in a buffer of {}: its program reads {:.1} Mbit/s",
            waiting >> 10,
            more.rcvbuf >> 10,
            work.received() * 8.0 / 1e6
        ),
        severity: Severity::Warning,
        cause: "In both samples, half of the receive buffer or more had data that the program on \
                this host had not read. Its window closes each time, and the other end must wait.",
        advice: UNREAD_ADVICE,
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
        cause: "One end announced short segments: a route with advmss, a program with TCP_MAXSEG, \
                a rule that clamps the MSS, or a path whose MTU was found to be small.",
        advice: SHORT_ADVICE,
    })
}

/// This end announced that it takes short segments only.
fn announced(work: &Work<'_>) -> Option<Said> {
    let announced = work.socket.more.advmss;
    if announced == 0 || announced > MSS_SHORT || work.received() < BYTES_MIN {
        return None;
    }
    Some(Said {
        what: format!("gets segments of {announced} bytes at most, as this end announced"),
        severity: Severity::Warning,
        cause: "This host announced short segments when the connection began: a route with \
                advmss, a program with TCP_MAXSEG, or an interface with a small MTU.",
        advice: SHORT_ADVICE,
    })
}

fn reordered(work: &Work<'_>) -> Option<Said> {
    let rate = work.rate(|socket| socket.more.reord_seen);
    let resent = work.rate(|socket| socket.more.total_retrans);
    (rate >= REORDERED_MIN && !work.socket.is_local()).then(|| Said {
        what: format!(
            "has segments that arrive out of order, {rate:.0} times a second; {resent:.0} are \
             sent again"
        ),
        severity: Severity::Note,
        cause: "TCP takes segments that arrive late for lost, sends them again and slows down.",
        advice: "Search for a bond in round robin, RPS or several queues for one flow, and for \
                 paths of unequal length.",
    })
}

/// Queues on the way say that they are full, by ECN.
fn marked(work: &Work<'_>) -> Option<Said> {
    let of = |name: fn(&Socket) -> u64| name(work.socket).saturating_sub(name(work.before));
    let part = share(of(|one| one.more.delivered_ce), of(|one| one.more.delivered));
    (part >= MARKED).then(|| Said {
        what: format!("has {:.0} % of its segments marked by a full queue", part * 100.0),
        severity: Severity::Note,
        cause: "A queue on the path is at its limit and marks packets before it drops them. TCP \
                sends less, as it should.",
        advice: "Do nothing, unless it is too slow: then find the narrowest link.",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    #[test]
    fn a_reader_without_a_cpu_is_no_alarm() {
        let found = |idle: u64| {
            let row = |received: u64| {
                format!(
                    "connections: 1 of 1\n10.0.0.1:7000 10.0.0.2:4000 cubic rtt=900 snd_mss=1448 \
                     bytes_received={received} recv_queue=90000 rmem_alloc=400000 rcvbuf=500000\n"
                )
            };
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "6.0\n".to_owned()),
                ("sample-1/netlink/connections", row(0)),
                ("sample-2/netlink/connections", row(100_000)),
                ("sample-1/proc/stat", "cpu0 0 0 0 0\nintr 0\n".to_owned()),
                ("sample-2/proc/stat", format!("cpu0 500 0 0 {idle}\nintr 0\n")),
            ];
            CHECK.run(&host(pieces)).remove(0)
        };
        assert_eq!(found(500).severity, Severity::Warning, "{:#?}", found(500));
        let starved = found(0);
        assert_eq!(starved.severity, Severity::Note, "{starved:#?}");
        assert!(starved.cause.contains("waits for a CPU"), "{starved:#?}");
    }
}
