//! D05: a thread of a kernel backend uses all of a CPU.

use crate::check::{Check, Group, Judged, Verdicts, more_queues, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    BackendThread, BackendThreads, Basis, BusyCpus, FULL, ModuleQueues, OnlineCpus, Served, Tried,
};
use ringway_evidence::facts;
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D05",
    slug: "full-backend-thread",
    title: "a backend thread is full",
    group: Group::Processors,
    sources: &[
        "throughput-guide:netback-full",
        "throughput-guide:spread-vifs",
        "throughput-guide:cpu-bound",
        "throughput-guide:netback-threads",
        "throughput-guide:netback-groups",
    ],
    explanation: include_str!("full_backend_thread.txt"),
    absent: "no kernel backend thread",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        backend: BackendThreads,
        busy: Tried<BusyCpus>,
        cpus: Tried<OnlineCpus>,
        modules: ModuleQueues,
    }
}

/// CPUs that a host may use beside its backend threads if these are the limit: with one of them
/// domain 0 is at 120 % give or take 20 (`throughput-guide:netback-full`).
const OTHERS_MAX: f64 = 0.4;
/// Lines that a finding quotes.
const QUOTES_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let BackendThreads { basis, threads } = &facts.backend;
    let Some(fullest) = threads.first() else { return Ok(()) };
    let percent = fullest.busy * 100.0;
    let full: Vec<&BackendThread> = threads.iter().filter(|one| one.busy >= FULL).collect();
    if full.is_empty() {
        let summary = format!("backend threads use at most {percent:.0} % of a CPU");
        out.well(summary, Some(fullest.quote.clone()));
        return Ok(());
    }
    let names: Vec<&str> =
        full.iter().take(QUOTES_MAX).map(|one| one.thread.name.as_str()).collect();
    let summary = match full.len() {
        1 => format!("{} uses {percent:.0} % of a CPU", names.join(", ")),
        many => format!("{many} of {} backend threads are full ({} ...)", threads.len(), names[0]),
    };
    let confirmed = confirm(facts, threads.iter().map(|one| one.busy).sum());
    let severity = match (&confirmed, basis) {
        (Confirmed::Yes(_), Basis::Samples) => Severity::Problem,
        _ => Severity::Warning,
    };
    let confidence = match (&confirmed, basis) {
        (Confirmed::Yes(_), Basis::Samples) => Confidence::High,
        (Confirmed::Unread(_), Basis::Samples) => Confidence::Medium,
        _ => Confidence::Low,
    };
    let (cause, quote) = confirmed.cause();
    let finding = Finding::new(severity, names.join(", "), summary)
        .cause(cause)
        .quote(full.iter().take(QUOTES_MAX).map(|one| one.quote.clone()))
        .quote(quote)
        .confidence(confidence)
        .gain(
            "every test of the throughput guide ended at a full CPU, so relieving it raises \
             throughput",
        );
    out.add([advise(finding, facts, &full[0].of)]);
    Ok(())
}

/// Whether the load of the rest of the host confirms the finding.
enum Confirmed {
    Yes(Quote),
    /// No: this many CPUs do other work.
    No(f64, Quote),
    Unread(Gap),
}

fn confirm(facts: &Facts, backend: f64) -> Confirmed {
    match facts.busy.get() {
        Ok(BusyCpus { count, quote }) if count - backend <= OTHERS_MAX => {
            Confirmed::Yes(quote.clone())
        }
        Ok(BusyCpus { count, quote }) => Confirmed::No(count - backend, quote.clone()),
        Err(gap) => Confirmed::Unread(gap),
    }
}

impl Confirmed {
    fn cause(self) -> (String, Option<Quote>) {
        let limit = "The thread passes frames to guests one after the other, and has no time left.";
        match self {
            Confirmed::Yes(quote) => (limit.to_owned(), Some(quote)),
            Confirmed::No(others, quote) => {
                let percent = others * 100.0;
                let cause = format!(
                    "{limit} Not confirmed: other work uses {percent} % of a CPU in addition to \
                     the backend, so find out first what that is.",
                    percent = format_args!("{percent:.0}")
                );
                (cause, Some(quote))
            }
            Confirmed::Unread(gap) => {
                (format!("{limit} Not confirmed by the whole host's load: {gap}."), None)
            }
        }
    }
}

fn advise(finding: Finding, facts: &Facts, of: &Served) -> Finding {
    let finding = finding.advise(Advice::by_hand(
        "Offloads first, of the card, the vif and the guest: fewer and larger frames.",
        &["ringway doctor explain D13"],
    ));
    match of {
        Served::Group => finding
            .advise(Advice::by_hand(
                "Spread the vifs evenly over the threads: recreate those with the most traffic, \
                 one after the other (D06).",
                &["ringway doctor explain D06"],
            ))
            .advise(Advice::by_hand(
                "Use more threads: by default there are min(4, CPUs of domain 0). In \
                 /boot/extlinux.conf, after console=hvc0, xen-netback.netback_max_groups=12, with \
                 as many CPUs for domain 0 (D24), and a restart. A kernel of 3.12 or later has a \
                 thread for each vif instead, and since 3.16 for each queue.",
                &[],
            )),
        Served::Vif(_) => finding.advise(Advice::by_change(
            "Use more queues, each with its own thread, up to the number of domain 0's CPUs. The \
             change takes effect when a vif reconnects (D14). xen-netback.netback_max_groups is \
             now max_queues.",
            facts.cpus.ok().and_then(|cpus| more_queues(&facts.modules, "xen_netback", cpus.0)),
        )),
        Served::Vhost => finding.advise(Advice::by_hand(
            "Use more queues, each with its own thread: <driver name='vhost' queues='8'/> in the \
             interface's XML; restart the guest, and enable them in it with ethtool -L.",
            &[],
        )),
    }
}
