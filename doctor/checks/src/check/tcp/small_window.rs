//! D11: connections that wait for a window or a buffer instead of the network.

#[path = "small_window/receiving.rs"]
mod receiving;
#[path = "small_window/unscaled.rs"]
mod unscaled;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Basis, BufferSettings, CpuWaits, Interfaces, NicRole, SendBufferMax, SocketOwners, Span,
    Speeds, TcpReceiveBuffers, TcpReceiveGrowth, TcpSendBuffers, TcpWindowScaling, Tried, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::sockets::{Socket, Sockets};
use ringway_evidence::{Quote, Text};

pub(crate) const CHECK: Check = Check {
    id: "D11",
    slug: "small-window",
    title: "the TCP window is too small for the path",
    group: Group::Tcp,
    sources: &[
        "throughput-guide:tcp-defaults",
        "throughput-guide:domain-0-buffers",
        "throughput-guide:old-guest-settings",
        "throughput-guide:domain-0-tcp",
        "throughput-guide:bdp",
        "throughput-guide:buffers-max",
        "throughput-guide:tcp-buffers",
    ],
    explanation: include_str!("small_window.txt"),
    absent: "no connection",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sockets: Span<Sockets>,
        moved: Tried<Span<NicCounters>>,
        nics: Interfaces,
        speeds: Speeds,
        buffers: Tried<TcpSendBuffers>,
        buffer_max: Tried<SendBufferMax>,
        settings: BufferSettings,
        receive_buffers: Tried<TcpReceiveBuffers>,
        growth: Tried<TcpReceiveGrowth>,
        scaling: Tried<TcpWindowScaling>,
        waits: CpuWaits,
        owners: SocketOwners,
    }
}

const WINDOW_CAUSE: &str = "A connection carries one window in each round trip, and this window \
                            is smaller than what the path can hold.";

const STARVED_CAUSE: &str = "All CPUs of this machine are busy, and packets and programs wait for \
                             them (D35): cannot tell whether the window is too small.";

/// Fraction of its busy time from which a connection is limited.
const HELD_UP: f64 = 0.2;
/// Shorter transfers say nothing about a path.
const BUSY_MS_MIN: f64 = 1000.0;
const WMEM: &str = "net.ipv4.tcp_wmem";
const WMEM_MAX: &str = "net.core.wmem_max";
/// A buffer must hold twice the data in flight: the kernel counts its own overhead, and computes
/// the same way (`tcp_sndbuf_expand` in `net/ipv4/tcp_input.c`).
const OVERHEAD: u64 = 2;
/// How much more than the measured rate a path may carry if a buffer or a window limited it.
const HELD_DOWN: u64 = 4;
/// The largest buffer: a result above it is wrong. It is the guide's, doubled:
/// `throughput-guide:bdp`.
const BUFFER_MAX: u64 = 1 << 28;
/// The window of every receiver, even an old and untuned one: TCP without scaling.
const WINDOW_ALWAYS: u64 = 64 << 10;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.sockets;
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
    let worse = |a: &&Socket, b: &&Socket| a.busy_ms.total_cmp(&b.busy_ms);
    let speed = Speed::of(facts);
    if let Some(socket) = by_window.into_iter().max_by(worse) {
        out.add([window(facts, socket, speed.as_ref())]);
    }
    if let Some(socket) = by_buffer.into_iter().max_by(worse) {
        out.add([buffer(facts, &span.text, socket, speed.as_ref())]);
    }
    out.add(receiving::held_down(facts));
    out.well(format!("none of {} connections waits for a window", sockets.all.len()), None);
    Ok(())
}

/// How fast this host can send, if known.
struct Speed {
    bits: f64,
    basis: SpeedBasis,
    /// The origin of the speed.
    whose: String,
    quote: Quote,
}

/// Where a speed is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpeedBasis {
    /// A card reports it for its wire.
    Wire,
    /// It was measured, and may have been limited.
    Measured,
}

impl Speed {
    /// The speed of the fastest card, or the measured speed if that is more or there is no card:
    /// the speeds that veth, TAP devices, vifs and virtio report are meaningless.
    fn of(facts: &Facts) -> Option<Speed> {
        let all = [Speed::linked(facts), Speed::delivered(&facts.sockets), Speed::counted(facts)];
        all.into_iter().flatten().max_by(|a, b| a.bits.total_cmp(&b.bits))
    }

    fn linked(facts: &Facts) -> Option<Speed> {
        let speed = |nic: String| {
            let text = facts.speeds.of(&nic).ok()?;
            let mbit = text.number().ok().filter(|mbit| *mbit > 0)?;
            Some((mbit, format!("the speed of {nic}"), text.quote(1)))
        };
        let is_card = |nic: &String| facts.nics.role(nic) == NicRole::Physical;
        let cards = facts.nics.names().into_iter().filter(is_card);
        let (mbit, whose, quote) = cards.filter_map(speed).max_by_key(|speed| speed.0)?;
        Some(Speed { bits: float(mbit) * 1e6, basis: SpeedBasis::Wire, whose, quote })
    }

