//! D19: TCP settings of old guides that do harm today.

use std::ops::Deref;

use crate::check::{Check, Group, Judged, Verdicts, all_well, rule, use_cubic};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::fact::{
    BacklogMax, CongestionControls, Interfaces, QueueLengths, TcpCongestion,
    TcpCongestionAvailable, TcpFinTimeout, TcpReceiveBuffers, TcpSack, TcpSendBuffers,
    TcpTimestamps, TcpWindowScaling, Tried,
};
use ringway_evidence::facts;
use ringway_evidence::{Gap, Text};

pub(crate) const CHECK: Check = Check {
    id: "D19",
    slug: "harmful-settings",
    title: "TCP has harmful settings",
    group: Group::Tcp,
    sources: &[
        "throughput-guide:domain-0-settings",
        "throughput-guide:old-guest-settings",
        "throughput-guide:long-queues",
        "throughput-guide:sack-off",
        "throughput-guide:fin-timeout",
        "throughput-guide:timestamps-off",
        "throughput-guide:eleven-settings",
    ],
    explanation: include_str!("harmful_settings.txt"),
    absent: "no TCP settings",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        sack: Tried<TcpSack>,
        timestamps: Tried<TcpTimestamps>,
        scaling: Tried<TcpWindowScaling>,
        nics: Interfaces,
        lengths: QueueLengths,
        congestion: Tried<TcpCongestion>,
        available: Tried<TcpCongestionAvailable>,
        controls: CongestionControls,
        backlog: Tried<BacklogMax>,
        fin_timeout: Tried<TcpFinTimeout>,
        receive_buffers: Tried<TcpReceiveBuffers>,
        send_buffers: Tried<TcpSendBuffers>,
    }
}

/// A switch of TCP that has to be on, in the order of its facts.
struct Switch {
    name: &'static str,
    harm: &'static str,
}

const SWITCHES: [Switch; 3] = [
    Switch {
        name: "tcp_sack",
        harm: "Without selective acknowledgements TCP learns of one lost packet in each round \
               trip, and sends again what has already arrived. Old guides turned them off to save \
               CPU time on links without loss; a full queue is loss as well.",
    },
    Switch {
        name: "tcp_timestamps",
        harm: "Without timestamps TCP has no protection against wrapped sequence numbers, which \
               at 10 Gbit/s wrap in 3.4 s, and measures round trips badly. Only kernels of 2011 \
               had the conflict with GRO.",
    },
    Switch {
        name: "tcp_window_scaling",
        harm: "Without scaling no window is above 64 KiB: 0.5 Gbit/s at a round trip of 1 ms, \
               whatever the buffers are.",
    },
];

/// Longer queues before an interface only add delay: 300000 full packets are 0.36 s at 10 Gbit/s.
const TXQUEUELEN_MAX: u64 = 10_000;
/// What Linux has set since it exists.
const TXQUEUELEN_DEFAULT: u64 = 1000;

/// Longer backlogs only add delay (D18); the 300000 of old guides is above.
const BACKLOG_MAX: u64 = 100_000;
/// What D18 would raise it to at most.
const BACKLOG: u64 = 16_384;
/// Seconds below which `tcp_fin_timeout` was changed; Linux has 60.
const FIN_TIMEOUT_MIN: u64 = 30;
/// The maximum of buffers: what Linux sets on the smallest machine, and usually (`tcp_init` in
/// `net/ipv4/tcp.c`).
const RMEM: (u64, u64) = (128 << 10, 6 << 20);
const WMEM: (u64, u64) = (64 << 10, 4 << 20);
/// What Linux had before cubic, which old guides and old configurations still set.
const OLD_CONGESTION: [&str; 2] = ["reno", "bic"];

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let mut findings = Vec::new();
    let mut sound = None;
    let texts: [Result<&Text, Gap>; 3] = [
        facts.sack.get().map(Deref::deref),
        facts.timestamps.get().map(Deref::deref),
        facts.scaling.get().map(Deref::deref),
    ];
    for (switch, text) in SWITCHES.iter().zip(texts) {
        match text {
            Ok(text) => match inspect(switch, text) {
                Ok(None) => sound = Some(text.quote(1)),
                Ok(Some(finding)) => findings.push(finding),
                Err(gap) => findings.push(Finding::gap(switch.name, &gap)),
            },
            Err(gap) => findings.push(Finding::gap(switch.name, &gap)),
        }
    }
    findings.extend(facts.nics.names().iter().filter_map(|nic| long_queue(facts, nic)));
    findings.extend(congestion(facts));
    findings.extend(backlog(facts));
    findings.extend(fin_timeout(facts));
    let buffers = [
        ("net.ipv4.tcp_rmem", facts.receive_buffers.ok().map(Deref::deref), RMEM),
        ("net.ipv4.tcp_wmem", facts.send_buffers.ok().map(Deref::deref), WMEM),
    ];
    findings.extend(
        buffers.into_iter().filter_map(|(name, text, usual)| small_buffer(name, text?, usual)),
    );
    let is_judged = |one: &Finding| !matches!(one.severity, Severity::Unknown);
    let is_well = |one: &Finding| is_judged(one) && one.severity < Severity::Warning;
    if findings.iter().all(is_well) {
        findings.push(all_well("no harmful setting of an old guide is in use", sound));
    }
    out.add(findings);
    Ok(())
}

