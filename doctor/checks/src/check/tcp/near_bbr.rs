//! D26: BBR on paths whose round trip is below what it can measure.

use crate::check::{Check, Group, Judged, Verdicts, rule, use_cubic};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    Basis, CongestionControls, Connections, Span, TcpCongestion, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::cpu::CpuTimes;
use ringway_evidence::parse::programs::Busiest;
use ringway_evidence::parse::sockets::Socket;

pub(crate) const CHECK: Check = Check {
    id: "D26",
    slug: "near-bbr",
    title: "BBR is used between guests of one host",
    group: Group::Tcp,
    sources: &["throughput-guide:domain-0-settings"],
    explanation: include_str!("near_bbr.txt"),
    absent: "no connection to judge by",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        congestion: TcpCongestion,
        connections: Connections,
        controls: CongestionControls,
        times: Tried<Span<CpuTimes>>,
        busiest: Tried<Span<Busiest>>,
    }
}

/// Shortest round trips below this are those of a host or a rack. Smoothed ones have the queue in
/// them, which load makes long, however near the other end is.
const RTT_MS: f64 = 1.0;
/// Part of the time in which another window held it (D11), from which that is the reason.
const OTHER_WINDOW: f64 = 0.2;
/// Part of its program's limit that it reaches.
const OF_LIMIT: f64 = 0.75;
/// Milliseconds above the shortest round trip, and multiple of it, from which packets wait in a
/// queue. BBR that sends too little leaves queues empty.
const QUEUED_MS: f64 = 5.0;
const QUEUED_TIMES: f64 = 4.0;
/// Part of its time from which a CPU, or a thread, may be what limits a connection.
const BUSY: f64 = 0.8;
/// Ticks per second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Connections that a finding quotes.
const QUOTES_MAX: usize = 3;

/// The check that tells what else holds a connection down: that it gets no acknowledgement, or
/// that its program lets it send no faster than it does.
fn other_reason(socket: &Socket) -> Option<&'static str> {
    let reaches = |limit: u64| {
        socket.delivery_bits.is_none_or(|bits| bits >= OF_LIMIT * float(limit.saturating_mul(8)))
    };
    match socket.program_limit() {
        _ if socket.gets_no_acknowledgement() => Some("D44"),
        Some(limit) if reaches(limit) => Some("D46"),
        _ => None,
    }
}

fn is_queued(socket: &Socket) -> bool {
    let trips = socket.rtt_ms.zip(socket.min_rtt_ms);
    trips.is_some_and(|(now, least)| now - least >= QUEUED_MS && now >= QUEUED_TIMES * least)
}

/// Whether a CPU or a thread had little time left: then that may be what limits a stream within
/// this host. A thread that moves between CPUs fills none of them.
fn has_full_cpu(facts: &Facts) -> bool {
    let is_full = facts.times.ok().is_some_and(|span| {
        span.after.cpus.iter().any(|(cpu, after)| {
            span.past(span.before.cpus.get(cpu)).is_some_and(|before| {
                let spent = after.since(&before);
                spent.total > 0 && 1.0 - share(spent.idle, spent.total) >= BUSY
            })
        })
    });
    is_full || facts.busiest.ok().is_some_and(has_busy_thread)
}

fn has_busy_thread(span: &Span<Busiest>) -> bool {
    span.basis == Basis::Samples
        && span.after.threads.iter().any(|(id, after)| {
            let before = span.before.threads.get(id).map_or(0, |one| one.thread.ticks);
            let ticks = float(after.thread.ticks.saturating_sub(before));
            ticks / TICKS_PER_SECOND / span.seconds >= BUSY
        })
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let setting = &facts.congestion;
    let setting_name = "net.ipv4.tcp_congestion_control";
    let Connections { sockets, text } = &facts.connections;
    // What stays on this host passes no guest.
    let is_near = |socket: &&Socket| {
        let trip = socket.min_rtt_ms.or(socket.rtt_ms);
        !socket.is_local() && trip.is_some_and(|trip| trip < RTT_MS)
    };
    let guilty: Vec<&Socket> =
        sockets.all.iter().filter(|socket| socket.congestion == "bbr").filter(is_near).collect();
    if guilty.is_empty() {
        if setting.value().is_empty() {
            return Err(setting.unreadable(Some(1), "expected the name of an algorithm"));
        }
        if sockets.all.is_empty() && setting.value() == "bbr" {
            return Ok(());
        }
        out.well("no connection on this host uses BBR", Some(setting.quote(1)));
        return Ok(());
    }
    let summary = format!(
        "{} connections whose shortest round trip is below {RTT_MS} ms use BBR",
        guilty.len()
    );
    // What is sent at once is not held back by how it is sent.
    let is_held = |socket: &&&Socket| {
        socket.notsent_bytes > 0
            && socket.rwnd_limited < OTHER_WINDOW
            && socket.sndbuf_limited < OTHER_WINDOW
    };
    let held: Vec<&&Socket> = guilty.iter().filter(is_held).collect();
    let reasons: Vec<&'static str> =
        held.iter().filter_map(|socket| other_reason(socket)).collect();
    let quotes = guilty.iter().take(QUOTES_MAX).map(|socket| text.quote(socket.line));
    if held.len() == reasons.len() {
        let finding = Finding::new(Severity::Note, setting_name, summary).quote(quotes);
        out.add([match reasons.first() {
            Some(check) => finding.cause(limited_by_another(check)).follows(*check),
            None => finding.cause(
                "None of them has unsent data that only congestion control holds back, so BBR \
                 costs nothing now.",
            ),
        }]);
        return Ok(());
    }
    let (severity, cause) = verdict(facts, &held);
    let held = held.len() - reasons.len();
    let summary = format!("{summary}; {held} of them wait with more to send");
    let finding = Finding::new(severity, setting_name, summary)
        .cause(cause)
        .quote(quotes)
        .confidence(Confidence::Medium);
    out.add([finding.advise(advice(facts))]);
    Ok(())
}

/// How much it costs, and why.
fn verdict(facts: &Facts, held: &[&&Socket]) -> (Severity, &'static str) {
    match held.iter().all(|socket| is_queued(socket)) {
        true => (
            Severity::Note,
            "Their packets wait in a queue, here or on the path, so something slower than BBR \
             limits them. doctor try D26 measures whether BBR does as well.",
        ),
        false if has_full_cpu(facts) => (
            Severity::Note,
            "A CPU or a thread is nearly full, which may be what limits them. Whether BBR does as \
             well is not known; doctor try D26 measures it.",
        ),
        false => (
            Severity::Warning,
            "BBR paces by the rate and delay that it measures; within a host both are those of a \
             queue in memory, and BBR sends less than cubic would.",
        ),
    }
}

fn advice(facts: &Facts) -> Advice {
    if facts.congestion.value() == "bbr" {
        let text =
            "Use cubic by default, and BBR for distant ends: ip route change ... congctl bbr.";
        use_cubic(&facts.controls, "bbr", text)
    } else {
        Advice::by_hand(
            "The application or the route chose it: check its configuration.",
            &["ip route"],
        )
    }
}

/// The cause if another check found what limits the connections.
pub(crate) fn limited_by_another(check: &str) -> String {
    format!("Something else limits those that have more to send: see {check}.")
}
