//! D24: more backend threads at work than CPUs to run them, or CPUs that domain 0 may not use.

mod hidden;

use super::{Check, Group, Looked, all_well, both, fewer_queues};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{BackendThread, Basis, Host, Kind, Served, float};
use crate::parse::domains::XlInfo;

pub(super) const CHECK: Check = Check {
    id: "D24",
    title: "more backend threads than CPUs",
    group: Group::Processors,
    sources: &[
        "throughput-guide:unplug-vcpus",
        "throughput-guide:netback-groups",
        "multi-queue-study:guest-cpus",
    ],
    explanation: include_str!("../../explain/D24.md"),
    look: Some(look),
};

/// CPUs from which a thread is at work.
const AT_WORK: f64 = 0.05;
/// Part of the host's CPUs from which threads wait for each other.
const BUSY: f64 = 0.8;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 3;

fn look(host: &Host) -> Looked {
    both(threads(host), hidden::look(host), "domain 0")
}

fn threads(host: &Host) -> Looked {
    let (basis, threads) = host.backend_threads()?;
    if threads.is_empty() {
        return Err(Gap::NotHere("no thread of a kernel backend".to_owned()));
    }
    let cpus = host.online_cpus()?;
    let at_work: Vec<&BackendThread> = threads.iter().filter(|one| one.busy >= AT_WORK).collect();
    let count = u64::try_from(at_work.len()).unwrap_or(u64::MAX);
    if count <= cpus {
        let groups = threads.iter().filter(|one| one.of == Served::Group).count();
        if let Some(finding) = few_groups(groups, cpus, &threads) {
            return Ok(vec![finding]);
        }
        let quote = threads.first().map(|one| one.quote.clone());
        return Ok(vec![all_well(
            format!("{count} backend threads at work on {cpus} CPUs"),
            quote,
        )]);
    }
    let (busy, quote) = host.busy_cpus()?;
    let is_full = busy >= float(cpus) * BUSY;
    let severity = if is_full { Severity::Warning } else { Severity::Note };
    let summary =
        format!("{count} backend threads take turns on {cpus} CPUs, of which {busy:.1} are busy");
    let cpu_quote = host.latest("proc/stat")?.quote_where(|line| line.starts_with("cpu "));
    let finding = Finding::new(severity, "backend threads", summary)
        .cause(
            "A queue more brings a thread more and no CPU: threads only take turns, and switching \
             costs. Throughput does not rise with queues from here on, and may fall. The \
             multi-queue study had 8 CPUs for 8 queues; its guest had 4, and was the limit.",
        )
        .quote(at_work.iter().take(QUOTES_MAX).map(|one| one.quote.clone()))
        .quote([quote])
        .quote(cpu_quote)
        .confidence(if basis == Basis::Samples { Confidence::Medium } else { Confidence::Low });
    Ok(vec![advise(finding, host, count, cpus)])
}

/// The backend of 2011: four threads, however many CPUs there are.
fn few_groups(groups: usize, cpus: u64, threads: &[BackendThread]) -> Option<Finding> {
    let groups = u64::try_from(groups).unwrap_or(u64::MAX);
    if groups == 0 || groups >= cpus {
        return None;
    }
    let summary = format!("{groups} backend threads for {cpus} CPUs");
    let quotes: Vec<Quote> = threads.iter().take(QUOTES_MAX).map(|one| one.quote.clone()).collect();
    Some(
        Finding::new(Severity::Note, "backend threads", summary)
            .cause("There are min(4, CPUs) threads unless more are asked for.")
            .quote(quotes)
            .advise(Advice::by_hand(
                format!(
                    "In /boot/extlinux.conf, behind console=hvc0: \
                     xen-netback.netback_max_groups={cpus}, and a restart. Since Linux \
                     3.12 each vif has a thread, since 3.16 each queue."
                ),
                &[],
            )),
    )
}

fn advise(finding: Finding, host: &Host, threads: u64, cpus: u64) -> Finding {
    if host.kind().kind != Kind::XenDom0 {
        return finding.advise(Advice::by_hand(
            "Fewer queues for guests with little traffic: in the guest with ethtool -L, or in its \
             interface's XML.",
            &[],
        ));
    }
    // Not more than there are; who says nothing is asked by hand.
    let real = real_cpus(host);
    let wanted = real.map_or(threads, |real| threads.min(real));
    let fewer = Advice::by_change(
        "Or fewer queues for each vif, as many as domain 0 can serve; they take it when they \
         connect anew.",
        fewer_queues(host, "xen_netback", cpus.min(4)),
    );
    if wanted <= cpus {
        return finding.advise(fewer);
    }
    finding
        .advise(Advice::by_hand(
            format!(
                "More CPUs for domain 0, up to what it was started with; for good \
                 dom0_max_vcpus={wanted} on Xen's command line and a restart. Then: \
                 /etc/sysconfig/unplug-vcpus, whose init script was enough to decrease."
            ),
            &[&format!("xl vcpu-set 0 {wanted}")],
        ))
        .advise(fewer)
}

fn real_cpus(host: &Host) -> Option<u64> {
    let text = host.command(&["xl", "info"]).ok()?;
    XlInfo::parse(&text).ok()?.get("nr_cpus")?.0.parse().ok()
}
