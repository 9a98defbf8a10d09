//! D17: irqbalance runs, and the interrupts of the network stay where they are.

use crate::check::{Check, Group, Judged, Verdicts, placing, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{
    Basis, Irqbalance, IrqbalancePackage, NetIrq, NetIrqs, Tried, float, share, sum,
};
use ringway_evidence::facts;
use ringway_evidence::parse::cpus::cpu_list;

pub(crate) const CHECK: Check = Check {
    id: "D17",
    slug: "irqbalance",
    title: "irqbalance runs but balances nothing",
    group: Group::Processors,
    sources: &["throughput-guide:irqbalance", "throughput-guide:irqbalance-install"],
    explanation: include_str!("irqbalance.txt"),
    absent: "nothing to balance",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        irqs: NetIrqs,
        daemon: Tried<Irqbalance>,
        package: Tried<IrqbalancePackage>,
    }
}

const GAIN: &str = "about 16 % (throughput guide), much less than from queues and offloads";

/// Share of the interrupts on one CPU from which nothing is balanced.
const SHARE_MIN: f64 = 0.9;
/// Network interrupts per second from which there is something to balance.
const RATE_MIN: f64 = 500.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.irqs.span;
    let cpus = &span.after.cpus;
    let irqs: Vec<NetIrq<'_>> = facts.irqs.all();
    let busy: Vec<&NetIrq<'_>> =
        irqs.iter().filter(|irq| irq.counts.iter().any(|count| *count > 0)).collect();
    if cpus.len() < 2 || busy.len() < 2 {
        return Ok(());
    }
    let per_cpu = |column: usize| sum(busy.iter().map(|irq| &irq.counts[column]));
    let counts: Vec<u64> = (0..cpus.len()).map(per_cpu).collect();
    let total = sum(&counts);
    let (column, most) =
        counts.iter().enumerate().max_by_key(|(_, many)| **many).unwrap_or((0, &0));
    let concentrated = share(*most, total);
    if concentrated < SHARE_MIN || float(total) / span.seconds < RATE_MIN {
        let summary =
            format!("at most {:.0} % of the interrupts are on one CPU", concentrated * 100.0);
        out.well(summary, busy.first().map(|irq| span.text.quote(irq.row.line)));
        return Ok(());
    }
    let cpu = cpus[column];
    let quotes = busy.iter().take(QUOTES_MAX).map(|irq| span.text.quote(irq.row.line));
    let Some(daemon) = line(facts.daemon.get()?) else {
        out.add([not_running().quote(quotes)]);
        return Ok(());
    };
    let pinned = busy.iter().filter(|irq| is_pinned(facts, irq.irq)).count();
    let summary = format!(
        "irqbalance runs, but {:.0} % of the network interrupts arrive on CPU {cpu}",
        concentrated * 100.0
    );
    let cause = if pinned == busy.len() {
        "Each of them may arrive on one CPU only, where irqbalance or an administrator put it."
    } else {
        "It does not recognize them: some versions do not know Xen's interrupts by the names that \
         kernels give them (\"xen-dyn -event\", \"xen-dyn-lateeoi\"). Or its configuration \
         excludes them: see IRQBALANCE_ARGS and its banned CPUs."
    };
    let finding = Finding::new(Severity::Warning, "irqbalance", summary)
        .cause(cause)
        .quote([daemon])
        .quote(version(facts))
        .quote(quotes)
        .confidence(if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low })
        .gain(GAIN);
    let layout = facts.irqs.layout(irqs.iter().filter(|irq| irq.came()), cpus);
    out.add([advise(finding, placing(&facts.irqs, &layout, &irqs))]);
    Ok(())
}

/// D03 covers the effect; this is only a way to fix it.
fn not_running() -> Finding {
    Finding::new(Severity::Note, "irqbalance", "irqbalance does not run")
        .cause("It moves interrupts by their load. It is one way to spread them; D03 is another.")
        .gain(GAIN)
        .advise(Advice::by_hand(
            "Start it, unless interrupts were placed by hand. On old systems: service irqbalance \
             start.",
            &["systemctl enable --now irqbalance"],
        ))
}

/// The daemon's line, if it runs.
fn line(daemon: &Irqbalance) -> Option<Quote> {
    let (id, name) = daemon.0.as_ref()?;
    let file = format!("/proc/{id}/stat");
    Some(Quote { file, line: Some(1), text: format!("{id} ({name}) runs") })
}

fn is_pinned(facts: &Facts, irq: u32) -> bool {
    let cpus = facts.irqs.affinity(irq).and_then(|list| cpu_list(&list));
    cpus.is_some_and(|cpus| cpus.len() == 1)
}

/// The package's version, where a package manager knows it.
fn version(facts: &Facts) -> Option<Quote> {
    let IrqbalancePackage(text) = facts.package.ok()?;
    text.quote_where(|line| line.contains("irqbalance"))
}

fn advise(finding: Finding, changes: Vec<Change>) -> Finding {
    finding
        .advise(Advice::by_hand(
            "Stop it, or it undoes the next step; or use a version that recognizes these \
             interrupts.",
            &["systemctl disable --now irqbalance"],
        ))
        .advise(Advice::by_change(
            "Then place them by hand: each queue on a CPU near its card, both its interrupts \
             together (D16).",
            changes,
        ))
}
