//! Who limits each connection that sends: its program, the other end's window, its own buffer, or
//! congestion control and the path.

use super::{BYTES_MIN, Facts, Work};
use crate::finding::{Confidence, Finding, Severity};
use ringway_evidence::fact::float;
use ringway_evidence::parse::sockets::Socket;

const BY_OWN_WINDOW: &str =
    "This host's window arrives in full in each round trip, so it is the limit. See D11.";
const BY_READER: &str = "Received data waits for the program on this host. Find out what the \
                         program does instead: its CPU (D34, D35), a disk (D36).";

/// Connections that are shown: those that send the most.
const SHOWN_MAX: usize = 4;
/// Part of the time that is worth showing.
const PART_MIN: f64 = 0.05;
/// So many times the shortest round trip is one with a queue in it.
const QUEUED: f64 = 2.0;

/// Who limits a connection, and for which part of the time between both samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shares {
    /// There was nothing to send, or less than could be sent at once.
    pub(super) program: f64,
    /// The other end's window was full.
    pub(super) receiver: f64,
    /// The send buffer was full.
    pub(super) buffer: f64,
    /// Congestion control let no more travel.
    pub(super) path: f64,
}

/// A note for each of the connections that send the most, the first of them first.
pub(super) fn of_senders(facts: &Facts, works: &[Work<'_>]) -> Vec<Finding> {
    let mut senders: Vec<&Work<'_>> =
        works.iter().filter(|work| work.sent() >= BYTES_MIN && work.socket.busy_ms > 0.0).collect();
    senders.sort_by(|a, b| b.sent().total_cmp(&a.sent()));
    let shown = senders.into_iter().take(SHOWN_MAX);
    shown
        .map(|work| {
            let Work { socket, .. } = work;
            let owner = facts.owners.whose(socket.more.inode);
            let mbit = work.sent() * 8.0 / 1e6;
            let shares = Shares::of(work);
            let summary = format!(
                "{owner} sends {mbit:.1} Mbit/s to {}; what limits it: {}",
                socket.peer,
                shares.said()
            );
            Finding::new(Severity::Note, socket.peer.clone(), summary)
                .cause(shares.meaning(socket))
                .quote([facts.sockets.text.quote(socket.line)])
                .confidence(Confidence::Medium)
        })
        .collect()
}

/// Part of a window that waits for the program, from which the program limits.
const UNREAD: f64 = 0.5;
/// A receive buffer that is full whatever its program does: smaller than a few long frames.
const BUFFER_SMALL: u64 = 64 << 10;
/// Part of a window in each round trip, from which the window limits.
const FULL: f64 = 0.6;
/// So many times more than it sends is a connection that receives.
const RECEIVES: f64 = 10.0;

/// What limits connections that receive, as far as this end knows.
pub(super) fn of_receivers(facts: &Facts, works: &[Work<'_>]) -> Vec<Finding> {
    let receives =
        |work: &&Work<'_>| work.received() >= BYTES_MIN && work.received() > RECEIVES * work.sent();
    let mut receivers: Vec<&Work<'_>> = works.iter().filter(receives).collect();
    receivers.sort_by(|a, b| b.received().total_cmp(&a.received()));
    let shown = receivers.into_iter().take(SHOWN_MAX);
    shown
        .map(|work| {
            let Work { socket, .. } = work;
            let (who, meaning) = of_receiver(work);
            let summary = format!(
                "{} receives {:.1} Mbit/s from {}; what limits it: {who}",
                facts.owners.whose(socket.more.inode),
                work.received() * 8.0 / 1e6,
                socket.peer
            );
            Finding::new(Severity::Note, socket.peer.clone(), summary)
                .cause(meaning)
                .quote([facts.sockets.text.quote(socket.line)])
                .confidence(Confidence::Medium)
        })
        .collect()
}

fn of_receiver(work: &Work<'_>) -> (&'static str, &'static str) {
    let more = &work.socket.more;
    let is_full = work.is_buffer_full();
    let is_shut = is_full || more.recv_queue > 0 || more.rcv_wnd == 0;
    let window = float(if more.rcv_wnd > 0 { more.rcv_wnd } else { more.rcv_ssthresh });
    let unread = float(more.recv_queue.min(work.before.more.recv_queue));
    let rtt_ms = work.socket.min_rtt_ms.or(work.socket.rtt_ms).unwrap_or(0.0);
    match () {
        () if is_shut && (1..BUFFER_SMALL).contains(&more.rcvbuf) => {
            ("this end's window", BY_OWN_WINDOW)
        }
        () if is_full => ("its program", BY_READER),
        () if window == 0.0 && unread > 0.0 => ("its program", BY_READER),
        () if unread > UNREAD * window => ("its program", BY_READER),
        () if work.received() * rtt_ms / 1e3 >= FULL * window => {
            ("this end's window", BY_OWN_WINDOW)
        }
        () => (
            "the other end or the path",
            "This host's window is open and its program reads everything: check the other end and \
             the path between.",
        ),
    }
}

impl Shares {
    /// From the kernel's times: `busy` is all in which something was on its way or waited for it,
    /// the other two are parts of it.
    pub(super) fn of(work: &Work<'_>) -> Shares {
        let span_ms = work.seconds * 1000.0;
        let grown = |of: fn(&Socket) -> f64| (of(work.socket) - of(work.before)).max(0.0) / span_ms;
        let busy = grown(|one| one.busy_ms).min(1.0);
        let receiver = grown(|one| one.busy_ms * one.rwnd_limited).min(busy);
        let buffer = grown(|one| one.busy_ms * one.sndbuf_limited).min(busy - receiver);
        let rest = busy - receiver - buffer;
        // Whatever travels is all that there is: its program could have given more.
        let is_program = work.socket.more.is_app_limited && work.socket.notsent_bytes == 0;
        match () {
            // It could, but its buffer was full each time.
            () if is_program && work.is_send_buffer_full() => {
                Shares { program: 1.0 - busy, receiver, buffer: buffer + rest, path: 0.0 }
            }
            () if is_program => Shares { program: 1.0 - busy + rest, receiver, buffer, path: 0.0 },
            () => Shares { program: 1.0 - busy, receiver, buffer, path: rest },
        }
    }

    fn ranked(self) -> Vec<(f64, &'static str)> {
        let mut parts = vec![
            (self.program, "its program"),
            (self.receiver, "the other end's window"),
            (self.buffer, "its send buffer"),
            (self.path, "congestion control and the path"),
        ];
        parts.retain(|(part, _)| *part >= PART_MIN);
        parts.sort_by(|a, b| b.0.total_cmp(&a.0));
        parts
    }

    fn said(self) -> String {
        let said = |(part, who): &(f64, &str)| format!("{who} {:.0} %", part * 100.0);
        self.ranked().iter().map(said).collect::<Vec<_>>().join(", ")
    }

    /// What follows from the one that limits the most.
    fn meaning(self, socket: &Socket) -> &'static str {
        let most = self.program.max(self.receiver).max(self.buffer).max(self.path);
        let is_queued =
            socket.rtt_ms.zip(socket.min_rtt_ms).is_some_and(|(rtt, least)| rtt > QUEUED * least);
        match () {
            () if most == self.program => {
                "It sends all that its program gives it. To go faster, find out what the program \
                 waits for: its CPU (D35), a disk, the response to what it sent."
            }
            () if most == self.receiver => {
                "The program at the other end does not read fast enough, or its buffer is too \
                 small for the path: check Recv-Q of ss and D11 there."
            }
            () if most == self.buffer => {
                "Its send buffer holds less than the path can carry: see D11."
            }
            () if is_queued => {
                "A round trip takes much longer than the shortest one: packets wait in a queue, \
                 and the narrowest link of the path is the limit. See D45 and D30."
            }
            () => {
                "As much data is in flight as congestion control allows, and no queue builds up: \
                 losses (D33), one full CPU at either end (D35), or the path."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(before: &Socket, after: &Socket) -> Shares {
        Shares::of(&Work { socket: after, before, seconds: 1.0 })
    }

    fn socket(busy_ms: f64, rwnd_limited: f64, sndbuf_limited: f64) -> Socket {
        Socket { busy_ms, rwnd_limited, sndbuf_limited, ..Socket::default() }
    }

    #[test]
    fn the_time_between_both_samples_is_shared_out() {
        // Of a second: busy for 0.9, of which the receiver had 0.5 and the buffer 0.1.
        let parts = shares(&socket(100.0, 0.0, 0.0), &socket(1000.0, 0.5, 0.1));
        assert_eq!(parts.ranked()[0], (0.5, "the other end's window"));
        assert_eq!(parts.said().matches('%').count(), 4, "{}", parts.said());
        let sum = parts.program + parts.receiver + parts.buffer + parts.path;
        assert!((sum - 1.0).abs() < 1e-9, "{parts:?}");
    }

    #[test]
    fn a_program_that_gives_no_more_is_what_limits() {
        let mut after = socket(1000.0, 0.0, 0.0);
        assert_eq!(
            shares(&socket(0.0, 0.0, 0.0), &after).said(),
            "congestion control and the path 100 %"
        );
        after.more.is_app_limited = true;
        assert_eq!(shares(&socket(0.0, 0.0, 0.0), &after).said(), "its program 100 %");
        // It did at the end, and something waits all the same.
        after.notsent_bytes = 1;
        assert_eq!(shares(&socket(0.0, 0.0, 0.0), &after).path, 1.0);
    }

    #[test]
    fn who_limits_what_is_received_is_seen_from_its_window() {
        let who = |unread, window, bytes_received| {
            let mut after = Socket { min_rtt_ms: Some(10.0), ..Socket::default() };
            after.more.recv_queue = unread;
            after.more.rcv_wnd = window;
            let before = after.clone();
            after.more.bytes_received = bytes_received;
            of_receiver(&Work { socket: &after, before: &before, seconds: 1.0 }).0
        };
        assert_eq!(who(50_000, 65536, 1_000_000), "its program");
        assert_eq!(who(50_000, 0, 1_000_000), "its program", "the window is shut");
        assert_eq!(who(0, 65536, 6_000_000), "this end's window");
        assert_eq!(who(0, 6_553_600, 6_000_000), "the other end or the path");
    }

    #[test]
    fn a_full_receive_buffer_is_its_programs_unless_it_is_tiny() {
        let who = |rcvbuf: u64| {
            let mut after = Socket { min_rtt_ms: Some(0.05), ..Socket::default() };
            // The kernel says that no window is left, or not what it is.
            (after.more.rcv_ssthresh, after.more.recv_queue) = (100_000, 8000);
            (after.more.rcvbuf, after.more.rmem_alloc) = (rcvbuf, rcvbuf - 1000);
            let before = after.clone();
            after.more.bytes_received = 300_000;
            of_receiver(&Work { socket: &after, before: &before, seconds: 1.0 }).0
        };
        assert_eq!(who(131_072), "its program");
        assert_eq!(who(8192), "this end's window");
    }

    #[test]
    fn a_program_whose_send_buffer_is_full_gives_no_more() {
        let mut before = socket(0.0, 0.0, 0.0);
        (before.more.sndbuf, before.more.send_queue) = (4608, 65_536);
        let mut after = socket(1000.0, 0.0, 0.0);
        after.more.is_app_limited = true;
        assert_eq!(shares(&before, &after).said(), "its send buffer 100 %");
    }

    #[test]
    fn counters_that_go_back_are_no_time() {
        let parts = shares(&socket(1000.0, 1.0, 0.0), &socket(10.0, 0.0, 1.0));
        assert!((0.0..=1.0).contains(&parts.program) && parts.receiver == 0.0, "{parts:?}");
    }
}
