//! The catalogue: what is looked for, one file a check.

pub mod contradiction;
mod d01;
mod d02;
mod d03;
mod d04;
mod d05;
mod d06;
mod d07;
mod d08;
mod d09;
mod d10;
mod d11;
mod d12;
mod d13;
mod d14;
mod d15;
mod d16;
mod d17;
mod d18;
mod d19;
mod d20;
mod d21;
mod d22;
mod d23;
mod d24;
mod d25;
mod d26;
mod d27;
mod d28;
mod d29;
mod d30;
mod d31;
mod d32;

use crate::evidence::{Gap, Netns};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use crate::host::{Host, Layout, NetIrq};

/// What a check found; nothing, or only what is in order, on a healthy host. A gap ends it: the
/// doctor does not guess.
pub type Looked = Result<Vec<Finding>, Gap>;

/// One thing that can be wrong.
pub struct Check {
    /// Such as `D18`. Stable: scripts and reports name it.
    pub id: &'static str,
    /// What is wrong if it finds something.
    pub title: &'static str,
    /// Under which head it is shown.
    pub group: Group,
    /// The places of sources that it answers, by their ids in `docs/sources.toml`.
    pub sources: &'static [&'static str],
    /// Background, how to verify by hand, what to do, with `{ID}` where it cites: `doctor explain`.
    pub explanation: &'static str,
    /// Looks for it. None: the doctor can only explain it.
    pub look: Option<fn(&Host) -> Looked>,
}

/// Heads under which findings are shown, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// What frames go through: drivers, switches, their versions.
    Datapath,
    /// Who does the work: CPUs, interrupts, threads.
    Processors,
    /// How it is spread.
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
    d01::CHECK,
    d02::CHECK,
    d03::CHECK,
    d04::CHECK,
    d05::CHECK,
    d06::CHECK,
    d07::CHECK,
    d08::CHECK,
    d09::CHECK,
    d10::CHECK,
    d11::CHECK,
    d12::CHECK,
    d13::CHECK,
    d14::CHECK,
    d15::CHECK,
    d16::CHECK,
    d17::CHECK,
    d18::CHECK,
    d19::CHECK,
    d20::CHECK,
    d21::CHECK,
    d22::CHECK,
    d23::CHECK,
    d24::CHECK,
    d25::CHECK,
    d26::CHECK,
    d27::CHECK,
    d28::CHECK,
    d29::CHECK,
    d30::CHECK,
    d31::CHECK,
    d32::CHECK,
];

/// A check by its id, in any case of letters.
pub fn find(id: &str) -> Option<&'static Check> {
    CATALOGUE.iter().find(|check| check.id.eq_ignore_ascii_case(id))
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It looked.
    Ran,
    /// None of its evidence could be read.
    Unread(String),
    /// It is about something that this host does not have.
    NotHere(String),
    /// It only explains.
    Explains,
}

impl Check {
    /// Looks, and turns what cannot be read into a finding that says so.
    pub fn run(&self, host: &Host) -> Vec<Finding> {
        self.look(host).0
    }

    /// The same, with how it ended.
    pub fn look(&self, host: &Host) -> (Vec<Finding>, Ended) {
        let Some(look) = self.look else { return (Vec::new(), Ended::Explains) };
        let mut findings = match look(host) {
            Ok(findings) => findings,
            Err(Gap::NotHere(_)) if !host.lists_interfaces() => {
                let why = "nothing says which interfaces there are".to_owned();
                return (Vec::new(), Ended::Unread(why));
            }
            Err(Gap::NotHere(why)) => return (Vec::new(), Ended::NotHere(why)),
            Err(gap) => vec![Finding::gap(self.title, &gap)],
        };
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let advice = findings.iter_mut().flat_map(|finding| &mut finding.advice);
        advice.for_each(|advice| advice.leave_out(|knob| host.refuses(knob)));
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

/// The changes that bring interrupts to where a layout has them.
fn placing<'a>(
    host: &Host,
    layout: &Layout,
    irqs: impl IntoIterator<Item = &'a NetIrq<'a>>,
) -> Vec<Change> {
    let change = |irq: &NetIrq<'_>| {
        let cpu = layout.cpu_of(irq)?.to_string();
        let current = host.irq_affinity(irq.irq);
        Change::replace(Knob::IrqAffinity { irq: irq.irq }, current, cpu)
    };
    irqs.into_iter().filter_map(change).collect()
}

/// Cubic for new connections, as far as the host has it and lets it be chosen.
fn use_cubic(host: &Host, instead_of: &str, text: &str) -> Advice {
    let knob = Knob::Sysctl { name: "net.ipv4.tcp_congestion_control".to_owned() };
    if host.may_use("cubic") {
        return Advice::by_change(
            text,
            Change::replace(knob, Some(instead_of.to_owned()), "cubic"),
        );
    }
    let command = knob.command("cubic");
    if host.netns() == Some(Netns::Other) {
        let text = format!(
            "{text} This network namespace may only choose what the machine allows to all: there, \
             add cubic to net.ipv4.tcp_allowed_congestion_control; then, here: {command}."
        );
        return Advice::by_hand(text, &[]);
    }
    Advice::by_hand(format!("{text} Its module is not loaded."), &["modprobe tcp_cubic", &command])
}

/// The change that lets a module offer more queues to guests; none if it offers as many, or if
/// nothing says how many it offers.
fn more_queues(host: &Host, module: &str, wanted: u64) -> Option<Change> {
    let (knob, current) = queues_of(host, module)?;
    Change::raise(knob, current, wanted)
}

/// The change that lets it offer fewer.
fn fewer_queues(host: &Host, module: &str, wanted: u64) -> Option<Change> {
    let (knob, current) = queues_of(host, module)?;
    Change::lower(knob, current, wanted)
}

fn queues_of(host: &Host, module: &str) -> Option<(Knob, u64)> {
    let knob = Knob::Parameter { module: module.to_owned(), name: "max_queues".to_owned() };
    let text = host.file(&knob.path().ok()??).ok()?;
    Some((knob, text.number().ok()?))
}

/// What two looks of one check found. What one of them could not read is told beside what the other
/// found, and a check has nothing to do with a host only if neither has.
fn both(first: Looked, second: Looked, subject: &str) -> Looked {
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

/// A finding that all is in order, with a line that shows it.
fn all_well(summary: impl Into<String>, quote: Option<crate::evidence::Quote>) -> Finding {
    Finding::new(Severity::Ok, "", summary).quote(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_look_could_not_read_is_told_beside_what_the_other_found() {
        let found = || Ok(vec![all_well("fine", None)]);
        let absent = |why: &str| Err(Gap::NotHere(why.to_owned()));
        let torn = || Err(Gap::Missing { file: "f".to_owned(), why: "torn".to_owned() });
        assert_eq!(both(found(), absent("x"), "s"), found());
        assert_eq!(both(absent("x"), found(), "s"), found());
        assert_eq!(both(absent("x"), absent("y"), "s"), absent("x"));
        assert_eq!(both(torn(), absent("x"), "s"), torn());
        assert_eq!(both(absent("x"), torn(), "s"), torn());
        for looked in [both(found(), torn(), "s"), both(torn(), found(), "s")] {
            let severities: Vec<Severity> =
                looked.expect("found").iter().map(|one| one.severity).collect();
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
        }
    }
}
