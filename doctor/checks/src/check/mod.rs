//! The catalogue: one file per check.

pub mod contradiction;
mod datapath;
mod links;
mod processors;
mod queues;
mod tcp;

pub use queues::uneven_load::BYTES_PER_SECOND_MIN;
pub(crate) use tcp::near_bbr::limited_by_another;

use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::fact::{
    CongestionControls, Fact, Host, HostKind, HostName, Layout, ListsInterfaces, ModuleQueues,
    Namespace, NetIrq, NetIrqs, Remarks, Taken, Tried,
};
use ringway_evidence::{Gap, Netns, Piece, Quote};

/// One problem to check for.
pub struct Check {
    /// Such as `D18`. Stable: scripts and reports name it.
    pub id: &'static str,
    /// Its name as a word, such as `backlog`: that of its source file.
    pub slug: &'static str,
    /// The problem that it finds.
    pub title: &'static str,
    /// The group under which it is shown.
    pub group: Group,
    /// The places of sources that it covers, by their ids in `docs/sources.toml`.
    pub sources: &'static [&'static str],
    /// Background, how to verify by hand, what to do, with citations as `{ID}`: the text of `doctor
    /// explain`, from the file beside its own.
    pub explanation: &'static str,
    /// What a host lacks if the check does not apply to it.
    pub absent: &'static str,
    /// The facts that it needs, and its judgement of them.
    pub rule: Rule,
}

/// A pure function from facts to verdicts, and the evidence that the facts are read from.
pub struct Rule {
    /// The pieces that the facts are read from.
    pub pieces: &'static [Piece],
    judge: fn(&Host, &mut Verdicts) -> Judged,
}

/// The result of a rule: a gap says why it cannot decide. Findings before the gap are dropped,
/// because the doctor does not guess.
type Judged = Result<(), Gap>;

/// Declares a rule: the type of its facts, and its function.
macro_rules! rule {
    ($facts:ty, $judge:path) => {
        $crate::check::Rule {
            pieces: <$facts as ringway_evidence::fact::Fact>::PIECES,
            judge: |host, verdicts| $judge(&host.fact::<$facts>()?, verdicts),
        }
    };
}
use rule;

/// The result of a check on one host.
#[derive(Debug, Default)]
pub struct Verdicts {
    findings: Vec<Finding>,
    well: Option<Finding>,
}

impl Verdicts {
    /// Adds what was found.
    fn add(&mut self, found: impl IntoIterator<Item = Finding>) {
        self.findings.extend(found);
    }

    /// Sets the text for the case that nothing is found, with a line that shows it. For a check of
    /// several things, the last call counts.
    fn well(&mut self, summary: impl Into<String>, quote: Option<Quote>) {
        self.well = Some(all_well(summary, quote));
    }

    /// Adds that a part of the evidence could not be read.
    fn unread(&mut self, subject: impl Into<String>, gap: &Gap) {
        self.add([Finding::gap(subject, gap)]);
    }

    /// A fact that a part of the check needs. Where it exists but could not be read, this adds
    /// that, because the other parts are not the whole.
    fn tried<'a, T>(&mut self, fact: &'a Tried<T>, subject: &str) -> Option<&'a T> {
        match fact.get() {
            Ok(fact) => Some(fact),
            Err(gap) => {
                self.add((!gap.is_not_there()).then(|| Finding::gap(subject, &gap)));
                None
            }
        }
    }

    /// The result of a check that compares samples where there is one only: it has judged nothing
    /// that would not be a finding. `what` is named with its verb, such as `floods are`.
    fn one_sample(&self, what: &str) -> Judged {
        match self.findings.is_empty() {
            true => not_here(format!("{what} only known since the boot")),
            false => Ok(()),
        }
    }

    /// Adds the results of two parts of a check. If one could not be read, that is reported beside
    /// the findings of the other. The check does not apply to a host only if neither part does.
    fn both(&mut self, first: CheckResult, second: CheckResult, subject: &str) -> Judged {
        self.add(both(first, second, subject)?);
        Ok(())
    }

    /// The result of a part of a check on its own.
    fn part(absent: &str, judge: impl FnOnce(&mut Verdicts) -> Judged) -> CheckResult {
        let mut verdicts = Verdicts::default();
        judge(&mut verdicts)?;
        verdicts.finish(absent)
    }

    fn finish(self, absent: &str) -> CheckResult {
        match (self.findings.is_empty(), self.well) {
            (false, _) => Ok(self.findings),
            (true, Some(well)) => Ok(vec![well]),
            (true, None) => not_here(absent),
        }
    }
}

