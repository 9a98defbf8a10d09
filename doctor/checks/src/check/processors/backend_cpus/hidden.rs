//! CPUs that domain 0 has and may not use.

use super::{BUSY, Facts};
use crate::check::{Judged, Verdicts, not_here};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{BusyCpus, Kind, float};
use ringway_evidence::parse::Counters;
use ringway_evidence::parse::cpus::cpu_list;
use ringway_evidence::parse::domains::VcpuTimes;
use ringway_evidence::{Gap, Quote, Text};

/// CPUs that commands name.
const NAMED_MAX: usize = 8;
const SETTING: &str = "etc/sysconfig/unplug-vcpus";
/// The name of the setting in that file.
const COUNT: &str = "NR_DOMAIN0_VCPUS=";

/// CPUs of domain 0: the number of all, and of those that it uses.
#[derive(Clone)]
struct Cpus {
    all: usize,
    online: usize,
    quotes: Vec<Quote>,
}

pub(super) fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    if facts.kind.kind != Kind::XenDom0 {
        return not_here("no domain 0");
    }
    let down = taken_down(facts)?;
    // An old host has no xl.
    let known = unplugged(facts)?.or_else(|| down.as_ref().map(|(cpus, _)| cpus.clone()));
    let Some(Cpus { all, online, mut quotes }) = known else { return Ok(()) };
    quotes.extend(down.iter().flat_map(|(cpus, _)| cpus.quotes.clone()));
    quotes.dedup();
    let (who, more, advice) = match (by_service(facts, all, online), &down) {
        (Some(service), _) => service,
        (None, Some((_, down))) => (" by its kernel".to_owned(), cmdline(facts), put_up(down)),
        (None, None) => {
            let text =
                "They were unplugged after the start (xl vcpu-set). If this was not intended:";
            (String::new(), None, Advice::by_hand(text, &[&format!("xl vcpu-set 0 {all}")]))
        }
    };
    let summary = format!("{} of the {all} CPUs of domain 0 are hidden from it{who}", all - online);
    let BusyCpus { count: busy, .. } = facts.busy.get()?;
    let is_full = *busy >= float(u64::try_from(online).unwrap_or(u64::MAX)) * BUSY;
    let severity = if is_full { Severity::Warning } else { Severity::Note };
    let finding = Finding::new(severity, "domain 0", summary)
        .cause(format!(
            "It has {online} CPUs for its backends' threads and its interrupts, of which {busy} \
             are busy; it could use the others as well.",
            busy = format_args!("{busy:.1}")
        ))
        .quote(quotes)
        .quote(more)
        .confidence(Confidence::High)
        .advise(advice);
    let count = |cpus: usize| u64::try_from(cpus).unwrap_or(u64::MAX);
    out.add([super::more(finding, is_full, (count(online), count(all)))]);
    Ok(())
}

/// Offline CPUs according to Xen, which shows them with the state `--p`.
fn unplugged(facts: &Facts) -> Result<Option<Cpus>, Gap> {
    let text = match facts.vcpus.get() {
        Err(Gap::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let times = VcpuTimes::parse(text)?;
    let all = times.domain(0).count();
    let online = times.domain(0).filter(|vcpu| vcpu.is_online).count();
    let first = times.domain(0).find(|vcpu| !vcpu.is_online);
    Ok(first.map(|first| Cpus { all, online, quotes: vec![text.quote(first.line)] }))
}

/// CPUs that are present but offline in the kernel. Those that Xen removed are not present.
fn taken_down(facts: &Facts) -> Result<Option<(Cpus, Vec<usize>)>, Gap> {
    let list = |text: &Text| {
        let cpus = cpu_list(text.value());
        let cpus = cpus.ok_or_else(|| text.unreadable(Some(1), "expected a list of CPUs"))?;
        Ok((cpus, text.quote(1)))
    };
    let (present, online) = match (facts.present.get(), facts.online.get()) {
        (Err(Gap::Missing { .. }), _) | (_, Err(Gap::Missing { .. })) => return Ok(None),
        (present, online) => (list(present?)?, list(online?)?),
    };
    let is_down = |cpu: &usize| !online.0.contains(cpu);
    let down: Vec<usize> = present.0.iter().copied().filter(is_down).collect();
    let quotes = vec![present.1, online.1];
    let cpus = Cpus { all: present.0.len(), online: present.0.len() - down.len(), quotes };
    Ok((!down.is_empty()).then_some((cpus, down)))
}

/// Whether the service takes CPUs offline: its name, the line that shows it, and what undoes it.
fn by_service(facts: &Facts, all: usize, online: usize) -> Option<(String, Option<Quote>, Advice)> {
    let setting = facts.unplug.ok()?;
    let is_it = |line: &str| line.trim().starts_with(COUNT);
    let wanted = setting.lines().find_map(|(_, line)| line.trim().strip_prefix(COUNT))?;
    let wanted: usize = wanted.trim_matches(['"', '\'']).parse().ok()?;
    if wanted != online {
        return None;
    }
    let service = if facts.service.ok().is_some() { "" } else { ", whose service is not there" };
    let text = format!(
        "At each start the service unplug-vcpus removes all but {online} (XCP 1.0, XenServer 5.6 \
         FP1 and 6.0). Its init script can only remove CPUs: for more, set the file and restart, \
         or plug CPUs in for now. Later versions only have dom0_max_vcpus={all} on Xen's command \
         line: /opt/xensource/libexec/xen-cmdline --set-xen dom0_max_vcpus={all}."
    );
    let set = format!("sed -i 's/^{COUNT}.*/{COUNT}{all}/' /{SETTING}");
    let now = format!("xl vcpu-set 0 {all}");
    let advice = Advice::by_hand(text, &[&set, &now]);
    Some((format!(" by /{SETTING}{service}"), setting.quote_where(is_it), advice))
}

fn put_up(down: &[usize]) -> Advice {
    let up = |cpu: &usize| format!("echo 1 > /sys/devices/system/cpu/cpu{cpu}/online");
    let commands: Vec<String> = down.iter().take(NAMED_MAX).map(up).collect();
    Advice::by_hand(
        "Domain 0 has them, and its kernel does not use them: maxcpus= is on its command line, or \
         an administrator took them offline. If this was not intended:",
        &commands.iter().map(String::as_str).collect::<Vec<_>>(),
    )
}

fn cmdline(facts: &Facts) -> Option<Quote> {
    let limits = |line: &str| line.split_whitespace().any(|word| word.starts_with("maxcpus="));
    facts.cmdline.ok()?.quote_where(limits)
}
