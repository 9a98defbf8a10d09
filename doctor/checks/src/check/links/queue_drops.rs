//! D38: interface queues drop packets although no limit was set, or ringway does at its vifs.

#[path = "queue_drops/ringway.rs"]
mod ringway;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity, shell_word};
use ringway_evidence::Quote;
use ringway_evidence::fact::{
    Basis, Interfaces, PausedGuests, QueueLengths, Span, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::qdisc::{Qdisc, Qdiscs};
use ringway_evidence::parse::ringway::Vifs;

pub(crate) const CHECK: Check = Check {
    id: "D38",
    slug: "queue-drops",
    title: "the queue of an interface or vif drops packets",
    group: Group::Links,
    sources: &["man-tc:qdisc", "kernel-statistics:dropped", "man-netem:purpose"],
    explanation: include_str!("queue_drops.txt"),
    absent: "no interface but the loopback",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        moved: Span<NicCounters>,
        qdiscs: Tried<Span<Qdiscs>>,
        nics: Interfaces,
        lengths: QueueLengths,
        vifs: Tried<Span<Vifs>>,
        paused: PausedGuests,
    }
}

const LONGER_ADVICE: &str = "A longer queue absorbs bursts. It does not help if the reader is \
                             slower on average: check whether the reader gets a CPU (D02, D05, \
                             D35).";

/// Drops per second, and their fraction of all frames, that exceed normal TCP rate probing.
const DROPS_MIN: f64 = 10.0;
const DROPS_PART: f64 = 0.01;
/// Disciplines that drop only when their length is exceeded.
const PLAIN: [&str; 4] = ["bfifo", "pfifo", "pfifo_fast", "pfifo_head_drop"];
/// Disciplines that drop on purpose, so that senders slow down, and the fraction from which the
/// senders do not.
const ACTIVE: [&str; 10] =
    ["choke", "codel", "fq", "fq_codel", "fq_pie", "hhf", "pie", "red", "sfb", "sfq"];
const ACTIVE_PART: f64 = 0.05;
/// Part of a limit below which D30 does not see it as the reason for drops.
const LIMIT_PART: f64 = 0.3;
/// netem's emulated impairments, by the names of its options.
const EMULATED: [&str; 6] =
    ["loss-random", "loss-state", "loss-gemodel", "corrupt", "duplicate", "reorder"];
/// Queue length below which a queue is too short for a burst.
const LENGTH_GOOD: u64 = 1000;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    let vifs = out.tried(&facts.vifs, "vifs of ringway");
    let has_vifs = vifs.is_some_and(|span| !span.after.all.is_empty());
    if span.after.nics.keys().all(|nic| nic == "lo") && !has_vifs {
        return not_here(CHECK.absent);
    }
    let qdiscs = out.tried(&facts.qdiscs, "queueing disciplines");
    let emulators: Vec<Finding> = qdiscs.into_iter().flat_map(emulators).collect();
    if span.basis == Basis::SinceBoot && emulators.is_empty() {
        return not_here("drops by queues are only known since the boot");
    }
    out.add(emulators);
    if span.basis == Basis::SinceBoot {
        return Ok(());
    }
    out.add(qdiscs.into_iter().flat_map(|span| disciplines(facts, span)));
    for (nic, after) in span.after.nics.iter().filter(|(nic, _)| nic.as_str() != "lo") {
        let Some(before) = span.past(span.before.nics.get(nic)) else { continue };
        let moved = after.since(&before);
        if is_much(moved.tx_dropped, moved.tx_packets, span.seconds) {
            out.add([match facts.paused.has_interface(nic) {
                true => to_paused(nic, moved.tx_dropped, span.seconds),
                false => device(facts, nic, moved.tx_dropped, moved.tx_packets, after.line),
            }]);
        }
    }
    out.add(vifs.into_iter().flat_map(|vifs| ringway::inspect(vifs, &facts.paused)));
    let which = if qdiscs.is_some() { "queues of interfaces" } else { "the devices' own queues" };
    out.well(format!("{which} drop almost nothing"), None);
    Ok(())
}

fn is_much(drops: u64, sent: u64, seconds: f64) -> bool {
    float(drops) / seconds >= DROPS_MIN && share(drops, drops.saturating_add(sent)) >= DROPS_PART
}

/// What is for a guest that is paused: no fault, and no loss that anyone may miss.
fn to_paused(name: &str, drops: u64, seconds: f64) -> Finding {
    let rate = float(drops) / seconds;
    let summary = format!("{name} drops {rate:.0} packets a second: its guest is paused");
    Finding::new(Severity::Note, name, summary)
        .cause("Its queue is full, and its guest takes nothing until it is resumed.")
}