/// The findings of a check; on a healthy host only what is in order.
type CheckResult = Result<Vec<Finding>, Gap>;

/// Reports that a check does not apply to this host.
fn not_here<T>(absent: impl Into<String>) -> Result<T, Gap> {
    Err(Gap::NotHere(absent.into()))
}

/// Losses that are no chance, however slow, if they are most of the whole.
const FEW: u64 = 2;
const MOST: f64 = 0.5;

/// Groups under which findings are shown, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// What frames pass through: drivers, switches, their versions.
    Datapath,
    /// What does the work: CPUs, interrupts, threads.
    Processors,
    /// How the work is spread.
    Queues,
    /// Cards, offloads, links.
    Links,
    /// TCP and the limits of sockets.
    Tcp,
}

impl Group {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Group::Datapath => "Datapath",
            Group::Processors => "Processors and interrupts",
            Group::Queues => "Queues",
            Group::Links => "Links and offloads",
            Group::Tcp => "TCP and limits",
        }
    }
}

/// All checks, by their ids.
pub static CATALOGUE: &[Check] = &[
    datapath::emulated_card::CHECK,
    processors::full_guest_cpu::CHECK,
    processors::crowded_interrupts::CHECK,
    processors::crowded_softirqs::CHECK,
    processors::full_backend_thread::CHECK,
    queues::uneven_load::CHECK,
    queues::hot_interface::CHECK,
    links::packet_length::CHECK,
    links::full_wire::CHECK,
    queues::few_flows::CHECK,
    tcp::small_window::CHECK,
    tcp::late_completions::CHECK,
    links::offloads::CHECK,
    queues::unused_queues::CHECK,
    queues::queue_count::CHECK,
    queues::queue_interrupts::CHECK,
    processors::irqbalance::CHECK,
    processors::backlog::CHECK,
    tcp::harmful_settings::CHECK,
    datapath::old_switch::CHECK,
    datapath::switch_misses::CHECK,
    datapath::iommu::CHECK,
    datapath::grants::CHECK,
    processors::backend_cpus::CHECK,
    processors::hypercalls::CHECK,
    tcp::near_bbr::CHECK,
    processors::stolen_time::CHECK,
    processors::placement::CHECK,
    links::rings::CHECK,
    links::limits::CHECK,
    tcp::conntrack::CHECK,
    queues::starvation::CHECK,
    tcp::losses::CHECK,
    processors::throttled::CHECK,
    processors::crowded_out::CHECK,
    processors::pressure::CHECK,
    links::link_errors::CHECK,
    links::queue_drops::CHECK,
    links::next_hops::CHECK,
    links::route_limits::CHECK,
    links::same_subnet::CHECK,
    datapath::bridges::CHECK,
    datapath::rules::CHECK,
    tcp::stuck::CHECK,
    tcp::path_queue::CHECK,
    tcp::held_connections::CHECK,
    tcp::full_sockets::CHECK,
    tcp::ports::CHECK,
    datapath::drop_reasons::CHECK,
    processors::power_saving::CHECK,
    links::pauses::CHECK,
    links::bonds::CHECK,
    links::duplicates::CHECK,
    datapath::ovn_ports::CHECK,
];