    /// The best that a connection with another host reached.
    fn delivered(sockets: &Span<Sockets>) -> Option<Speed> {
        let rate = |socket: &Socket| Some((socket.delivery_bits?, socket.line));
        let remote = sockets.after.all.iter().filter(|socket| !socket.is_local());
        let (bits, line) = remote.filter_map(rate).max_by(|a, b| a.0.total_cmp(&b.0))?;
        let whose = "the best delivery rate of a connection".to_owned();
        let quote = sockets.text.quote(line);
        (bits > 0.0).then_some(Speed { bits, basis: SpeedBasis::Measured, whose, quote })
    }

    /// What the busiest interface moved one way.
    fn counted(facts: &Facts) -> Option<Speed> {
        let span = facts.moved.ok()?;
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
        let quote = span.text.quote(line);
        (bits > 0.0).then_some(Speed { bits, basis: SpeedBasis::Measured, whose, quote })
    }
}

/// The buffer that a path needs, and how it was computed.
struct Need {
    bytes: u64,
    how: String,
}

impl Need {
    /// Allows for more, if it was computed from a speed that what is too small limited itself.
    fn or_more(self, speed: &Speed) -> Need {
        if speed.basis == SpeedBasis::Wire {
            return self;
        }
        let bytes = self.bytes.saturating_mul(HELD_DOWN).min(BUFFER_MAX);
        let how = format!(
            "{} What is too small limited that speed, so {HELD_DOWN} times as much: {bytes}.",
            self.how
        );
        Need { bytes, how }
    }
}

/// Bandwidth times delay (`throughput-guide:bdp`), doubled and rounded.
fn need(socket: &Socket, speed: &Speed) -> Option<Need> {
    // Queueing makes the round trip longer but does not increase the path's capacity.
    let rtt = socket.min_rtt_ms.or(socket.rtt_ms).filter(|rtt| *rtt > 0.0)?;
    let bdp = whole(rtt / 1e3 * speed.bits / 8.0)?.max(1);
    let bytes = bdp.saturating_mul(OVERHEAD).min(BUFFER_MAX).next_power_of_two();
    let how = format!(
        "{rtt} ms times {:.0} Mbit/s ({}) are {bdp} bytes; twice that, because the kernel \
         includes its overhead, and rounded up to a power of two, as in the throughput guide: \
         {bytes}.",
        speed.bits / 1e6,
        speed.whose
    );
    Some(Need { bytes, how })
}

/// The other end's window. Its settings are not visible from here, so nothing can be set here, and
/// any value might be less than what it has.
fn window(facts: &Facts, socket: &Socket, speed: Option<&Speed>) -> Finding {
    let summary = format!(
        "the connection to {} waits {:.0} % of its time for the receiver's window",
        socket.peer,
        socket.rwnd_limited * 100.0
    );
    let summary = match socket.more.snd_wnd {
        0 => summary,
        offered => format!("{summary}, which is {} KiB", offered.div_ceil(1 << 10)),
    };
    let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .quote([facts.sockets.text.quote(socket.line)])
        .confidence(Confidence::Medium);
    if unscaled::is_what_limits(socket, socket.more.snd_wnd) {
        return unscaled::explain(facts, finding);
    }
    if facts.waits.are_all_full {
        // The reader may be on this machine, also in another network namespace.
        return Finding { severity: Severity::Note, ..finding }.cause(STARVED_CAUSE);
    }
    receiver_window(socket, speed, finding.quote(speed.map(|speed| speed.quote.clone())))
}

fn receiver_window(socket: &Socket, speed: Option<&Speed>, finding: Finding) -> Finding {
    let slow = "The application there reads too slowly, or set a small SO_RCVBUF: check whether \
                its CPU is full.";
    let need = speed.and_then(|speed| Some(need(socket, speed)?.or_more(speed)));
    let Some(need) = need else {
        return finding.cause(WINDOW_CAUSE).advise(Advice::by_hand(
            format!(
                "{slow} Or the path needs a larger window: at that end raise the third number of \
                 net.ipv4.tcp_rmem, and net.core.rmem_max for programs that ask for a size; never \
                 lower them."
            ),
            &[],
        ));
    };
    if need.bytes <= WINDOW_ALWAYS {
        let cause =
            format!("The path itself needs no more than any receiver has: {need}", need = need.how);
        return finding.cause(cause).advise(Advice::by_hand(slow, &[]));
    }
    finding.cause(WINDOW_CAUSE).advise(Advice::by_hand(
        format!(
            "At the other end, if the third number of net.ipv4.tcp_rmem there is below {bytes}: \
             set it to that. Otherwise: {slow} {need}",
            bytes = need.bytes,
            need = need.how
        ),
        &[],
    ))
}

