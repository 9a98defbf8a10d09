//! D11: connections that wait for a window or a buffer instead of the network.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Quote, Text};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Basis, Host, Span, float};
use crate::parse::nic::NicCounters;
use crate::parse::sockets::{Socket, Sockets};

pub(super) const CHECK: Check = Check {
    id: "D11",
    title: "the TCP window is too small for the path",
    group: Group::Tcp,
    rows: &["G40", "G54", "G56", "G57", "G58", "G59", "G60"],
    explanation: include_str!("../../explain/D11.md"),
    look: Some(look),
};

/// Part of its busy time from which a connection is held up.
const HELD_UP: f64 = 0.2;
/// Shorter transfers say nothing of a path.
const BUSY_MS_MIN: f64 = 1000.0;
const WMEM: &str = "net.ipv4.tcp_wmem";
const WMEM_MAX: &str = "net.core.wmem_max";
/// A buffer of twice what travels: the kernel counts its own overhead with it, and reckons so
/// itself (`tcp_sndbuf_expand` in `net/ipv4/tcp_input.c`).
const OVERHEAD: u64 = 2;
/// No buffer is larger: what says that more is needed is wrong.
const BUFFER_MAX: u64 = 1 << 30;

fn look(host: &Host) -> Looked {
    let span: Span<Sockets> = host.connections_span()?;
    let sockets = &span.after;
    let busy = sockets.all.iter().filter(|socket| socket.busy_ms >= BUSY_MS_MIN);
    let (mut by_window, mut by_buffer) = (Vec::new(), Vec::new());
    for socket in busy {
        if socket.rwnd_limited > HELD_UP {
            by_window.push(socket);
        } else if socket.sndbuf_limited > HELD_UP {
            by_buffer.push(socket);
        }
    }
    let mut findings = Vec::new();
    let worse = |a: &&Socket, b: &&Socket| a.busy_ms.total_cmp(&b.busy_ms);
    let speed = Speed::of(host, &span);
    if let Some(socket) = by_window.into_iter().max_by(worse) {
        findings.push(window(&span.text, socket, speed.as_ref()));
    }
    if let Some(socket) = by_buffer.into_iter().max_by(worse) {
        findings.push(buffer(host, &span.text, socket, speed.as_ref()));
    }
    if findings.is_empty() {
        let summary = format!("none of {} connections waits for a window", sockets.all.len());
        findings.push(all_well(summary, None));
    }
    Ok(findings)
}

/// How fast this host can send, as far as anything says so.
struct Speed {
    bits: f64,
    /// Who says so.
    whose: String,
    quote: Quote,
}

impl Speed {
    /// The speed of the fastest link; what was measured if that is more, or if no link says one:
    /// those of vifs and virtio often do not, and software has one that means nothing.
    fn of(host: &Host, sockets: &Span<Sockets>) -> Option<Speed> {
        let all = [Speed::linked(host), Speed::delivered(sockets), Speed::counted(host)];
        all.into_iter().flatten().max_by(|a, b| a.bits.total_cmp(&b.bits))
    }

    fn linked(host: &Host) -> Option<Speed> {
        let speed = |nic: String| {
            let text = host.file(&format!("sys/class/net/{nic}/speed")).ok()?;
            let mbit = text.number().ok().filter(|mbit| *mbit > 0)?;
            Some((mbit, format!("the speed of {nic}"), text.quote(1)))
        };
        let (mbit, whose, quote) = host.nics().into_iter().filter_map(speed).max_by_key(|s| s.0)?;
        Some(Speed { bits: float(mbit) * 1e6, whose, quote })
    }

    /// The best that a connection with another host reached.
    fn delivered(sockets: &Span<Sockets>) -> Option<Speed> {
        let rate = |socket: &Socket| Some((socket.delivery_bits?, socket.line));
        let remote = sockets.after.all.iter().filter(|socket| !socket.is_local());
        let (bits, line) = remote.filter_map(rate).max_by(|a, b| a.0.total_cmp(&b.0))?;
        let whose = "the best delivery rate of a connection".to_owned();
        (bits > 0.0).then(|| Speed { bits, whose, quote: sockets.text.quote(line) })
    }

