//! D17: irqbalance runs, and the interrupts of the network stay where they are.

use super::{Check, Group, Looked, all_well, placing};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Change, Confidence, Finding, Severity};
use crate::host::{Basis, Host, NetIrq, Span, float, share, sum};
use crate::parse::cpus::cpu_list;
use crate::parse::interrupts::Interrupts;
use crate::parse::threads::Threads;

pub(super) const CHECK: Check = Check {
    id: "D17",
    title: "irqbalance runs and balances nothing",
    group: Group::Processors,
    sources: &["throughput-guide:irqbalance", "throughput-guide:irqbalance-install"],
    explanation: include_str!("../../explain/D17.md"),
    look: Some(look),
};

/// Share of the interrupts on one CPU from which nothing is balanced.
const SHARE_MIN: f64 = 0.9;
/// Network interrupts a second from which there is something to balance.
const RATE_MIN: f64 = 500.0;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;
const GAIN: &str = "about 16 % (throughput guide), much less than from queues and offloads";

fn look(host: &Host) -> Looked {
    let span: Span<Interrupts> = host.span("proc/interrupts")?;
    let cpus = &span.after.cpus;
    let irqs: Vec<NetIrq<'_>> = host.net_irqs(&span);
    let busy: Vec<&NetIrq<'_>> =
        irqs.iter().filter(|irq| irq.counts.iter().any(|count| *count > 0)).collect();
    if cpus.len() < 2 || busy.len() < 2 {
        return Err(Gap::NotHere("nothing to balance".to_owned()));
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
        return Ok(vec![all_well(summary, busy.first().map(|irq| span.text.quote(irq.row.line)))]);
    }
    let cpu = cpus[column];
    let quotes = busy.iter().take(QUOTES_MAX).map(|irq| span.text.quote(irq.row.line));
    let Some(daemon) = daemon(host)? else {
        // What that does is D03's matter; here it only is a way to mend it.
        let finding = Finding::new(Severity::Note, "irqbalance", "irqbalance does not run")
            .cause("It moves interrupts by their load; it is one way to spread them, D03 another.")
            .quote(quotes)
            .gain(GAIN)
            .advise(Advice::by_hand(
                "Start it, unless interrupts were placed by hand. Then: service irqbalance start.",
                &["systemctl enable --now irqbalance"],
            ));
        return Ok(vec![finding]);
    };
    let pinned = busy.iter().filter(|irq| is_pinned(host, irq.irq)).count();
    let summary = format!(
        "irqbalance runs, and {:.0} % of the network interrupts come on CPU {cpu}",
        concentrated * 100.0
    );
    let cause = if pinned == busy.len() {
        "Each of them may come on one CPU only, and that is where irqbalance or somebody left it."
    } else {
        "It does not take them for what they are: some versions do not know Xen's interrupts by \
         the names that kernels give them (\"xen-dyn -event\", \"xen-dyn-lateeoi\"). Or it was \
         told to leave them alone: see IRQBALANCE_ARGS and its banned CPUs."
    };
    let finding = Finding::new(Severity::Warning, "irqbalance", summary)
        .cause(cause)
        .quote([daemon])
        .quote(version(host))
        .quote(quotes)
        .confidence(if span.basis == Basis::Samples { Confidence::High } else { Confidence::Low })
        .gain(GAIN);
    let layout = host.irq_layout(irqs.iter().filter(|irq| irq.came()), cpus);
    Ok(vec![advise(finding, placing(host, &layout, &irqs))])
}

/// The daemon's line. Without knowledge of threads nobody can tell.
fn daemon(host: &Host) -> Result<Option<Quote>, Gap> {
    let text = host.latest("threads")?;
    // For its refusal of what is torn.
    let threads = <Threads as crate::parse::Counters>::parse(&text)?;
    let daemon = threads.threads.values().find(|thread| thread.name == "irqbalance");
    Ok(daemon.map(|thread| {
        let text = format!("{} ({}) runs", thread.id, thread.name);
        Quote { file: format!("/proc/{}/stat", thread.id), line: Some(1), text }
    }))
}

fn is_pinned(host: &Host, irq: u32) -> bool {
    let cpus = host.irq_affinity(irq).and_then(|list| cpu_list(&list));
    cpus.is_some_and(|cpus| cpus.len() == 1)
}

/// The package's version, where a package manager knows it.
fn version(host: &Host) -> Option<Quote> {
    let of_debian = host.command(&["dpkg-query", "-W", "irqbalance"]);
    let text = of_debian.or_else(|_| host.command(&["rpm", "-q", "irqbalance"])).ok()?;
    text.quote_where(|line| line.contains("irqbalance"))
}

fn advise(finding: Finding, changes: Vec<Change>) -> Finding {
    finding
        .advise(Advice::by_hand(
            "Stop it, or it undoes what follows; or use a version that knows these interrupts.",
            &["systemctl disable --now irqbalance"],
        ))
        .advise(Advice::by_change(
            "Then place them by hand: each queue on a CPU near its card, both its interrupts \
             together (D16).",
            changes,
        ))
}
