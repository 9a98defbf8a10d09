//! D24: more busy backend threads than CPUs to run them, or CPUs that domain 0 may not use.

#[path = "backend_cpus/hidden.rs"]
mod hidden;

use crate::check::{Check, Group, Judged, Verdicts, fewer_queues, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{
    BackendThread, BackendThreads, Basis, BusyCpus, CommandLine, CpuLines, CpusOnline, CpusPresent,
    HostKind, Kind, ModuleQueues, OnlineCpus, Served, Tried, UnplugService, UnplugSetting, XenInfo,
    XenVcpus, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::domains::XlInfo;
use ringway_model::contention::gain;

pub(crate) const CHECK: Check = Check {
    id: "D24",
    slug: "backend-cpus",
    title: "there are more backend threads than CPUs",
    group: Group::Processors,
    sources: &[
        "throughput-guide:unplug-vcpus",
        "throughput-guide:netback-groups",
        "multi-queue-study:guest-cpus",
    ],
    explanation: include_str!("backend_cpus.txt"),
    absent: "no backend and no domain 0",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        backend: Tried<BackendThreads>,
        cpus: Tried<OnlineCpus>,
        busy: Tried<BusyCpus>,
        lines: Tried<CpuLines>,
        kind: HostKind,
        xen: Tried<XenInfo>,
        vcpus: Tried<XenVcpus>,
        present: Tried<CpusPresent>,
        online: Tried<CpusOnline>,
        unplug: Tried<UnplugSetting>,
        service: Tried<UnplugService>,
        cmdline: Tried<CommandLine>,
        modules: ModuleQueues,
    }
}

/// CPU share from which a thread is at work.
const AT_WORK: f64 = 0.05;
/// Fraction of the host's CPUs from which threads wait for each other.
const BUSY: f64 = 0.8;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 3;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let threads = Verdicts::part("no kernel backend thread", |out| threads(facts, out));
    let hidden = Verdicts::part("domain 0 uses all its CPUs", |out| hidden::judge(facts, out));
    out.both(threads, hidden, "domain 0")
}

fn threads(facts: &Facts, out: &mut Verdicts) -> Judged {
    let BackendThreads { basis, threads } = facts.backend.get()?;
    if threads.is_empty() {
        return Ok(());
    }
    let OnlineCpus(cpus) = *facts.cpus.get()?;
    let at_work: Vec<&BackendThread> = threads.iter().filter(|one| one.busy >= AT_WORK).collect();
    let count = u64::try_from(at_work.len()).unwrap_or(u64::MAX);
    if count <= cpus {
        let groups = threads.iter().filter(|one| one.of == Served::Group).count();
        if let Some(finding) = few_groups(groups, cpus, threads) {
            out.add([finding]);
            return Ok(());
        }
        let quote = threads.first().map(|one| one.quote.clone());
        out.well(format!("{count} busy backend threads on {cpus} CPUs"), quote);
        return Ok(());
    }
    let BusyCpus { count: busy, quote } = facts.busy.get()?;
    let is_full = *busy >= float(cpus) * BUSY;
    let severity = if is_full { Severity::Warning } else { Severity::Note };
    let summary =
        format!("{count} backend threads take turns on {cpus} CPUs, of which {busy:.1} are busy");
    let cpu_quote = facts.lines.get()?.quote_where(|line| line.starts_with("cpu "));
    let finding = Finding::new(severity, "backend threads", summary)
        .cause(
            "Another queue adds a thread but no CPU: threads only take turns, and switching costs \
             time. From here on throughput does not rise with queues, and may fall. The \
             multi-queue study had 8 CPUs for 8 queues; its guest had 4, and was the limit.",
        )
        .quote(at_work.iter().take(QUOTES_MAX).map(|one| one.quote.clone()))
        .quote([quote.clone()])
        .quote(cpu_quote)
        .confidence(if *basis == Basis::Samples { Confidence::Medium } else { Confidence::Low });
    out.add([advise(finding, facts, count, (cpus, is_full))]);
    Ok(())
}

/// The backend of 2011: four threads, regardless of the number of CPUs.
fn few_groups(groups: usize, cpus: u64, threads: &[BackendThread]) -> Option<Finding> {
    let groups = u64::try_from(groups).unwrap_or(u64::MAX);
    if groups == 0 || groups >= cpus {
        return None;
    }
    let summary = format!("{groups} backend threads for {cpus} CPUs");
    let quotes: Vec<Quote> = threads.iter().take(QUOTES_MAX).map(|one| one.quote.clone()).collect();
    Some(
        Finding::new(Severity::Note, "backend threads", summary)
            .cause("By default there are min(4, CPUs) threads.")
            .quote(quotes)
            .advise(Advice::by_hand(
                format!(
                    "In /boot/extlinux.conf, after console=hvc0: \
                     xen-netback.netback_max_groups={cpus}, and a restart. Since Linux 3.12 each \
                     vif has a thread, since 3.16 each queue."
                ),
                &[],
            )),
    )
}

fn advise(finding: Finding, facts: &Facts, threads: u64, (cpus, is_full): (u64, bool)) -> Finding {
    if facts.kind.kind != Kind::XenDom0 {
        return finding.advise(Advice::by_hand(
            "Use fewer queues for guests with little traffic: ethtool -L in the guest, or its \
             interface's XML.",
            &[],
        ));
    }
    // Not more than exist; if their number is unknown, the advice is by hand.
    let real = real_cpus(facts);
    let wanted = real.map_or(threads, |real| threads.min(real));
    let fewer = Advice::by_change(
        "Or use fewer queues for each vif, as many as domain 0 can serve. The change takes effect \
         when the vifs reconnect.",
        fewer_queues(&facts.modules, "xen_netback", cpus.min(4)),
    );
    if wanted <= cpus {
        return finding.advise(fewer);
    }
    more(finding, is_full, (cpus, wanted))
        .advise(Advice::by_hand(
            format!(
                "Give domain 0 more CPUs, up to the number that it was started with; permanently \
                 with dom0_max_vcpus={wanted} on Xen's command line and a restart. On old \
                 versions: /etc/sysconfig/unplug-vcpus; its init script is enough to reduce the \
                 number."
            ),
            &[&format!("xl vcpu-set 0 {wanted}")],
        ))
        .advise(fewer)
}

/// What more CPUs gain, where those that there are limit: each thread uses one at most.
fn more(finding: Finding, is_full: bool, (cpus, wanted): (u64, u64)) -> Finding {
    match is_full && cpus > 0 {
        true => finding.forecast(gain(float(cpus), float(wanted)), "if these CPUs are the limit"),
        false => finding,
    }
}

fn real_cpus(facts: &Facts) -> Option<u64> {
    XlInfo::parse(facts.xen.ok()?).ok()?.get("nr_cpus")?.0.parse().ok()
}
