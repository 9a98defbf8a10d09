//! A connection whose receive window, at this end, is what limits it.

use super::{BUFFER_MAX, Facts, HELD_DOWN, OVERHEAD, unscaled, whole};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{Basis, float};
use ringway_evidence::parse::sockets::Socket;

/// Fraction of a window in each round trip from which the window is what limits.
const FULL: f64 = 0.6;
/// Shorter round trips need no large window, and their estimate is coarse.
const RTT_MS_MIN: f64 = 1.0;
/// Bytes per second below which nothing is to be gained.
const BYTES_MIN: f64 = 50_000.0;
/// Fraction of the window that may wait for the program: more, and the program is what limits.
const UNREAD: f64 = 0.5;
/// The kernel gives a window at least a quarter of the buffer, also for short segments.
const BUFFER_PER_WINDOW: u64 = 4;
/// What `tcp_rmem` has by default: `tcp_init` in `net/ipv4/tcp.c`.
const USUAL: u64 = 6 << 20;
const RMEM: &str = "net.ipv4.tcp_rmem";
const GROWTH: &str = "net.ipv4.tcp_moderate_rcvbuf";

/// A connection that receives a window in each round trip.
struct Held<'a> {
    socket: &'a Socket,
    window: u64,
    rtt_ms: f64,
    rate: f64,
}

/// The finding about the connection that receives the most of those that their window limits.
pub(super) fn held_down(facts: &Facts) -> Option<Finding> {
    let span = &facts.sockets;
    if span.basis == Basis::SinceBoot {
        return None;
    }
    let held = span.after.all.iter().filter_map(|socket| {
        let before = span.before.same(socket)?;
        held(socket, before, span.seconds)
    });
    let most = held.max_by(|a, b| a.rate.total_cmp(&b.rate))?;
    most.finding(facts)
}

fn held<'a>(socket: &'a Socket, before: &Socket, seconds: f64) -> Option<Held<'a>> {
    let more = &socket.more;
    let received = more.bytes_received.saturating_sub(before.more.bytes_received);
    let rate = float(received) / seconds;
    // Older kernels do not say what they offer, but what they would at most.
    let window = [more.rcv_wnd, more.rcv_ssthresh].into_iter().find(|window| *window > 0)?;
    let rtt_ms = socket.min_rtt_ms.or(socket.rtt_ms).filter(|rtt| *rtt >= RTT_MS_MIN)?;
    let is_full = rate * rtt_ms / 1e3 >= FULL * float(window);
    // It is as large as it was: a window that still grows will be large enough.
    let stays = window <= with_margin(before.more.rcv_wnd.max(before.more.rcv_ssthresh));
    let is_read = float(more.recv_queue) <= UNREAD * float(window);
    (rate >= BYTES_MIN && is_full && stays && is_read && !socket.is_local()).then_some(Held {
        socket,
        window,
        rtt_ms,
        rate,
    })
}

/// A little more than a window: one that stays varies by segments.
fn with_margin(window: u64) -> u64 {
    window.saturating_add(window / 4)
}