/// Our own buffer.
fn buffer(facts: &Facts, text: &Text, socket: &Socket, speed: Option<&Speed>) -> Finding {
    let summary = format!(
        "the connection to {} waits {:.0} % of its time for its send buffer",
        socket.peer,
        socket.sndbuf_limited * 100.0
    );
    let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .cause("The buffer holds less than the path can carry in one round trip.")
        .quote([text.quote(socket.line)])
        .quote(speed.map(|speed| speed.quote.clone()))
        .confidence(Confidence::High);
    let setting = facts.buffers.ok();
    let current = setting.map(|text| text.value().split_whitespace().collect::<Vec<_>>().join(" "));
    let finding = finding.quote(setting.map(|text| text.quote(1)));
    let show = facts.settings.command(&["net.ipv4.tcp_wmem", "net.core.wmem_max"]);
    let show: Vec<&str> = show.iter().map(String::as_str).collect();
    let need = speed.and_then(|speed| Some(need(socket, speed)?.or_more(speed)));
    let Some(need) = need else {
        return finding.advise(Advice::by_hand(
            "No card reports its speed and nothing was measured, so the size that it needs is \
             unknown.",
            &show,
        ));
    };
    if let Some(change) = current.and_then(|current| larger(&current, need.bytes)) {
        let text = format!(
            "Let the buffer grow to what this path needs. {need} Check again afterwards.",
            need = need.how
        );
        return finding.advise(Advice::by_change(text, [change]));
    }
    let limit = facts.buffer_max.ok();
    let allowed = limit.and_then(|text| text.number().ok());
    let text = "The limit for automatic growth is large enough, so the application sets \
                SO_SNDBUF: it is best not to set it.";
    let knob = Knob::Sysctl { name: WMEM_MAX.to_owned() };
    match allowed.and_then(|allowed| Change::raise(knob, allowed, need.bytes)) {
        Some(change) => {
            let text =
                format!("{text} Or allow the size that it asks for. {need}", need = need.how);
            let quote = limit.map(|text| text.quote(1));
            finding.quote(quote).advise(Advice::by_change(text, [change]))
        }
        None => finding.advise(Advice::by_hand(text, &show)),
    }
}

/// `tcp_wmem` with room for this many bytes; `None` if it already has it.
fn larger(current: &str, need: u64) -> Option<Change> {
    let numbers: Option<Vec<u64>> = current.split(' ').map(|word| word.parse().ok()).collect();
    let [min, default, _] = numbers?.try_into().ok()?;
    let knob = Knob::Sysctl { name: WMEM.to_owned() };
    Change::raise(knob, current, format!("{min} {default} {need}"))
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
        Speed { bits: mbit * 1e6, basis: SpeedBasis::Wire, whose: "a test".to_owned(), quote }
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
        // The guide's path: 125000000 bytes, doubled.
        assert_eq!(bytes(socket(100.0, None), 10_000.0), Some(1 << 28));
        assert_eq!(bytes(socket(0.1, None), 10_000.0), Some(1 << 18));
        // A round trip of which nine tenths are queueing.
        assert_eq!(bytes(socket(100.0, Some(10.0)), 10_000.0), Some(1 << 25));
        assert_eq!(bytes(socket(0.0, None), 10_000.0), None);
        assert_eq!(bytes(socket(1e6, None), 1e5), Some(BUFFER_MAX));
        let how = need(&socket(100.0, None), &speed(10_000.0)).expect("known").how;
        assert!(how.starts_with("100 ms times 10000 Mbit/s (a test) are 125000000 bytes"), "{how}");
    }

    fn of_receiver(socket: &Socket, speed: &Speed) -> Finding {
        receiver_window(socket, Some(speed), Finding::new(Severity::Warning, "peer", "it waits"))
    }

    #[test]
    fn a_slow_reader_is_no_window_to_be_set() {
        let slow = Socket { rwnd_limited: 0.9, ..socket(0.005, Some(0.005)) };
        let found = of_receiver(&slow, &speed(10_000.0));
        assert!(found.cause.contains("no more than any receiver has"), "{found:?}");
        assert!(found.advice.iter().all(|one| one.commands.is_empty()), "{found:?}");
        // A long path may need more there, and its settings are not visible from here.
        let far = Socket { rwnd_limited: 0.9, ..socket(100.0, None) };
        let found = of_receiver(&far, &speed(10_000.0));
        assert!(found.advice[0].text.contains("is below 268435456"), "{found:?}");
        assert!(found.advice.iter().all(|one| one.commands.is_empty()), "{found:?}");
        // 24 Mbit/s are what a window of 64 KiB lets through in 20 ms: the path may carry more.
        let held = Socket { rwnd_limited: 0.9, ..socket(20.0, None) };
        let measured = Speed { basis: SpeedBasis::Measured, ..speed(12.0) };
        let found = of_receiver(&held, &measured);
        assert!(found.advice[0].text.contains("is below 262144"), "{found:?}");
    }

    #[test]
    fn a_speed_that_was_measured_was_held_down() {
        let need = || need(&socket(20.0, None), &speed(26.0)).expect("known");
        let measured = Speed { basis: SpeedBasis::Measured, ..speed(26.0) };
        assert_eq!(need().or_more(&speed(26.0)).bytes, 1 << 17);
        assert_eq!(need().or_more(&measured).bytes, 1 << 19);
    }
}