/// A check by its id, in any case of letters, or by its slug.
pub fn find(id: &str) -> Option<&'static Check> {
    CATALOGUE.iter().find(|check| check.is_called(id))
}

/// All pieces that checks and the report read, and that must be collected from a host.
pub fn pieces() -> Vec<Piece> {
    let of_checks = CATALOGUE.iter().flat_map(|check| check.rule.pieces);
    let of_report = [
        HostKind::PIECES,
        HostName::PIECES,
        ListsInterfaces::PIECES,
        Namespace::PIECES,
        Remarks::PIECES,
        Taken::PIECES,
    ];
    of_checks.chain(of_report.into_iter().flatten()).copied().collect()
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It ran.
    Ran,
    /// None of its evidence could be read.
    Unread(String),
    /// It does not apply, because this host lacks its subject.
    NotHere(String),
}

impl Check {
    /// Whether an id or a slug refers to it.
    pub fn is_called(&self, name: &str) -> bool {
        [self.id, self.slug].iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether its findings apply to the whole machine, in any network namespace.
    pub fn is_of_machine(&self) -> bool {
        // Its database is reached from every namespace.
        let is_of_ovn = self.id == datapath::ovn_ports::CHECK.id;
        self.group == Group::Processors || self.is_of_trace() || is_of_ovn
    }

    /// Whether it reports what the kernel says of drops, wherever they are.
    pub(crate) fn is_of_trace(&self) -> bool {
        self.id == datapath::drop_reasons::CHECK.id
    }

    /// Runs the check. Unreadable evidence becomes a finding that says so.
    pub fn run(&self, host: &Host) -> Vec<Finding> {
        self.outcome(host).0
    }

    /// Runs the check, and says how it ended.
    pub fn outcome(&self, host: &Host) -> (Vec<Finding>, Ended) {
        let mut findings = match Verdicts::part(self.absent, |out| (self.rule.judge)(host, out)) {
            Ok(findings) => findings,
            Err(Gap::NotHere(_)) if !lists_interfaces(host) => {
                let why = "there is no data on interfaces".to_owned();
                return (Vec::new(), Ended::Unread(why));
            }
            Err(Gap::NotHere(why)) => return (Vec::new(), Ended::NotHere(why)),
            Err(gap) => vec![Finding::gap(self.title, &gap)],
        };
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let advice = findings.iter_mut().flat_map(|finding| &mut finding.advice);
        advice.for_each(|advice| advice.leave_out(|knob| refuses(host, knob)));
        for finding in &mut findings {
            self.id.clone_into(&mut finding.check);
        }
        let is_unread = |one: &Finding| one.severity == Severity::Unknown;
        let ended = match findings.first() {
            Some(first) if findings.iter().all(is_unread) => Ended::Unread(first.summary.clone()),
            _ => Ended::Ran,
        };
        (findings, ended)
    }
}

fn lists_interfaces(host: &Host) -> bool {
    host.fact().is_ok_and(|ListsInterfaces(is_listed)| is_listed)
}

/// Why a setting cannot be changed where the evidence is from; `None` if it can, or if that is
/// unknown.
fn refuses(host: &Host, knob: &Knob) -> Option<String> {
    match knob.path() {
        Ok(path) => host.read_only(&path?),
        Err(_) => Some("its name is not safe in a command".to_owned()),
    }
}

/// The changes that move interrupts to the CPUs of a layout.
fn placing<'a>(
    known: &NetIrqs,
    layout: &Layout,
    irqs: impl IntoIterator<Item = &'a NetIrq<'a>>,
) -> Vec<Change> {
    let change = |irq: &NetIrq<'_>| {
        let cpu = layout.cpu_of(irq)?.to_string();
        let current = known.affinity(irq.irq);
        Change::replace(Knob::IrqAffinity { irq: irq.irq }, current, cpu)
    };
    irqs.into_iter().filter_map(change).collect()
}

