//! The catalogue: what is looked for, one file a check.

mod d03;
mod d04;
mod d06;
mod d08;
mod d09;
mod d11;
mod d13;
mod d14;
mod d16;
mod d18;
mod d19;
mod d20;
mod d21;
mod d26;
mod d27;
mod d28;
mod d29;
mod d30;
mod d31;

use crate::evidence::Gap;
use crate::finding::{Finding, Severity};
use crate::host::Host;

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
    /// The rows of the source documents that it answers.
    pub rows: &'static [&'static str],
    /// Background, how to verify by hand, what to do: `doctor explain`.
    pub explanation: &'static str,
    /// Looks for it. None: the doctor can explain it, and does not look for it yet.
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

/// A check that explains and does not look yet.
macro_rules! explained {
    ($id:literal, $title:literal, $group:ident, $rows:expr) => {
        Check {
            id: $id,
            title: $title,
            group: Group::$group,
            rows: $rows,
            explanation: include_str!(concat!("../../explain/", $id, ".md")),
            look: None,
        }
    };
}

/// All checks, by their ids.
pub static CATALOGUE: &[Check] = &[
    explained!("D01", "no paravirtual driver", Datapath, &["G1", "G5"]),
    explained!("D02", "a guest's CPU is full", Processors, &["G6", "G7", "G29", "P12"]),
    d03::CHECK,
    d04::CHECK,
    explained!("D05", "a backend thread is full", Processors, &["G13", "G14", "G30", "G47", "G48"]),
    d06::CHECK,
    explained!("D07", "one interface is too hot for its thread", Queues, &["G15"]),
    d08::CHECK,
    d09::CHECK,
    explained!("D10", "too few flows for the queues", Queues, &["G18"]),
    d11::CHECK,
    explained!("D12", "sending waits for completions", Tcp, &["A6", "A7", "A8"]),
    d13::CHECK,
    d14::CHECK,
    explained!("D15", "the number of queues is not what was asked for", Queues, &["L9"]),
    d16::CHECK,
    explained!("D17", "irqbalance runs and balances nothing", Processors, &["G33", "G43"]),
    d18::CHECK,
    d19::CHECK,
    d20::CHECK,
    d21::CHECK,
    explained!("D22", "IOMMU and SR-IOV", Datapath, &["G41", "G42", "G69", "G70", "W5"]),
    explained!("D23", "grants run out", Datapath, &["G3", "G4"]),
    explained!("D24", "more backend threads than CPUs", Processors, &["G46", "G48", "P12"]),
    explained!("D25", "hypercalls take the time", Processors, &["A7"]),
    d26::CHECK,
    d27::CHECK,
    d28::CHECK,
    d29::CHECK,
    d30::CHECK,
    d31::CHECK,
    explained!("D32", "one guest starves the others", Queues, &["W3"]),
];

/// A check by its id, in any case of letters.
pub fn find(id: &str) -> Option<&'static Check> {
    CATALOGUE.iter().find(|check| check.id.eq_ignore_ascii_case(id))
}

impl Check {
    /// Looks, and turns what cannot be read into a finding that says so.
    pub fn run(&self, host: &Host) -> Vec<Finding> {
        let Some(look) = self.look else { return Vec::new() };
        let mut findings = match look(host) {
            Ok(findings) => findings,
            Err(Gap::NotHere(_)) => return Vec::new(),
            Err(gap) => vec![Finding::gap(self.title, &gap)],
        };
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        for finding in &mut findings {
            self.id.clone_into(&mut finding.check);
        }
        findings
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