fn percent(drops: u64, sent: u64) -> String {
    format!("{:.1} %", share(drops, drops.saturating_add(sent)) * 100.0)
}

/// Disciplines that emulate a bad network, which one sample shows.
fn emulators(span: &Span<Qdiscs>) -> Vec<Finding> {
    let found = |qdisc: &Qdisc| {
        let summary = format!("{} emulates a bad network: {}", qdisc.dev, emulated(qdisc)?);
        let command = format!("tc -s qdisc show dev {}", shell_word(&qdisc.dev));
        let finding = Finding::new(Severity::Warning, qdisc.dev.clone(), summary)
            .cause("A discipline that is made for tests delays or drops packets on this interface.")
            .quote(span.text.quote_where(|line| line.contains("netem")))
            .advise(Advice::by_hand(
                "If no test needs it any more, delete it (tc qdisc del).",
                &[&command],
            ));
        Some(finding)
    };
    span.after.all.iter().filter_map(found).collect()
}

fn disciplines(facts: &Facts, span: &Span<Qdiscs>) -> Vec<Finding> {
    let mut found = Vec::new();
    for qdisc in &span.after.all {
        let is_active = ACTIVE.contains(&qdisc.kind.as_str());
        let is_queue = is_active || PLAIN.contains(&qdisc.kind.as_str());
        let Some(before) = span.before.same(qdisc) else { continue };
        // A bucket that is full of bursts although its rate is not reached.
        let bytes = qdisc.bytes.saturating_sub(before.bytes);
        let is_short = |rate| float(bytes) / span.seconds < LIMIT_PART * float(rate);
        let is_short = qdisc.kind == "tbf" && qdisc.rate().is_some_and(is_short);
        if !is_short && !is_queue {
            continue;
        }
        let drops = qdisc.drops.saturating_sub(before.drops);
        let sent = qdisc.packets.saturating_sub(before.packets);
        let is_normal = is_active && share(drops, drops.saturating_add(sent)) < ACTIVE_PART;
        if !is_much(drops, sent, span.seconds) || is_normal {
            continue;
        }
        found.push(full(facts, span, qdisc, (drops, sent)));
    }
    found
}

/// A discipline whose queue is full. An active one drops on purpose.
fn full(facts: &Facts, span: &Span<Qdiscs>, qdisc: &Qdisc, (drops, sent): (u64, u64)) -> Finding {
    let is_active = ACTIVE.contains(&qdisc.kind.as_str());
    let summary = format!(
        "the queue of {} ({}) is full and drops {:.0} packets a second, {}",
        qdisc.dev,
        qdisc.kind,
        float(drops) / span.seconds,
        percent(drops, sent)
    );
    let counted = format!(
        "{} of {}: {sent} sent and {drops} dropped since the first sample",
        qdisc.kind, qdisc.dev
    );
    let command = format!("tc -s qdisc show dev {}", shell_word(&qdisc.dev));
    let advice = if is_active {
        "Check what sends: datagrams without congestion control, or many more connections than \
         this link has room for. A longer queue only adds delay."
    } else {
        "Check what arrives (bursts, more than the link carries) and what reads the queue. A \
         longer queue (limit, or txqueuelen of the interface) helps only against bursts."
    };
    let advice = Advice::by_hand(advice, &[&command]);
    let finding = Finding::new(Severity::Warning, qdisc.dev.clone(), summary)
        .cause(if is_active {
            "The discipline drops so that senders slow down, but they do not slow down, or they \
             are too many for this link."
        } else {
            "More packets arrive at a time than fit, and the sending side is slower: bursts, a \
             slow link, or a slow program behind it."
        })
        // The tool prints all disciplines on one line.
        .quote([Quote { file: span.text.origin().to_owned(), line: None, text: counted }])
        .confidence(Confidence::Medium);
    match longer(facts, &qdisc.dev) {
        Some((change, quote)) if qdisc.kind == "pfifo_fast" => {
            let advice = Advice::by_change(LONGER_ADVICE, [change]);
            finding.quote([quote]).advise(advice)
        }
        _ => finding.advise(advice),
    }
}

