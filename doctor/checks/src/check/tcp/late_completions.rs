//! D12: TCP could send but does not, because its earlier packets have not been completed yet.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{Basis, FullCpu, Interfaces, NicRole, Span, TcpBelow, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::{Socket, Sockets};

pub(crate) const CHECK: Check = Check {
    id: "D12",
    slug: "late-completions",
    title: "sending waits for completions",
    group: Group::Tcp,
    sources: &[
        "arm64-latency-report:tx",
        "arm64-latency-report:domain-switch",
        "arm64-latency-report:bounce-buffer",
    ],
    explanation: include_str!("late_completions.txt"),
    absent: "no paravirtual card of a guest",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        nics: Interfaces,
        sockets: Tried<Span<Sockets>>,
        full: Tried<FullCpu>,
        limit: Tried<TcpBelow>,
    }
}

const LIMIT: &str = "net.ipv4.tcp_limit_output_bytes";
/// Its value since Linux 5.0 (c73e5807e4f6); since 6.16 it is four times that (9ea3bfa61b09).
const LIMIT_DEFAULT: u64 = 1_048_576;
/// The kernel's default for TCP: a second shifted by this is about a millisecond.
const PACING_SHIFT: u32 = 10;
/// Part of the congestion window below which it is not what holds a connection.
const WINDOW_MAX: f64 = 0.8;
/// Part of the time in which another window held it (D11), from which that is the reason.
const OTHER_WINDOW: f64 = 0.2;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let is_frontend = |nic: &String| facts.nics.role(nic) == NicRole::Frontend;
    if !facts.nics.names().iter().any(is_frontend) {
        return Ok(());
    }
    let span = facts.sockets.get()?;
    let is_held_twice = |now: &&Socket| {
        let before = span.before.same(now);
        let is_again = before.is_some_and(is_held);
        is_held(now) && (is_again || span.basis == Basis::SinceBoot)
    };
    let held: Vec<&Socket> = span.after.all.iter().filter(is_held_twice).collect();
    let Some(first) = held.first() else {
        let quote = span.after.all.first().map(|socket| span.text.quote(socket.line));
        out.well("no connection waits below TCP", quote);
        return Ok(());
    };
    if let Some((cpu, quote)) = &facts.full.get()?.0 {
        let summary = format!("connections wait below TCP, but CPU {cpu} is full");
        out.well(summary, Some(quote.clone()));
        return Ok(());
    }
    let limit_text = facts.limit.get()?;
    let limit = limit_text.number()?;
    let travelling = first.unacked.saturating_mul(first.mss);
    let rate = first.rtt_ms.map(|rtt| float(travelling) * 8.0 / 1e3 / rtt.max(0.001));
    let rate = rate.map(|rate| format!(", {rate:.0} Mbit/s at its round trip")).unwrap_or_default();
    let summary = format!(
        "{} connections wait although they have more to send and room for it; {} KiB are in \
         flight{rate}",
        held.len(),
        travelling >> 10
    );
    let finding = Finding::new(Severity::Warning, first.peer.clone(), summary)
        .cause(
            "TCP limits how much may wait below it until the backend has responded, and the \
             backend responds late: a guest's packet took 180 us in the Arm64 report, with 10 us \
             for each switch of domains. Waits for fair queueing or pacing look the same.",
        )
        .quote(held.iter().take(QUOTES_MAX).map(|socket| span.text.quote(socket.line)))
        .quote([limit_text.quote(1)])
        .confidence(Confidence::Low);
    let finding = Finding {
        // Once may be chance.
        severity: if span.basis == Basis::Samples { Severity::Warning } else { Severity::Note },
        ..finding
    };
    let binds = held.iter().any(|socket| is_reached(socket, limit));
    out.add([advise(finding, if binds { limit } else { LIMIT_DEFAULT })]);
    Ok(())
}

/// It has something that was never sent, fewer packets travel than congestion control allows, and
/// neither the receiver nor the buffer holds it. BBR paces, so it is always like that.
fn is_held(socket: &Socket) -> bool {
    socket.notsent_bytes > 0
        && socket.unacked > 0
        && float(socket.unacked) < float(socket.cwnd) * WINDOW_MAX
        && socket.rwnd_limited < OTHER_WINDOW
        && socket.sndbuf_limited < OTHER_WINDOW
        && socket.congestion != "bbr"
}

/// Whether a connection may reach the limit: what it sends in about a millisecond is a limit as
/// well, and the lower one counts (`tcp_small_queue_check` in `net/ipv4/tcp_output.c`). Old kernels
/// do not report the rate.
fn is_reached(socket: &Socket, limit: u64) -> bool {
    let rate = socket.more.pacing_rate;
    rate == 0 || rate >> PACING_SHIFT >= limit
}

fn advise(finding: Finding, limit: u64) -> Finding {
    let finding = if limit < LIMIT_DEFAULT {
        let knob = Knob::Sysctl { name: LIMIT.to_owned() };
        finding.advise(Advice::by_change(
            "Let TCP have more below it, as kernels since 5.0 do: this helps against late \
             responses, and adds delay if a queue is long.",
            Change::raise(knob, limit, LIMIT_DEFAULT),
        ))
    } else {
        finding
    };
    finding.advise(Advice::by_hand(
        "On the host: a newer backend, or ringway as backend, which copies and responds at once. \
         A copy in the guest, as that report proposes, would do the same work there. Check that \
         the wait goes away:",
        &["ss -tinHO state established"],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_connection_never_reaches_the_limit() {
        let reaches = |pacing_rate: u64| {
            let mut socket = Socket::default();
            socket.more.pacing_rate = pacing_rate;
            is_reached(&socket, 1 << 20)
        };
        // 1 Gbit/s and 10 Gbit/s, and a kernel that does not report it.
        assert!(!reaches(125_000_000) && reaches(1_250_000_000) && reaches(0));
    }
}
