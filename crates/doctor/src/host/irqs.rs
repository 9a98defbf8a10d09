//! Interrupts of network queues, with what each did and where it may go.

use std::collections::BTreeMap;

use super::{Basis, Host, Span};
use crate::evidence::Text;
use crate::parse::interrupts::{Interrupts, QueueIrq, Row, queue_irq};

/// An interrupt of a queue, and how often it came on each CPU.
#[derive(Debug)]
pub struct NetIrq<'a> {
    /// Its number.
    pub irq: u32,
    /// What it serves; its device is an interface where that is known.
    pub of: QueueIrq,
    /// In the file.
    pub row: &'a Row,
    /// Since the first sample, by column of [`Interrupts::cpus`].
    pub counts: Vec<u64>,
}

impl Host {
    /// All interrupts of network queues.
    pub fn net_irqs<'a>(&self, span: &'a Span<Interrupts>) -> Vec<NetIrq<'a>> {
        let nics = self.nics();
        let devices: BTreeMap<String, &String> =
            nics.iter().filter_map(|nic| Some((self.device(nic)?, nic))).collect();
        // Linux' netfront names interrupts after the handle of the vif (`vif0-q1-rx`), whatever the
        // interface is called; in domain 0 such a name has the domain as well (`vif7.0-q1-rx`).
        let frontends: BTreeMap<String, &String> = devices
            .iter()
            .filter_map(|(device, nic)| {
                Some((format!("vif{}", device.strip_prefix("vif-")?), *nic))
            })
            .collect();
        let names: Vec<String> = nics.iter().chain(frontends.keys()).cloned().collect();
        let mut found = Vec::new();
        for (label, row) in &span.after.rows {
            let (Ok(irq), Some(mut of)) = (label.parse(), queue_irq(row.name(), &names)) else {
                continue;
            };
            if let Some(nic) = frontends.get(&of.device) {
                of.device.clone_from(nic);
            }
            if of.device.starts_with("virtio") {
                match devices.get(&of.device) {
                    Some(nic) => of.device.clone_from(nic),
                    // Consoles have inputs and outputs, too. Without links nobody can tell.
                    None if !devices.is_empty() => continue,
                    None => {}
                }
            }
            // An interrupt that the first sample does not have is new, or that sample is torn.
            if span.basis == Basis::SinceBoot || span.before.rows.contains_key(label) {
                found.push(NetIrq { irq, of, row, counts: since(span, label, row) });
            }
        }
        found
    }

    /// The CPUs that may serve an interrupt, as the kernel lists them.
    pub fn irq_affinity(&self, irq: u32) -> Option<String> {
        Some(self.irq_affinity_file(irq)?.value().to_owned())
    }

    /// The file that says it.
    pub fn irq_affinity_file(&self, irq: u32) -> Option<Text> {
        self.file(&format!("proc/irq/{irq}/smp_affinity_list")).ok()
    }
}

fn since(span: &Span<Interrupts>, label: &str, row: &Row) -> Vec<u64> {
    let before = span.before.rows.get(label);
    let at = |index: usize| {
        // A CPU may have come or gone between the samples.
        let cpu = span.after.cpus.get(index);
        let column = span.before.cpus.iter().position(|known| Some(known) == cpu);
        column.and_then(|column| before?.counts.get(column).copied()).unwrap_or(0)
    };
    let counts = row.counts.iter().enumerate();
    counts.map(|(index, count)| count.saturating_sub(at(index))).collect()
}

/// The CPUs of a list such as `0-3,8`; none if it is no such list.
pub fn cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel has more CPUs; a list that says so is none.
        if last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    (cpus.len() <= CPUS_MAX).then_some(cpus)
}

/// `NR_CPUS` of the largest kernels.
const CPUS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_has_ranges() {
        assert_eq!(cpu_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpu_list("7"), Some(vec![7]));
        for list in ["", "0-", "x", "0-99999999", "3-1-2"] {
            assert_eq!(cpu_list(list), None, "{list}");
        }
    }
}