fn inspect(switch: &Switch, text: &Text) -> Result<Option<Finding>, Gap> {
    let value = text.number()?;
    if value > 2 {
        return Err(text.unreadable(Some(1), "expected 0, 1 or 2"));
    }
    if value != 0 {
        return Ok(None);
    }
    let name = format!("net.ipv4.{}", switch.name);
    let knob = Knob::Sysctl { name: name.clone() };
    let finding = Finding::new(Severity::Problem, name.clone(), format!("{name} is off"))
        .cause(switch.harm)
        .quote([text.quote(1)])
        .advise(Advice::by_change(
            "Turn it on; this affects new connections. Find what turned it off in \
             /etc/sysctl.conf and /etc/sysctl.d.",
            Change::raise(knob, 0, 1),
        ))
        .gain("none on an idle link without loss; after loss, whole round trips and timeouts");
    Ok(Some(finding))
}

fn long_queue(facts: &Facts, nic: &str) -> Option<Finding> {
    let text = facts.lengths.of(nic).ok()?;
    let len = match text.number() {
        Ok(len) if len <= TXQUEUELEN_MAX => return None,
        Ok(len) => len,
        Err(gap) => return Some(Finding::gap(nic, &gap)),
    };
    let knob = Knob::TxQueueLen { nic: nic.to_owned() };
    // The ring of a TAP device has this length.
    let (cause, advice) = match facts.nics.has_offload_headers(nic) {
        Some(_) => (
            "The ring from which the program behind a TAP device reads has this length, under any \
             queueing discipline. A ring that long turns loss into delay: if the program reads \
             100000 packets a second, the last of 300000 waits 3 s, and TCP takes that for loss.",
            format!(
                "Go back to {TXQUEUELEN_DEFAULT}, and more only if bursts are dropped (D38). \
                 Packets that wait there may be lost."
            ),
        ),
        None => (
            "A queue that long turns loss into delay: TCP fills it, and everything else waits \
             behind. 300000 packets of 1500 bytes take 0.36 s at 10 Gbit/s, 3.6 s at 1 Gbit/s. Of \
             the queueing disciplines, pfifo_fast, pfifo and bfifo are that long; others have \
             limits of their own.",
            format!("Go back to {TXQUEUELEN_DEFAULT}; with fq or fq_codel it does not matter."),
        ),
    };
    let finding =
        Finding::new(Severity::Warning, nic, format!("{len} packets may wait before {nic}"))
            .cause(cause)
            .quote([text.quote(1)])
            .advise(Advice::by_change(advice, Change::lower(knob, len, TXQUEUELEN_DEFAULT)));
    Some(finding)
}

