//! A line for each guest's interface: what it moves, and what is wrong with it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Severity};
use ringway_evidence::fact::{Basis, Host, Interfaces, NicRole, Span, Tried, float, sum};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::ringway::{Queue, Vif, Vifs};

/// Interfaces of guests in a report; a host may have a thousand.
const GUESTS_MAX: usize = 256;

/// The interface of a guest, as its host sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Guest {
    /// The name of the vif or TAP device.
    pub interface: String,
    /// Bits per second that the guest receives; none if that is only known since the boot.
    pub receives: Option<f64>,
    /// Bits per second that it sends.
    pub sends: Option<f64>,
    /// The highest severity of findings about it; ok without any.
    pub worst: Severity,
    /// The most serious warning or problem about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
}

facts! {
    struct Facts {
        nics: Interfaces,
        moved: Tried<Span<NicCounters>>,
        vifs: Tried<Span<Vifs>>,
    }
}

/// All guests' interfaces, those with the worst findings first; none on a host without guests.
pub(super) fn guests(host: &Host, findings: &[Finding]) -> Vec<Guest> {
    let Ok(facts) = host.fact::<Facts>() else { return Vec::new() };
    // What the guest received and sent.
    let mut rates: BTreeMap<String, Option<(f64, f64)>> = BTreeMap::new();
    for nic in facts.nics.names() {
        if facts.nics.role(&nic) == NicRole::Backend {
            rates.insert(nic.clone(), of_interface(&facts, &nic));
        }
    }
    if let Some(span) = facts.vifs.ok() {
        for vif in span.after.all.iter().filter(|vif| !vif.kind.is_empty()) {
            rates.insert(vif.name.clone(), of_vif(span, vif));
        }
    }
    let guest = |(interface, rate): (String, Option<(f64, f64)>)| {
        let own = findings.iter().filter(|one| one.subject == interface);
        let worst = own.max_by_key(|one| one.severity);
        let severity = worst.map_or(Severity::Ok, |one| one.severity);
        let is_wrong = |one: &&Finding| one.severity >= Severity::Warning;
        let finding = worst.filter(is_wrong).map(|one| format!("{} {}", one.check, one.summary));
        Guest {
            interface,
            receives: rate.map(|(receives, _)| receives),
            sends: rate.map(|(_, sends)| sends),
            worst: severity,
            finding,
        }
    };
    let mut all: Vec<Guest> = rates.into_iter().map(guest).collect();
    all.sort_by_key(|one| Reverse(one.worst));
    all.truncate(GUESTS_MAX);
    all
}

/// The host sends what the guest receives.
fn of_interface(facts: &Facts, nic: &str) -> Option<(f64, f64)> {
    let span = facts.moved.ok().filter(|span| span.basis == Basis::Samples)?;
    let moved = span.after.nics.get(nic)?.since(span.before.nics.get(nic)?);
    let bits = |bytes: u64| float(bytes) * 8.0 / span.seconds;
    Some((bits(moved.tx_bytes), bits(moved.rx_bytes)))
}

fn of_vif(span: &Span<Vifs>, vif: &Vif) -> Option<(f64, f64)> {
    if span.basis != Basis::Samples {
        return None;
    }
    let grown = |of: fn(&Queue) -> u64| {
        let of_queue = |queue: &Queue| {
            let before = span.before.queue(&vif.name, queue.index);
            Some(of(queue).saturating_sub(of(before?)))
        };
        sum(&vif.queues.iter().filter_map(of_queue).collect::<Vec<_>>())
    };
    let bits = |bytes: u64| float(bytes) * 8.0 / span.seconds;
    Some((bits(grown(|one| one.rx_bytes)), bits(grown(|one| one.tx_bytes))))
}

impl Guest {
    /// For people, without its severity.
    pub(super) fn line(&self) -> String {
        let mbit =
            |bits: Option<f64>| bits.map_or("?".to_owned(), |bits| format!("{:.1}", bits / 1e6));
        let (receives, sends) = (mbit(self.receives), mbit(self.sends));
        let finding = self.finding.as_ref().map(|said| format!("; {said}")).unwrap_or_default();
        format!("{}: receives {receives}, sends {sends} Mbit/s{finding}", self.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::Source;

    #[test]
    fn each_guest_has_a_line_and_the_worst_is_first() {
        let mut pieces: Vec<(String, String)> = Vec::new();
        for sample in [1_u64, 2] {
            let bytes = 125_000 * sample;
            let dev = format!(
                "Inter-|   Receive   |  Transmit\n face |bytes packets|bytes\n\
                 eth0: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n\
                 vif1.0: {bytes} 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0\n\
                 vif2.0: 0 9 0 0 0 0 0 0 {bytes} 9 0 0 0 0 0 0\n"
            );
            pieces.push((format!("sample-{sample}/monotonic"), format!("{sample}.0\n")));
            pieces.push((format!("sample-{sample}/proc/net/dev"), dev));
        }
        let host = Host::new(Source::Memory(pieces.into_iter().collect()));
        let mut found = Finding::new(Severity::Warning, "vif2.0", "is slow");
        found.check = "D13".to_owned();
        let lines: Vec<String> = guests(&host, &[found]).iter().map(Guest::line).collect();
        assert_eq!(
            lines,
            [
                "vif2.0: receives 1.0, sends 0.0 Mbit/s; D13 is slow",
                "vif1.0: receives 0.0, sends 1.0 Mbit/s"
            ]
        );
    }
}
