//! D10: fewer connections with data to send than queues for them.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    Basis, Channels, FullCpu, Interfaces, NicRole, Span, Speeds, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::ethtool::Settings;
use ringway_evidence::parse::nic::{Moved, NicCounters};
use ringway_evidence::parse::sockets::{Socket, Sockets};
use ringway_evidence::{Gap, Quote};
use ringway_model::contention::gain;
use ringway_model::placement::busy_mean;

pub(crate) const CHECK: Check = Check {
    id: "D10",
    slug: "few-flows",
    title: "too few flows for the queues",
    group: Group::Queues,
    sources: &["throughput-guide:parallelism"],
    explanation: include_str!("few_flows.txt"),
    absent: "no interface with connections of this host",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        moved: Span<NicCounters>,
        nics: Interfaces,
        channels: Channels,
        sockets: Tried<Span<Sockets>>,
        full: Tried<FullCpu>,
        speeds: Speeds,
    }
}

/// Packets per second from which it matters.
const PACKETS_MIN: f64 = 1000.0;
/// Fraction of time with data to send from which a connection is limited by something else than its
/// program.
const HUNGRY: f64 = 0.8;
/// Fraction of the largest connection's bytes below which a connection does not count.
const COUNTS: f64 = 0.05;
/// Fraction of the wire's rate from which it is full (D09).
const WIRE_FULL: f64 = 0.97;
/// Connections for each queue that the advice asks for.
const FLOWS_PER_QUEUE: usize = 4;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let nics = &facts.moved;
    let Some((nic, moved)) = busiest(facts, nics) else { return Ok(()) };
    let (queues, queue_quote) = queues(facts, &nic)?;
    let rate = float(moved.packets()) / nics.seconds;
    if rate < PACKETS_MIN {
        let quote = Some(nics.text.quote(moved.line));
        out.well(format!("{nic} moves {rate:.0} packets/s"), quote);
        return Ok(());
    }
    let sockets = facts.sockets.get()?;
    if sockets.basis == Basis::SinceBoot {
        let why = "one sample does not show which connections move data";
        return Err(sockets.text.unreadable(None, why));
    }
    let flows = moving(sockets)?;
    if flows.is_empty() {
        return not_here("none of its own connections moves data");
    }
    let hungry: Vec<&Socket> =
        flows.iter().filter(|flow| flow.hungry >= HUNGRY).map(|flow| flow.socket).collect();
    let quotes = || hungry.iter().take(QUOTES_MAX).map(|flow| sockets.text.quote(flow.line));
    if flows.len() >= queues || hungry.is_empty() {
        let summary = format!("{} connections move data on {queues} queues of {nic}", flows.len());
        out.well(summary, quotes().next());
        return Ok(());
    }
    if let Some((summary, quote)) = other_limit(facts, &nic, &moved, nics.seconds)? {
        out.well(summary, Some(quote));
        return Ok(());
    }
    out.add([too_few(nic, flows.len(), queues).quote([queue_quote]).quote(quotes())]);
    Ok(())
}

/// What so few connections mean on so many queues.
fn too_few(nic: String, flows: usize, queues: usize) -> Finding {
    let busy = busy_mean(flows, queues);
    let more = queues.saturating_mul(FLOWS_PER_QUEUE);
    let condition = format!(
        "with {more} connections, which use {:.1} of {queues} queues on average",
        busy_mean(more, queues)
    );
    let summary = format!(
        "{flows} connections have more to send and use {busy:.1} of {queues} queues of {nic} on \
         average"
    );
    Finding::new(Severity::Warning, nic, summary)
        .cause(
            "A connection stays on one queue, and so on one CPU at each end. No CPU and no link \
             is full: the software is not parallel enough.",
        )
        .confidence(Confidence::Medium)
        .forecast(gain(busy, busy_mean(more, queues)), &condition)
        .advise(Advice::by_hand(
            format!(
                "Use more threads or connections in the application, about four for each queue. \
                 Test whether that helps: iperf3 -c HOST -P {connections}. Windows and messages \
                 may limit it as well (D11).",
                connections = more
            ),
            &[],
        ))
        .advise(Advice::by_hand(
            "The guide also tests without IOMMU (D22) and with another switch (D21).",
            &["ringway doctor explain D22"],
        ))
}

