//! Interfaces of libvirt's machines whose number of queues is not judged.

use std::collections::{BTreeMap, BTreeSet};

use ringway_evidence::parse::libvirt::{Interface, VHOST_USER};
use ringway_evidence::{Quote, squeezed};

/// Models of virtio-net.
const MODELS: [&str; 3] = ["virtio", "virtio-transitional", "virtio-non-transitional"];
/// Types of interfaces that can have several queues.
const KINDS: [&str; 5] = ["bridge", "direct", "ethernet", "network", VHOST_USER];
/// Lines that are shown of them.
const QUOTES_MAX: usize = 3;

/// Why an interface is not judged; `None` if it is.
pub(super) fn reason(nic: &Interface) -> Option<String> {
    let Interface { kind, model, driver, .. } = nic;
    // libvirt reads the driver only where it opens vhost-net: `qemuInterfaceOpenVhostNet`.
    let is_any_driver = kind == VHOST_USER || matches!(driver.as_str(), "" | "vhost");
    if !KINDS.contains(&kind.as_str()) {
        return Some(format!("type {}", squeezed(kind)));
    }
    if model.is_empty() {
        return Some("no model".to_owned());
    }
    if !MODELS.contains(&model.as_str()) {
        return Some(format!("model {}", squeezed(model)));
    }
    (!is_any_driver).then(|| format!("driver {}", squeezed(driver)))
}

/// Those of all machines.
#[derive(Default)]
pub(super) struct Unjudged<'a> {
    machines: BTreeSet<&'a str>,
    /// How many, by the reason.
    reasons: BTreeMap<String, usize>,
    quotes: Vec<Quote>,
}

impl<'a> Unjudged<'a> {
    pub(super) fn add(&mut self, machine: &'a str, why: String, quote: Quote) {
        self.machines.insert(machine);
        *self.reasons.entry(why).or_default() += 1;
        if self.quotes.len() < QUOTES_MAX {
            self.quotes.push(quote);
        }
    }

    /// How many, and why, with lines; `None` if there are no such interfaces.
    pub(super) fn said(&self, is_other_judged: bool) -> Option<(String, Vec<Quote>)> {
        let all: usize = self.reasons.values().sum();
        let whose = match self.machines.iter().collect::<Vec<_>>().as_slice() {
            [] => return None,
            [machine] => format!("of machine {}", squeezed(machine)),
            _ => "of machines".to_owned(),
        };
        let why: Vec<String> = match self.reasons.keys().collect::<Vec<_>>().as_slice() {
            [why] => vec![(*why).clone()],
            _ => self.reasons.iter().map(|(why, count)| format!("{why}: {count}")).collect(),
        };
        let why = why.join(", ");
        let (s, were) = if all == 1 { ("", "was") } else { ("s", "were") };
        let said = if is_other_judged {
            format!("{all} interface{s} {whose} {were} not judged ({why})")
        } else {
            format!("read {all} interface{s} {whose}, and judged none ({why})")
        };
        Some((said, self.quotes.clone()))
    }
}