/// Advice to use cubic for new connections, if the host has it and permits it.
fn use_cubic(controls: &CongestionControls, instead_of: &str, text: &str) -> Advice {
    let knob = Knob::Sysctl { name: "net.ipv4.tcp_congestion_control".to_owned() };
    if controls.may_use("cubic") {
        return Advice::by_change(
            text,
            Change::replace(knob, Some(instead_of.to_owned()), "cubic"),
        );
    }
    let command = knob.command("cubic");
    if controls.netns == Some(Netns::Other) {
        let text = format!(
            "{text} This network namespace may only use what the machine allows for all: on the \
             machine, add cubic to net.ipv4.tcp_allowed_congestion_control; then, in this \
             namespace: {command}."
        );
        return Advice::by_hand(text, &[]);
    }
    Advice::by_hand(format!("{text} Its module is not loaded."), &["modprobe tcp_cubic", &command])
}

/// The change that lets a module offer more queues to guests; `None` if it already does, or if its
/// number is unknown.
fn more_queues(modules: &ModuleQueues, module: &str, wanted: u64) -> Option<Change> {
    let (knob, current) = queues_of(modules, module)?;
    Change::raise(knob, current, wanted)
}

/// The change that makes it offer fewer.
fn fewer_queues(modules: &ModuleQueues, module: &str, wanted: u64) -> Option<Change> {
    let (knob, current) = queues_of(modules, module)?;
    Change::lower(knob, current, wanted)
}

fn queues_of(modules: &ModuleQueues, module: &str) -> Option<(Knob, u64)> {
    let knob = Knob::Parameter { module: module.to_owned(), name: "max_queues".to_owned() };
    Some((knob, modules.of(module).ok()?.number().ok()?))
}

fn both(first: CheckResult, second: CheckResult, subject: &str) -> CheckResult {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok([first, second].concat()),
        (other, Err(Gap::NotHere(_))) | (Err(Gap::NotHere(_)), other) => other,
        (Ok(mut found), Err(gap)) | (Err(gap), Ok(mut found)) => {
            found.push(Finding::gap(subject, &gap));
            Ok(found)
        }
        (Err(gap), Err(_)) => Err(gap),
    }
}

/// A finding that everything is in order, with a line that shows it.
fn all_well(summary: impl Into<String>, quote: Option<Quote>) -> Finding {
    Finding::new(Severity::Ok, "", summary).quote(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_part_could_not_read_is_reported_beside_what_the_other_found() {
        let found = || Ok(vec![all_well("fine", None)]);
        let absent = |why: &str| Err(Gap::NotHere(why.to_owned()));
        let torn = || Err(Gap::Missing { file: "f".to_owned(), why: "torn".to_owned() });
        assert_eq!(both(found(), absent("x"), "s"), found());
        assert_eq!(both(absent("x"), found(), "s"), found());
        assert_eq!(both(absent("x"), absent("y"), "s"), absent("x"));
        assert_eq!(both(torn(), absent("x"), "s"), torn());
        assert_eq!(both(absent("x"), torn(), "s"), torn());
        for result in [both(found(), torn(), "s"), both(torn(), found(), "s")] {
            let severities: Vec<Severity> =
                result.expect("found").iter().map(|one| one.severity).collect();
            assert_eq!(severities, [Severity::Ok, Severity::Unknown]);
        }
    }

    #[test]
    fn checks_are_in_order_and_explained() {
        let ids: Vec<String> = (1..=CATALOGUE.len()).map(|id| format!("D{id:02}")).collect();
        assert!(CATALOGUE.iter().map(|check| check.id).eq(ids.iter().map(String::as_str)));
        for check in CATALOGUE {
            for part in ["Background", "Verify by hand", "What to do"] {
                assert!(check.explanation.contains(part), "{} has no {part:?}", check.id);
            }
            let named = CATALOGUE.iter().filter(|other| other.slug == check.slug);
            assert_eq!(named.count(), 1, "{} is called as another one", check.id);
        }
    }
}