/// An algorithm that fills a long fast path slowly (`throughput-guide:domain-0-settings`,
/// `throughput-guide:old-guest-settings`, `throughput-guide:long-queues`).
fn congestion(facts: &Facts) -> Option<Finding> {
    let text = facts.congestion.ok()?;
    let old = OLD_CONGESTION.into_iter().find(|old| text.value() == *old)?;
    let name = "net.ipv4.tcp_congestion_control";
    let available = facts.available.ok();
    let finding = Finding::new(Severity::Warning, name, format!("new connections use {old}"))
        .cause(
            "After a loss it needs a round trip for each packet by which its window grows: \
             minutes on a path of 100 ms at 10 Gbit/s. cubic is the default since Linux 2.6.19.",
        )
        .quote([text.quote(1)])
        .quote(available.map(|text| text.quote(1)))
        .advise(use_cubic(&facts.controls, old, "Use cubic; this affects new connections."));
    Some(finding)
}

/// A backlog as old guides have it (`throughput-guide:long-queues`).
fn backlog(facts: &Facts) -> Option<Finding> {
    let text = facts.backlog.ok()?;
    let frames = text.number().ok().filter(|frames| *frames > BACKLOG_MAX)?;
    let name = "net.core.netdev_max_backlog";
    let change = Change::lower(Knob::Sysctl { name: name.to_owned() }, frames, BACKLOG);
    let summary = format!("{frames} frames may wait before a CPU handles them");
    let finding = Finding::new(Severity::Warning, name, summary)
        .cause(
            "A longer queue does not make a slow CPU faster: at 100000 frames a second, 300000 of \
             them are 3 s of delay, which TCP takes for loss.",
        )
        .quote([text.quote(1)])
        .advise(Advice::by_change(
            "Set it to what a burst brings; D18 reports whether frames are dropped.",
            change,
        ));
    Some(finding)
}

/// A maximum below what the kernel sets on the smallest machine.
fn small_buffer(name: &str, text: &Text, (least, usual): (u64, u64)) -> Option<Finding> {
    let current = text.value().split_whitespace().collect::<Vec<_>>().join(" ");
    let numbers: Option<Vec<u64>> = current.split(' ').map(|word| word.parse().ok()).collect();
    let [min, default, most] = numbers?.try_into().ok()?;
    if most >= least {
        return None;
    }
    let knob = Knob::Sysctl { name: name.to_owned() };
    let change = Change::raise(knob, &current, format!("{min} {default} {usual}"))?;
    let summary = format!("{name} lets a connection have {most} bytes of buffer at most");
    let finding = Finding::new(Severity::Warning, name, summary)
        .cause(format!(
            "Linux itself sets at least {least} on the smallest machine. Unless its program asks \
             for another size (SO_RCVBUF, SO_SNDBUF), a connection can have about half of it on \
             its way, whatever its path carries."
        ))
        .quote([text.quote(1)])
        .advise(Advice::by_change(
            "Go back to what Linux usually sets; a connection takes only what it needs. This \
             affects new connections. Find what set it in /etc/sysctl.conf and /etc/sysctl.d.",
            [change],
        ));
    Some(finding)
}

/// Harmless, and no use (`throughput-guide:fin-timeout`).
fn fin_timeout(facts: &Facts) -> Option<Finding> {
    let text = facts.fin_timeout.ok()?;
    let seconds = text.number().ok().filter(|seconds| (1..FIN_TIMEOUT_MIN).contains(seconds))?;
    let summary = format!("connections that one end has closed are kept for {seconds} s, not 60");
    let finding = Finding::new(Severity::Note, "net.ipv4.tcp_fin_timeout", summary)
        .cause(
            "It frees a little memory, and cuts off peers that close slowly. It does not affect \
             TIME_WAIT.",
        )
        .quote([text.quote(1)]);
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_no_kernel_sets_is_too_small() {
        let found = |value: &str, usual| {
            let text = Text::new("tcp_rmem", value);
            small_buffer("net.ipv4.tcp_rmem", &text, usual)
        };
        let small = found("4096\t8192\t8192\n", RMEM).expect("too small");
        let commands = &small.advice[0].commands;
        assert_eq!(commands, &["sysctl -w net.ipv4.tcp_rmem='4096 8192 6291456'"]);
        for sound in ["4096\t131072\t131072\n", "4096 131072 6291456", "4096 8192", ""] {
            assert!(found(sound, RMEM).is_none(), "{sound:?}");
        }
    }
}