impl Held<'_> {
    fn finding(&self, facts: &Facts) -> Option<Finding> {
        let Held { socket, window, rtt_ms, rate } = self;
        let setting = facts.receive_buffers.ok();
        let current =
            setting.map(|text| text.value().split_whitespace().collect::<Vec<_>>().join(" "));
        let most: Option<u64> =
            current.as_ref().and_then(|all| all.split(' ').nth(2)?.parse().ok());
        let buffer = socket.more.rcvbuf;
        let is_at_most = match (most, buffer) {
            (Some(most), 0) => window.saturating_mul(BUFFER_PER_WINDOW) >= most,
            (Some(most), buffer) => buffer >= most,
            (None, _) => return None,
        };
        let owner = facts.owners.whose(socket.more.inode);
        let summary = format!(
            "{owner} receives {:.1} Mbit/s from {}, as much as this end's window of {} KiB lets \
             come in a round trip of {rtt_ms:.1} ms",
            rate * 8.0 / 1e6,
            socket.peer,
            window.div_ceil(1 << 10)
        );
        let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
            .quote([facts.sockets.text.quote(socket.line)])
            .confidence(Confidence::Medium);
        if unscaled::is_what_limits(socket, *window) {
            return Some(unscaled::explain(facts, finding));
        }
        let finding = finding
            .cause(
                "A connection carries one window in each round trip, the program on this host \
                 reads everything, and the window does not grow.",
            )
            .quote(setting.map(|text| text.quote(1)));
        if !is_at_most {
            return Some(Self::below_limit(facts, buffer, finding));
        }
        let bdp = whole(rate * rtt_ms / 1e3).unwrap_or(0);
        let need =
            [OVERHEAD, HELD_DOWN].iter().fold(bdp, |bytes, times| bytes.saturating_mul(*times));
        let need = need.max(most.unwrap_or(0).saturating_mul(HELD_DOWN)).min(BUFFER_MAX);
        let need = need.next_power_of_two().max(USUAL);
        let change = larger(&current?, need)?;
        Some(finding.advise(Advice::by_change(
            format!(
                "Its buffer is as large as the third number of net.ipv4.tcp_rmem allows: set that \
                 to {need}. Existing connections grow as well, unless their program chose a size. \
                 Check again afterwards."
            ),
            [change],
        )))
    }

    /// The buffer is smaller than the host allows: it may not grow, or the program chose its size.
    fn below_limit(facts: &Facts, buffer: u64, finding: Finding) -> Finding {
        let growth = facts.growth.ok().filter(|text| text.number() == Ok(0));
        if let Some(text) = growth {
            let change = Change::raise(Knob::Sysctl { name: GROWTH.to_owned() }, 0, 1);
            return finding.quote([text.quote(1)]).advise(Advice::by_change(
                "Let receive buffers grow automatically, up to the third number of \
                 net.ipv4.tcp_rmem.",
                change,
            ));
        }
        finding.advise(Advice::by_hand(
            format!(
                "Its buffer has {buffer} bytes, less than net.ipv4.tcp_rmem allows, and does not \
                 grow: the program asked for a size (SO_RCVBUF). It is best not to set it; \
                 otherwise set a larger one, of which net.core.rmem_max is the maximum."
            ),
            &["ss -tinm state established"],
        ))
    }
}

/// `tcp_rmem` with room for this many bytes; `None` if it already has it.
fn larger(current: &str, need: u64) -> Option<Change> {
    let numbers: Option<Vec<u64>> = current.split(' ').map(|word| word.parse().ok()).collect();
    let [min, default, _] = numbers?.try_into().ok()?;
    let knob = Knob::Sysctl { name: RMEM.to_owned() };
    Change::raise(knob, current, format!("{min} {default} {need}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::parse::sockets::More;

    fn receiver(bytes_received: u64, rcv_wnd: u64, rtt_ms: f64, recv_queue: u64) -> Socket {
        let more = More { bytes_received, rcv_wnd, recv_queue, ..More::default() };
        Socket {
            peer: "192.0.2.9:80".to_owned(),
            min_rtt_ms: Some(rtt_ms),
            more,
            ..Socket::default()
        }
    }

    fn is_held(after: &Socket, window_before: u64) -> bool {
        held(after, &receiver(0, window_before, 20.0, 0), 1.0).is_some()
    }

    #[test]
    fn a_window_in_each_round_trip_is_what_limits() {
        // 64 KiB each 20 ms.
        assert!(is_held(&receiver(3_000_000, 65536, 20.0, 0), 65536));
        assert!(!is_held(&receiver(1_000_000, 65536, 20.0, 0), 65536), "a third of it");
        assert!(!is_held(&receiver(3_000_000, 65536, 20.0, 60_000), 65536), "no one reads");
        assert!(!is_held(&receiver(3_000_000, 65536, 20.0, 0), 32768), "it grows");
        assert!(!is_held(&receiver(1_000_000_000, 65536, 0.05, 0), 65536), "a short way");
    }

    #[test]
    fn a_buffer_only_grows() {
        assert_eq!(larger("4096 131072 6291456", 100), None);
        let change = larger("4096 16384 65536", 1 << 20).expect("too small");
        assert_eq!(change.command(), "sysctl -w net.ipv4.tcp_rmem='4096 16384 1048576'");
    }
}