fn emulated(qdisc: &Qdisc) -> Option<String> {
    if qdisc.kind != "netem" {
        return None;
    }
    let is_set = |name: &&&str| {
        qdisc.options.get(**name).is_some_and(|value| !value.is_null() && value.as_u64() != Some(0))
    };
    let named: Vec<&str> = EMULATED.iter().filter(is_set).copied().collect();
    let delay = qdisc.options.get("delay").map(|_| "delay");
    let all: Vec<&str> = named.into_iter().chain(delay).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The device's own queue: that of a TAP whose program reads too slowly, or of a veth whose other
/// end does not accept frames.
fn device(facts: &Facts, nic: &str, drops: u64, sent: u64, line: usize) -> Finding {
    let span = &facts.moved;
    let driver = facts.nics.driver(nic);
    let is_tun =
        driver.as_deref() == Some("tun") || nic.starts_with("tap") || nic.starts_with("vnet");
    let summary = format!(
        "{nic} drops {:.0} outgoing packets a second, {}",
        float(drops) / span.seconds,
        percent(drops, sent)
    );
    let command = "ip -s -s link";
    let finding = Finding::new(Severity::Warning, nic, summary)
        .quote([span.text.quote(line)])
        .confidence(Confidence::Medium);
    if !is_tun {
        let advice = Advice::by_hand(
            "Find out which counter it is, and whether the other end is up and gets a CPU (D18, \
             D35).",
            &[command],
        );
        return finding
            .cause(
                "The other end does not accept them: it is down, its queue is full because its \
                 CPU is busy, or the driver has no room.",
            )
            .advise(advice);
    }
    let finding = finding.cause(
        "The program that reads it is slower than frames arrive, on average or during a burst, \
         and its queue is full.",
    );
    match longer(facts, nic) {
        Some((change, quote)) => {
            let advice = Advice::by_change(LONGER_ADVICE, [change]);
            finding.quote([quote]).advise(advice)
        }
        None => finding.advise(Advice::by_hand(
            "Check whether that program gets a CPU (D02, D05, D35) and has as many queues as \
             possible (D14).",
            &[command],
        )),
    }
}

/// A longer queue for bursts, if it is short.
fn longer(facts: &Facts, nic: &str) -> Option<(Change, Quote)> {
    let text = facts.lengths.of(nic).ok()?;
    let now = text.number().ok().filter(|now| *now < LENGTH_GOOD)?;
    let knob = Knob::TxQueueLen { nic: nic.to_owned() };
    Some((Change::raise(knob, now, LENGTH_GOOD)?, text.quote(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, net_dev, sampled};

    /// `/proc/net/dev` where so many packets were sent.
    fn eth0(sent: u64) -> String {
        net_dev(&format!("  eth0: 0 0 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0\n"))
    }

    /// The findings for an interface whose discipline dropped this many of a thousand packets in a
    /// second. `kind` is the rest of what `tc` prints of it, and `above` what it prints before it.
    fn found_below(above: &str, kind: &str, drops: u64) -> Vec<Finding> {
        CHECK.run(&host(sampled(|sample| {
            let (packets, drops) = if sample == 1 { (0, 0) } else { (1000 - drops, drops) };
            let qdisc = format!(
                r#"[{above}{{"kind":"{kind}","dev":"eth0","packets":{packets},"drops":{drops}}}]"#
            );
            [("proc/net/dev", eth0(packets)), ("commands/tc_-s_-j_qdisc_show", qdisc + "\n")]
        })))
    }

    fn found(kind: &str, drops: u64) -> Vec<Finding> {
        found_below("", kind, drops)
    }

    #[test]
    fn disciplines_that_were_not_read_have_no_check_mark() {
        let judged = |refused: &str| {
            let mut files = sampled(|_| [("proc/net/dev", eth0(9))]);
            files.push(("refused".to_owned(), refused.to_owned()));
            CHECK.run(&host(files)).remove(0)
        };
        let refused = judged("commands/tc_-s_-j_qdisc_show\ttc is not installed\n");
        assert_eq!(refused.severity, Severity::Unknown, "{refused:#?}");
        // A record of a tool that does not ask for them is judged for what it has.
        let silent = judged("");
        assert_eq!(silent.severity, Severity::Ok, "{silent:#?}");
        assert!(silent.summary.starts_with("the devices' own queues"), "{silent:#?}");
    }

    #[test]
    fn a_leaf_below_a_class_that_drops_is_found() {
        let htb = r#"{"kind":"htb","handle":"1:","dev":"eth0","root":true,"packets":9,"drops":0},"#;
        let leaf = found_below(htb, r#"pfifo","parent":"1:10","x":""#, 200);
        assert_eq!((leaf.len(), leaf[0].severity), (1, Severity::Warning), "{leaf:#?}");
        assert!(leaf[0].summary.contains("eth0 (pfifo) is full"), "{leaf:#?}");
        let quoted = "pfifo of eth0: 800 sent and 200 dropped since the first sample";
        assert_eq!(leaf[0].evidence[0].text, quoted, "{leaf:#?}");
        let calm = found_below(htb, r#"pfifo","parent":"1:10","x":""#, 0);
        assert_eq!(calm[0].severity, Severity::Ok, "{calm:#?}");
    }

    /// The findings for guests of ringway which got a thousand frames in a second and sent as many,
    /// on a host without interfaces: the reason and number of what was dropped at each.
    fn at_vifs(drops: &[(&str, &str, u64)]) -> Vec<Finding> {
        CHECK.run(&host(vifs(drops)))
    }

    fn vifs(drops: &[(&str, &str, u64)]) -> Vec<(String, String)> {
        sampled(|sample| {
            let frames = sample * 1000;
            let vif = |(name, reason, drops): &(&str, &str, u64)| {
                format!(
                    r#"{{"name":"{name}","kind":"virtio","max_queues":1,"queues":[{{"index":0,
                    "tx_packets":{frames},"tx_bytes":0,"rx_packets":{frames},"rx_bytes":0,
                    "dropped":{{"{reason}":{}}}}}]}}"#,
                    sample * drops
                )
            };
            let vifs: Vec<String> = drops.iter().map(vif).collect();
            let list = format!("[{}]\n", vifs.join(","));
            [("proc/net/dev", net_dev("")), ("commands/ringway_vif_list_--json", list)]
        })
    }

    #[test]
    fn a_guest_that_is_paused_is_no_alarm() {
        let domains = |state: &str| {
            let list = format!("Name ID Mem VCPUs State Time(s)\nweb 7 9 4 {state} 3\n");
            ("commands/xl_list".to_owned(), list)
        };
        let severity = |mut files: Vec<(String, String)>, state: &str| {
            files.push(domains(state));
            let found = CHECK.run(&host(files)).remove(0);
            assert_eq!(found.loss, None, "{found:#?}");
            found.severity
        };
        let own = || vifs(&[(r#"vif7.0","domid":7,"x":""#, "queue_full", 500)]);
        let device = || {
            sampled(|sample| {
                let drops = 20 * (sample - 1);
                let row = format!("vif7.0: 0 0 0 0 0 0 0 0 0 0 0 {drops} 0 0 0 0\n");
                [("proc/net/dev", net_dev(&row))]
            })
        };
        for files in [own(), device()] {
            assert_eq!(severity(files.clone(), "--p---"), Severity::Note);
            assert_eq!(severity(files, "-b----"), Severity::Warning);
        }
    }

    #[test]
    fn frames_that_ringway_drops_are_a_warning_or_in_the_verdict() {
        let full = at_vifs(&[("vm1", "queue_full", 500), ("vm2", "queue_full", 0)]);
        assert_eq!((full.len(), full[0].severity), (1, Severity::Warning), "{full:#?}");
        assert_eq!(full[0].summary, "ringway drops 500 frames a second at vm1: queue_full");
        assert_eq!(full[0].subject, "vm1");
        // A queue that TCP fills, and what a rule drops: no fault, but it may be missed.
        let few = at_vifs(&[("vm1", "queue_full", 3), ("vm2", "bad_source", 900)]);
        assert_eq!((few.len(), few[0].severity), (1, Severity::Note), "{few:#?}");
        let said = "903.0 frames a second die in ringway at 2 vifs, most at vm2: bad_source, \
                    queue_full";
        assert_eq!(few[0].loss.as_deref(), Some(said), "{few:#?}");
        for (reason, drops) in [("queue_full", 0), ("mirror_lost", 900), ("flood_limit", 900)] {
            let well = at_vifs(&[("vm1", reason, drops)]);
            assert_eq!(well[0].severity, Severity::Ok, "{well:#?}");
        }
    }

    #[test]
    fn a_guest_that_may_send_nothing_is_no_all_clear() {
        let output = at_vifs(&[("vm1", "port_disabled", 900)]);
        assert_eq!(output[0].severity, Severity::Ok, "that of a mirror: {output:#?}");
        let guest = at_vifs(&[(r#"vm1","locking_mode":"disabled"#, "port_disabled", 900)]);
        let said = "900.0 frames a second die in ringway at vm1: port_disabled";
        assert_eq!(guest[0].loss.as_deref(), Some(said), "{guest:#?}");
        assert_eq!((guest.len(), guest[0].severity), (1, Severity::Note), "{guest:#?}");
    }

    #[test]
    fn a_discipline_that_drops_on_purpose_may_drop_more() {
        let severity = |kind, drops| found(kind, drops)[0].severity;
        assert_eq!(severity("pfifo_fast", 20), Severity::Warning);
        assert_eq!(severity("fq_codel", 20), Severity::Ok);
        assert_eq!(severity("fq_codel", 200), Severity::Warning);
        assert_eq!(severity("htb", 200), Severity::Ok, "D30 reports it");
        // With a rate that it does not reach.
        assert_eq!(severity(r#"tbf","options":{"rate":9000},"x":""#, 200), Severity::Warning);
        let found = found("red", 200);
        assert!(found[0].cause.contains("do not slow down"), "{found:#?}");
    }
}
