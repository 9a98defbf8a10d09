//! A line for each guest's interface: what it moves, and what is wrong with it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Severity};
use ringway_evidence::fact::{Basis, Host, Interfaces, NicRole, Span, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::one_line;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::ringway::{CONNECTED, Queue, Vif, Vifs};

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
    /// The state of a vif of ringway that is not connected, and what ringway says is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Frames a second that ringway dropped at its vif, by its reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, f64>,
    /// How often the process of ringway that serves it was replaced since it was made; none for
    /// interfaces of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// The highest severity of findings about it; without any ok, or note where it loses frames or
    /// is not connected.
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

/// What is known of a guest besides findings.
#[derive(Default)]
struct Known {
    /// Bits per second that it receives and sends.
    rate: Option<(f64, f64)>,
    state: Option<String>,
    drops: BTreeMap<String, f64>,
    restarts: Option<u64>,
}

/// All guests' interfaces, those with the worst findings first; none on a host without guests.
pub(super) fn guests(host: &Host, findings: &[Finding]) -> Vec<Guest> {
    let Ok(facts) = host.fact::<Facts>() else { return Vec::new() };
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    for nic in facts.nics.names() {
        if facts.nics.role(&nic) == NicRole::Backend {
            let rate = of_interface(&facts, &nic);
            known.insert(nic.clone(), Known { rate, ..Known::default() });
        }
    }
    if let Some(span) = facts.vifs.ok() {
        for vif in span.after.all.iter().filter(|vif| !vif.kind.is_empty()) {
            known.insert(vif.name.clone(), Known::of(span, vif));
        }
    }
    let guest = |(interface, known): (String, Known)| {
        let Known { rate, state, drops, restarts } = known;
        let own = findings.iter().filter(|one| one.subject == interface);
        let worst = own.max_by_key(|one| one.severity);
        let severity = worst.map_or(Severity::Ok, |one| one.severity);
        // A guest that loses frames or is not connected is not well, whatever is to blame.
        let is_well = state.is_none() && drops.is_empty();
        let severity = severity.max(if is_well { Severity::Ok } else { Severity::Note });
        let is_wrong = |one: &&Finding| one.severity >= Severity::Warning;
        let finding = worst.filter(is_wrong).map(|one| format!("{} {}", one.check, one.summary));
        Guest {
            interface,
            receives: rate.map(|(receives, _)| receives),
            sends: rate.map(|(_, sends)| sends),
            state,
            drops,
            restarts,
            worst: severity,
            finding,
        }
    };
    let mut all: Vec<Guest> = known.into_iter().map(guest).collect();
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

impl Known {
    /// What ringway says of a vif.
    fn of(span: &Span<Vifs>, vif: &Vif) -> Known {
        let is_well = vif.state == CONNECTED && vif.error.is_none();
        let error = vif.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        // Records of older versions have no states.
        let state = (!is_well && !vif.state.is_empty()).then(|| format!("{}{error}", vif.state));
        let drops = vif.dropped(&span.before).into_iter();
        let drops = drops.map(|(reason, frames)| (reason.to_owned(), float(frames) / span.seconds));
        let (drops, restarts) = (drops.collect(), Some(vif.restarts));
        Known { rate: of_vif(span, vif), state, drops, restarts }
    }
}

fn of_vif(span: &Span<Vifs>, vif: &Vif) -> Option<(f64, f64)> {
    let bits = |of: fn(&Queue) -> u64| float(vif.grown(&span.before, of)) * 8.0 / span.seconds;
    let is_known = span.basis == Basis::Samples;
    is_known.then(|| (bits(|one| one.rx_bytes), bits(|one| one.tx_bytes)))
}

impl Guest {
    /// For people, without its severity.
    pub(super) fn line(&self) -> String {
        let mbit =
            |bits: Option<f64>| bits.map_or("?".to_owned(), |bits| format!("{:.1}", bits / 1e6));
        let (receives, sends) = (mbit(self.receives), mbit(self.sends));
        let restarts = self.restarts.filter(|count| *count > 0);
        let drops = self.drops.iter().map(|(reason, rate)| format!("drops {reason} {rate:.1}/s"));
        let more = self.state.clone().into_iter().chain(drops);
        let more = more.chain(restarts.map(|count| format!("restarts {count}")));
        let more: String = more.map(|one| format!(", {one}")).collect();
        let finding = self.finding.as_ref().map(|said| format!("; {said}")).unwrap_or_default();
        let name = &self.interface;
        one_line(&format!("{name}: receives {receives}, sends {sends} Mbit/s{more}{finding}"))
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
        for sample in [1, 2] {
            let queue = r#"{"index":0,"tx_packets":0,"tx_bytes":0,"rx_packets":0,"rx_bytes":0,"#;
            let queue = format!(r#"{queue}"dropped":{{"queue_full":{}}}}}"#, sample * 20);
            let vifs = [("vm1", "Connected", ""), ("vm2", "Waiting", r#""error":"no socket","#)]
                .map(|(name, state, error)| {
                    format!(
                        r#"{{"name":"{name}","kind":"virtio","state":"{state}",{error}"restarts":3,
                        "max_queues":1,"queues":[{queue}]}}"#
                    )
                });
            let path = format!("sample-{sample}/commands/ringway_vif_list_--json");
            pieces.push((path, format!("[{}]\n", vifs.join(","))));
        }
        let host = Host::new(Source::Memory(pieces.into_iter().collect()));
        let mut found = Finding::new(Severity::Warning, "vif2.0", "is slow");
        found.check = "D13".to_owned();
        let all = guests(&host, &[found]);
        let lines: Vec<String> = all.iter().map(Guest::line).collect();
        assert_eq!(
            lines,
            [
                "vif2.0: receives 1.0, sends 0.0 Mbit/s; D13 is slow",
                "vm1: receives 0.0, sends 0.0 Mbit/s, drops queue_full 20.0/s, restarts 3",
                "vm2: receives 0.0, sends 0.0 Mbit/s, Waiting: no socket, drops queue_full \
                 20.0/s, restarts 3",
                "vif1.0: receives 0.0, sends 1.0 Mbit/s"
            ]
        );
        let marks: Vec<Severity> = all.iter().map(|one| one.worst).collect();
        let note = Severity::Note;
        assert_eq!(marks, [Severity::Warning, note, note, Severity::Ok]);
    }
}