    /// What the busiest interface moved one way.
    fn counted(host: &Host) -> Option<Speed> {
        let span: Span<NicCounters> = host.span("proc/net/dev").ok()?;
        if span.basis == Basis::SinceBoot {
            return None;
        }
        let rates = span.after.nics.iter().filter(|(nic, _)| nic.as_str() != "lo");
        let rates = rates.filter_map(|(nic, after)| {
            let moved = after.since(&span.past(span.before.nics.get(nic))?);
            Some((moved.tx_bytes.max(moved.rx_bytes), nic, moved.line))
        });
        let (bytes, nic, line) = rates.max()?;
        let bits = float(bytes) * 8.0 / span.seconds;
        let whose = format!("what {nic} moved");
        (bits > 0.0).then(|| Speed { bits, whose, quote: span.text.quote(line) })
    }
}

/// What a path needs, and how that was reckoned.
struct Need {
    bytes: u64,
    how: String,
}

/// Bandwidth times delay (row G58), doubled and rounded.
fn need(socket: &Socket, speed: &Speed) -> Option<Need> {
    // What waits in a queue makes the round trip longer, and the path no wider.
    let rtt = socket.min_rtt_ms.or(socket.rtt_ms).filter(|rtt| *rtt > 0.0)?;
    let bdp = whole(rtt / 1e3 * speed.bits / 8.0)?.max(1);
    let bytes = bdp.saturating_mul(OVERHEAD).min(BUFFER_MAX).next_power_of_two();
    let how = format!(
        "{rtt} ms times {:.0} Mbit/s ({}) are {bdp} bytes; twice that, since the kernel counts its \
         overhead with it, and rounded up to a power of two, as row G58 does: {bytes}.",
        speed.bits / 1e6,
        speed.whose
    );
    Some(Need { bytes, how })
}

/// The other end's window.
fn window(text: &Text, socket: &Socket, speed: Option<&Speed>) -> Finding {
    let summary = format!(
        "the connection to {} waits {:.0} % of its time for the receiver's window",
        socket.peer,
        socket.rwnd_limited * 100.0
    );
    let need = speed.and_then(|speed| need(socket, speed));
    let how = need.as_ref().map(|need| format!(" {}", need.how)).unwrap_or_default();
    let command = need.map_or_else(
        || "sysctl net.ipv4.tcp_rmem net.core.rmem_max".to_owned(),
        |need| format!("sysctl -w net.ipv4.tcp_rmem='4096 131072 {}'", need.bytes),
    );
    Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .cause("A window carries one round trip; what is on its way is less than the path takes.")
        .quote([text.quote(socket.line)])
        .quote(speed.map(|speed| speed.quote.clone()))
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            format!(
                "At the other end, if what it has is less: a larger third number of \
                 net.ipv4.tcp_rmem, and no small SO_RCVBUF in the application, which \
                 net.core.rmem_max limits; or the application there reads too slowly.{how}"
            ),
            &[&command],
        ))
}