/// The interface with the most packets that is not a guest's.
fn busiest(facts: &Facts, span: &Span<NicCounters>) -> Option<(String, Moved)> {
    let mut all = Vec::new();
    for (nic, after) in &span.after.nics {
        let is_end = matches!(facts.nics.role(nic), NicRole::Physical | NicRole::Frontend);
        if let (true, Some(before)) = (is_end, span.past(span.before.nics.get(nic))) {
            all.push((nic.clone(), after.since(&before)));
        }
    }
    all.into_iter().max_by_key(|(_, moved)| moved.packets())
}

/// The number of queues that it sends by.
fn queues(facts: &Facts, nic: &str) -> Result<(usize, Quote), Gap> {
    let one = || Gap::NotHere("one queue".to_owned());
    let of_tool = facts.channels.of(nic).ok();
    let channels = of_tool.as_ref().map(Settings::parse).transpose()?;
    let current = channels.and_then(|channels| channels.current.get("combined").copied());
    if let (Some(text), Some(current)) = (of_tool, current) {
        let queues = usize::try_from(current.value).unwrap_or(usize::MAX);
        return if queues < 2 { Err(one()) } else { Ok((queues, text.quote(current.line))) };
    }
    let (queues, quote) = facts.nics.tx_queues(nic).ok_or_else(one)?;
    let queues = usize::try_from(queues).unwrap_or(usize::MAX);
    if queues < 2 { Err(one()) } else { Ok((queues, quote)) }
}

/// A connection that moves.
struct Flow<'a> {
    socket: &'a Socket,
    bytes: u64,
    /// Fraction of the time in which it had data to send.
    hungry: f64,
}

fn moving(span: &Span<Sockets>) -> Result<Vec<Flow<'_>>, Gap> {
    let mut flows = Vec::new();
    let mut known = 0;
    for socket in &span.after.all {
        let Some(before) = span.before.same(socket) else { continue };
        known += 1;
        let bytes = socket.moved_bytes.saturating_sub(before.moved_bytes);
        let hungry = (socket.busy_ms - before.busy_ms) / 1000.0 / span.seconds;
        if !socket.is_local() {
            flows.push(Flow { socket, bytes, hungry });
        }
    }
    // If connections come and go, or a sample is truncated, their number means nothing.
    if known * 10 < span.before.all.len().max(span.after.all.len()) * 9 {
        return Err(span.text.unreadable(None, "other connections than in the first sample"));
    }
    let most = flows.iter().map(|flow| flow.bytes).max().unwrap_or(0);
    flows.retain(|flow| flow.bytes > 0 && share(flow.bytes, most) >= COUNTS);
    Ok(flows)
}

/// Another limit that is reached: then more connections do not help.
fn other_limit(
    facts: &Facts,
    nic: &str,
    moved: &Moved,
    seconds: f64,
) -> Result<Option<(String, Quote)>, Gap> {
    if let Some((cpu, quote)) = &facts.full.get()?.0 {
        let summary = format!("CPU {cpu} is full, so flows are not the limit");
        return Ok(Some((summary, quote.clone())));
    }
    let Ok(speed) = facts.speeds.of(nic) else { return Ok(None) };
    // Virtual interfaces report -1, which does not parse.
    let Ok(mbit) = speed.number() else { return Ok(None) };
    let most = moved.tx_bytes.max(moved.rx_bytes);
    let is_full = float(most) * 8.0 / seconds >= float(mbit) * 1e6 * WIRE_FULL && mbit > 0;
    Ok(is_full.then(|| ("the link is full, so flows are not the limit".to_owned(), speed.quote(1))))
}
