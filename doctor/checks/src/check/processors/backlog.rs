//! D18: frames that a CPU's backlog dropped, and softirq rounds that ended with work left.

use std::ops::Deref;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    BacklogMax, Basis, BudgetFrames, BudgetUsecs, Namespace, Span, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::softnet::{Row, Softnet};
use ringway_evidence::{Netns, Quote, Text};

pub(crate) const CHECK: Check = Check {
    id: "D18",
    slug: "backlog",
    title: "a CPU's backlog drops frames, or its rounds end early",
    group: Group::Processors,
    sources: &["throughput-guide:long-queues"],
    explanation: include_str!("backlog.txt"),
    absent: "no CPU",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        softnet: Span<Softnet>,
        backlog: Tried<BacklogMax>,
        frames: Tried<BudgetFrames>,
        usecs: Tried<BudgetUsecs>,
        namespace: Namespace,
    }
}

/// Rounds cut short per frame, from which it is more than an occasional burst: an alarm on any cut
/// round would be wrong on nearly every host.
const SQUEEZED_SHARE_MAX: f64 = 0.001;
/// Fewer cut rounds than this between two samples are a burst.
const SQUEEZED_MIN: u32 = 10;
/// Part of a CPU's frames below which drops are a passing burst: TCP slows down for each, but these
/// are too rare to hold it.
const DROPPED_PART: f64 = 0.0001;
/// Drops or cut rounds per second, averaged since boot, from which they show the present and not
/// one bad moment in the past.
const SINCE_BOOT_MIN: f64 = 1.0;
/// More waiting frames than this only add delay.
const BACKLOG_MAX: u64 = 16_384;
const BACKLOG: &str = "net.core.netdev_max_backlog";
/// Frames or microseconds of a round above which it only keeps the CPU from other work: 100 ms.
const ROUND_MAX: u64 = 100_000;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.softnet;
    // A file that was truncated between two lines has fewer rows, and nothing else shows the
    // truncation.
    if span.after.rows.len() < span.before.rows.len() {
        return Err(span.text.unreadable(None, "fewer CPUs than in the first sample"));
    }
    let before = |cpu| span.past(span.before.rows.iter().find(|row| row.cpu == cpu));
    let since = |row: &Row| Some(row.since(&before(row.cpu)?));
    let rows: Vec<Row> = span.after.rows.iter().filter_map(since).collect();
    out.add(drops(facts, &rows));
    out.add(squeezes(facts, &rows));
    out.well("no backlog drops frames", rows.first().map(|row| span.text.quote(row.line)));
    Ok(())
}

fn drops(facts: &Facts, rows: &[Row]) -> Option<Finding> {
    let span = &facts.softnet;
    let guilty: Vec<&Row> = rows.iter().filter(|row| row.dropped > 0).collect();
    let dropped: u64 = guilty.iter().map(|row| u64::from(row.dropped)).sum();
    if dropped == 0 {
        return None;
    }
    let rate = float(dropped) / span.seconds;
    // A few since boot may come from one bad minute long ago.
    if span.basis == Basis::SinceBoot && rate < SINCE_BOOT_MIN {
        return None;
    }
    let (severity, confidence, when) = match span.basis {
        Basis::Samples => (Severity::Problem, Confidence::High, ""),
        Basis::SinceBoot => (Severity::Warning, Confidence::Low, ", averaged since the boot"),
    };
    let verb = if guilty.len() == 1 { "drops" } else { "drop" };
    let summary =
        format!("{} {verb} {rate:.1} frames/s before TCP/IP sees them{when}", cpus(&guilty));
    let taken: u64 = guilty.iter().map(|row| u64::from(row.processed)).sum();
    let is_rare = share(dropped, taken.saturating_add(dropped)) < DROPPED_PART;
    if is_rare && span.basis == Basis::Samples {
        let loss = format!("{rate:.1} frames a second die in the backlog of {}", cpus(&guilty));
        let finding = Finding::new(Severity::Note, cpus(&guilty), summary)
            .cause("A burst found no room, of fewer than one frame in ten thousand.")
            .quote(guilty.iter().map(|row| span.text.quote(row.line)))
            .loses(loss);
        return Some(finding);
    }
    let (advice, quote) = match facts.backlog.get() {
        Ok(text) => (text.number().ok().and_then(longer_backlog), Some(text.quote(1))),
        // Only the machine's initial network namespace has it.
        Err(_) if facts.namespace.0 == Some(Netns::Other) => (
            Some(Advice::by_hand(
                "net.core.netdev_max_backlog, which may help against bursts, is set for the whole \
                 machine: in its initial network namespace, not in this one.",
                &[],
            )),
            None,
        ),
        Err(_) => (None, None),
    };
    let finding = Finding::new(severity, cpus(&guilty), summary)
        .cause(
            "Frames of veth without GRO, those of this host to itself, and those that RPS moves \
             wait in a queue of each CPU; it was full. Cards with NAPI do not use it.",
        )
        .quote(guilty.iter().map(|row| span.text.quote(row.line)))
        .quote(quote)
        .confidence(confidence)
        .advise(Advice::by_hand(
            "First find out why that CPU cannot keep up: D03, D04 and D14 spread its work.",
            &["ringway doctor explain D04"],
        ));
    Some(advice.into_iter().fold(finding, Finding::advise))
}