/// Our own buffer.
fn buffer(host: &Host, text: &Text, socket: &Socket, speed: Option<&Speed>) -> Finding {
    let summary = format!(
        "the connection to {} waits {:.0} % of its time for its send buffer",
        socket.peer,
        socket.sndbuf_limited * 100.0
    );
    let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .cause("The buffer holds less than a round trip's worth of what the path takes.")
        .quote([text.quote(socket.line)])
        .quote(speed.map(|speed| speed.quote.clone()))
        .confidence(Confidence::Medium);
    let setting = host.file("proc/sys/net/ipv4/tcp_wmem").ok();
    let current =
        setting.as_ref().map(|text| text.value().split_whitespace().collect::<Vec<_>>().join(" "));
    let finding = finding.quote(setting.map(|text| text.quote(1)));
    let need = speed.and_then(|speed| need(socket, speed));
    let Some(need) = need else {
        return finding.advise(Advice::by_hand(
            "No link says its speed and nothing was measured, so what it needs cannot be told.",
            &["sysctl net.ipv4.tcp_wmem net.core.wmem_max"],
        ));
    };
    if let Some(change) = current.and_then(|current| larger(&current, need.bytes)) {
        let text = format!(
            "Let the buffer grow to what this path takes. {} Where the speed was measured, the \
             small buffer held it down: look again afterwards.",
            need.how
        );
        return finding.advise(Advice::by_change(text, vec![change]));
    }
    let limit = host.file("proc/sys/net/core/wmem_max").ok();
    let allowed = limit.as_ref().and_then(|text| text.number().ok());
    let text = "The limit of buffers that grow is large enough, so the application sets SO_SNDBUF: \
                best that it does not.";
    match allowed.filter(|allowed| *allowed < need.bytes) {
        Some(allowed) => {
            let knob = Knob::Sysctl { name: WMEM_MAX.to_owned() };
            let change = Change::new(knob, Some(allowed.to_string()), need.bytes);
            let text = format!("{text} Or let it have what it asks for. {}", need.how);
            let quote = limit.map(|text| text.quote(1));
            finding.quote(quote).advise(Advice::by_change(text, vec![change]))
        }
        None => finding.advise(Advice::by_hand(text, &["sysctl net.ipv4.tcp_wmem"])),
    }
}

/// `tcp_wmem` with room for so many bytes; none if it has that already.
fn larger(current: &str, need: u64) -> Option<Change> {
    let numbers: Option<Vec<u64>> = current.split(' ').map(|word| word.parse().ok()).collect();
    let [min, default, max] = numbers?.try_into().ok()?;
    (need > max).then(|| {
        let knob = Knob::Sysctl { name: WMEM.to_owned() };
        Change::new(knob, Some(current.to_owned()), format!("{min} {default} {need}"))
    })
}

/// A positive number without its fraction.
fn whole(number: f64) -> Option<u64> {
    format!("{:.0}", number.max(0.0)).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(mbit: f64) -> Speed {
        let quote = Quote { file: String::new(), line: None, text: String::new() };
        Speed { bits: mbit * 1e6, whose: "a test".to_owned(), quote }
    }

    fn socket(rtt_ms: f64, min_rtt_ms: Option<f64>) -> Socket {
        Socket { rtt_ms: Some(rtt_ms), min_rtt_ms, ..Socket::default() }
    }

    #[test]
    fn a_buffer_grows_only_if_it_is_too_small() {
        assert_eq!(larger("4096 16384 4194304", 100), None);
        let change = larger("4096 16384 4194304", 268_435_456).expect("too small");
        assert_eq!(change.command(), "sysctl -w net.ipv4.tcp_wmem='4096 16384 268435456'");
        assert_eq!(larger("4096 16384", 125), None);
    }

    #[test]
    fn what_a_path_needs_follows_from_what_was_measured() {
        let bytes = |socket, mbit| need(&socket, &speed(mbit)).map(|need| need.bytes);
        // The guide's path: 125000000 bytes, of which twice are kept.
        assert_eq!(bytes(socket(100.0, None), 10_000.0), Some(1 << 28));
        assert_eq!(bytes(socket(0.1, None), 10_000.0), Some(1 << 18));
        // A round trip of which nine tenths are waiting.
        assert_eq!(bytes(socket(100.0, Some(10.0)), 10_000.0), Some(1 << 25));
        assert_eq!(bytes(socket(0.0, None), 10_000.0), None);
        assert_eq!(bytes(socket(1e6, None), 1e5), Some(BUFFER_MAX));
        let how = need(&socket(100.0, None), &speed(10_000.0)).expect("known").how;
        assert!(how.starts_with("100 ms times 10000 Mbit/s (a test) are 125000000 bytes"), "{how}");
    }
}