/// Bursts fit into a queue four times as long; constant overload fits into none.
fn longer_backlog(current: u64) -> Option<Advice> {
    let proposed = current.saturating_mul(4).min(BACKLOG_MAX);
    let change = Change::raise(Knob::Sysctl { name: BACKLOG.to_owned() }, current, proposed)?;
    Some(Advice::by_change(
        format!(
            "If bursts are the cause, let more frames wait (now {current}). The 300000 of old \
             guides only turns loss into delay."
        ),
        [change],
    ))
}

fn squeezes(facts: &Facts, rows: &[Row]) -> Option<Finding> {
    let span = &facts.softnet;
    let is_load = |row: &Row| {
        span.basis == Basis::Samples || f64::from(row.squeezed) / span.seconds >= SINCE_BOOT_MIN
    };
    let is_guilty = |row: &&Row| {
        row.squeezed >= SQUEEZED_MIN
            && is_load(row)
            && share(u64::from(row.squeezed), u64::from(row.processed)) > SQUEEZED_SHARE_MAX
    };
    let guilty: Vec<&Row> = rows.iter().filter(is_guilty).collect();
    let worst = guilty.iter().max_by_key(|row| row.squeezed)?;
    let percent = 100.0 * share(u64::from(worst.squeezed), u64::from(worst.processed));
    let summary = format!(
        "{} ended {:.0} rounds/s with frames left, {percent:.2} % of the frames it received",
        cpus(&guilty),
        f64::from(worst.squeezed) / span.seconds
    );
    let confidence = match span.basis {
        Basis::Samples => Confidence::Medium,
        Basis::SinceBoot => Confidence::Low,
    };
    // What ends a round: frames, and microseconds since Linux 4.12.
    let budgets: [(&str, Option<&Text>); 2] = [
        ("net.core.netdev_budget", facts.frames.ok().map(Deref::deref)),
        ("net.core.netdev_budget_usecs", facts.usecs.ok().map(Deref::deref)),
    ];
    let (changes, quotes): (Vec<Change>, Vec<Quote>) =
        budgets.into_iter().filter_map(|(name, text)| doubled(name, text?)).unzip();
    let advice = if changes.is_empty() {
        Advice::by_hand(
            "The length of a round (net.core.netdev_budget frames, net.core.netdev_budget_usecs) \
             is set for the whole machine, and is not visible here or is long already. Spread the \
             work of this CPU instead: D03, D04 and D14.",
            &["ringway doctor explain D04"],
        )
    } else {
        Advice::by_change(
            "Allow more frames in a round, and, since Linux 4.12, more time: it ends at whichever \
             comes first. Other work of that CPU waits.",
            changes,
        )
    };
    let finding = Finding::new(Severity::Warning, cpus(&guilty), summary)
        .cause(
            "Rounds reach netdev_budget or netdev_budget_usecs: more frames arrive than one CPU \
             can handle.",
        )
        .quote(guilty.iter().map(|row| span.text.quote(row.line)))
        .quote(quotes)
        .confidence(confidence);
    Some(finding.advise(advice))
}

/// Doubles a limit of a round.
fn doubled(name: &str, text: &Text) -> Option<(Change, Quote)> {
    let current = text.number().ok().filter(|current| *current > 0)?;
    let knob = Knob::Sysctl { name: name.to_owned() };
    let change = Change::raise(knob, current, current.saturating_mul(2).min(ROUND_MAX))?;
    Some((change, text.quote(1)))
}

fn cpus(rows: &[&Row]) -> String {
    let names: Vec<String> = rows.iter().map(|row| row.cpu.to_string()).collect();
    format!("{} {}", if names.len() == 1 { "CPU" } else { "CPUs" }, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    const SOFTNET: &str = "0007a508 000000af 0000005f 00000000 00000000 00000000 00000000 \
                           00000000 00000000 00000000 00000000 00000000 00000000\n";

    #[test]
    fn a_few_drops_since_the_boot_are_no_rate() {
        let severity = |uptime: &str| {
            let pieces = [("proc/uptime", uptime), ("proc/net/softnet_stat", SOFTNET)];
            CHECK.run(&host(pieces)).iter().map(|found| found.severity).max()
        };
        assert_eq!(severity("10.0 1\n"), Some(Severity::Warning));
        assert_eq!(severity("864000.0 1\n"), Some(Severity::Ok));
    }

    #[test]
    fn a_drop_among_many_frames_is_no_problem() {
        let found = |frames: u32| {
            let row = |frames: u32, dropped: u32| {
                format!("{frames:08x} {dropped:08x} {}\n", ["00000000"; 11].join(" "))
            };
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "6.0\n".to_owned()),
                ("sample-1/proc/net/softnet_stat", row(0, 0)),
                ("sample-2/proc/net/softnet_stat", row(frames, 5)),
            ];
            CHECK.run(&host(pieces)).remove(0)
        };
        let rare = found(1_000_000);
        assert_eq!(rare.severity, Severity::Note, "{rare:#?}");
        let loss = Some("1.0 frames a second die in the backlog of CPU 0");
        assert_eq!(rare.loss.as_deref(), loss, "{rare:#?}");
        assert_eq!(found(40_000).severity, Severity::Problem);
    }
}
