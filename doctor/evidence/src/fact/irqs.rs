//! Interrupts of network queues, with the counts of each and its affinity.

use std::collections::BTreeMap;

use super::interfaces::Interfaces;
use super::reader::{Basis, Span};
use super::{Fact, Reader};
use crate::parse::cpus::cpu_list;
use crate::parse::interrupts::{Interrupts, QueueIrq, Row, queue_irq};
use crate::{Gap, Piece, Text};

/// An interrupt of a queue, and how often it was raised on each CPU.
#[derive(Debug)]
pub struct NetIrq<'a> {
    /// Its number.
    pub irq: u32,
    /// The queue that it serves; its device is an interface if known.
    pub of: QueueIrq,
    /// Its row in the file.
    pub row: &'a Row,
    /// Since the first sample, by column of [`Interrupts::cpus`].
    pub counts: Vec<u64>,
}

/// A queue: its interface, and its number if it has one.
pub type Queue = (String, Option<usize>);

/// Where interrupts should be served: all of a queue on one CPU, and queues spread over the CPUs
/// near their card (`multi-queue-study:interrupts`).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The CPU of each queue that is in use.
    pub queues: BTreeMap<Queue, usize>,
}

impl Layout {
    /// The CPU for an interrupt; `None` if its queue is not in use.
    pub fn cpu_of(&self, irq: &NetIrq<'_>) -> Option<usize> {
        self.queues.get(&irq.queue()).copied()
    }

    /// Assigns each queue to the candidate CPU with the fewest queues so far, or the first of
    /// several. A queue without candidates is left out.
    fn of(candidates: BTreeMap<Queue, Vec<usize>>) -> Layout {
        let mut loads: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queues = BTreeMap::new();
        for (queue, cpus) in candidates {
            let load = |cpu: &usize| (loads.get(cpu).copied().unwrap_or(0), *cpu);
            if let Some(cpu) = cpus.into_iter().min_by_key(load) {
                *loads.entry(cpu).or_default() += 1;
                queues.insert(queue, cpu);
            }
        }
        Layout { queues }
    }
}

impl NetIrq<'_> {
    /// The queue that it serves.
    pub fn queue(&self) -> Queue {
        (self.of.device.clone(), self.of.queue)
    }

    /// Whether it was raised since the first sample.
    pub fn came(&self) -> bool {
        self.counts.iter().any(|count| *count > 0)
    }
}

/// Interrupts of network queues, the counts of each, and the CPUs that may serve it.
#[derive(Debug)]
pub struct NetIrqs {
    /// All interrupts of the host.
    pub span: Span<Interrupts>,
    nics: Interfaces,
    at: Reader,
}

impl Fact for NetIrqs {
    const PIECES: &'static [Piece] = &[
        Piece::Counters("proc/interrupts"),
        Piece::All(Interfaces::PIECES),
        Piece::File("proc/irq/*/smp_affinity_list"),
        Piece::File("sys/class/net/*/device/numa_node"),
        Piece::File("sys/devices/system/node/node*/cpulist"),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(NetIrqs { span: at.span("proc/interrupts")?, nics: at.fact()?, at: at.clone() })
    }
}

impl NetIrqs {
    /// Where interrupts should be served, on online CPUs. Callers usually pass only the queues that
    /// are [in use](NetIrq::came): a card may have vectors for CPUs that this host will never have.
    pub fn layout<'a>(
        &self,
        irqs: impl IntoIterator<Item = &'a NetIrq<'a>>,
        online: &[usize],
    ) -> Layout {
        let mut near: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut candidates = BTreeMap::new();
        for irq in irqs {
            let nic = irq.of.device.as_str();
            let cpus = near.entry(nic).or_insert_with(|| self.cpus_near(nic, online));
            candidates.insert(irq.queue(), cpus.clone());
        }
        Layout::of(candidates)
    }

    /// The online CPUs of a card's NUMA node; all of them if it has none, or none is online.
    fn cpus_near(&self, nic: &str, online: &[usize]) -> Vec<usize> {
        let node = self.at.file(&format!("sys/class/net/{nic}/device/numa_node")).ok();
        // -1, which does not parse, means that the device is near no node.
        let node = node.and_then(|text| text.number().ok());
        let list = node.and_then(|node| {
            self.at.file(&format!("sys/devices/system/node/node{node}/cpulist")).ok()
        });
        let mut near = list.and_then(|list| cpu_list(list.value())).unwrap_or_default();
        near.retain(|cpu| online.contains(cpu));
        if near.is_empty() { online.to_vec() } else { near }
    }

    /// All interrupts of network queues.
    pub fn all(&self) -> Vec<NetIrq<'_>> {
        let span = &self.span;
        let nics = self.nics.names();
        let devices: BTreeMap<String, &String> =
            nics.iter().filter_map(|nic| Some((self.nics.device(nic)?, nic))).collect();
        // Linux' netfront names interrupts after the handle of the vif (`vif0-q1-rx`), not after
        // the interface; in domain 0 such a name includes the domain (`vif7.0-q1-rx`).
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
                    // Consoles have interrupts named input and output, too. Without links it is
                    // unknown which is which.
                    None if !devices.is_empty() => continue,
                    None => {}
                }
            }
            // An interrupt that is missing from the first sample is new, or that sample is
            // truncated.
            if span.basis == Basis::SinceBoot || span.before.rows.contains_key(label) {
                found.push(NetIrq { irq, of, row, counts: since(span, label, row) });
            }
        }
        found
    }

    /// The CPUs that may serve an interrupt, as the kernel lists them.
    pub fn affinity(&self, irq: u32) -> Option<String> {
        Some(self.affinity_file(irq)?.value().to_owned())
    }

    /// The file with its affinity.
    pub fn affinity_file(&self, irq: u32) -> Option<Text> {
        self.at.file(&format!("proc/irq/{irq}/smp_affinity_list")).ok()
    }
}

fn since(span: &Span<Interrupts>, label: &str, row: &Row) -> Vec<u64> {
    let before = span.before.rows.get(label);
    let at = |index: usize| {
        // A CPU may have gone online or offline between the samples.
        let cpu = span.after.cpus.get(index);
        let column = span.before.cpus.iter().position(|known| Some(known) == cpu);
        column.and_then(|column| before?.counts.get(column).copied()).unwrap_or(0)
    };
    let counts = row.counts.iter().enumerate();
    counts.map(|(index, count)| count.saturating_sub(at(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(queues: usize, cpus: &[usize]) -> Vec<usize> {
        let queue = |queue| (("eth0".to_owned(), Some(queue)), cpus.to_vec());
        Layout::of((0..queues).map(queue).collect()).queues.into_values().collect()
    }

    #[test]
    fn queues_go_round_the_cpus_that_are_online() {
        assert_eq!(layout(4, &[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(layout(2, &[0, 1, 2, 3]), [0, 1]);
        // CPU 1 is offline.
        assert_eq!(layout(3, &[0, 2, 3]), [0, 2, 3]);
        // More queues than CPUs, in the order of `throughput-guide:interrupts-by-hand`.
        assert_eq!(layout(8, &[0, 1, 2, 3]), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(layout(3, &[0]), [0, 0, 0]);
        assert!(layout(3, &[]).is_empty());
    }

    /// Two cards of two queues, the second near CPUs 2 and 3, where CPU 3 is offline.
    const INTERRUPTS: &str = "           CPU0  CPU1  CPU2\n \
        40: 10 0 0 PCI eth0-rx-0\n 41: 0 10 0 PCI eth0-tx-0\n 42: 10 0 0 PCI eth0-TxRx-1\n \
        50: 10 0 0 PCI eth1-TxRx-0\n 51: 10 0 0 PCI eth1-TxRx-1\n 52: 0 0 0 PCI eth1-TxRx-2\n";

    #[test]
    fn both_interrupts_of_a_queue_share_a_cpu_near_the_card() {
        let pieces = [
            ("proc/uptime", "10.0 1\n"),
            ("proc/interrupts", INTERRUPTS),
            ("sys/class/net/eth0/device/numa_node", "-1\n"),
            ("sys/class/net/eth1/device/numa_node", "1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3\n"),
        ];
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        let source = crate::Source::Memory(pieces.map(own).into());
        let known: NetIrqs = crate::fact::Host::new(source).fact().expect("sound");
        let irqs = known.all();
        let layout = known.layout(irqs.iter().filter(|irq| irq.came()), &known.span.after.cpus);
        let place = |wanted: u32| {
            let irq = irqs.iter().find(|irq| irq.irq == wanted).expect("known");
            layout.cpu_of(irq)
        };
        assert_eq!((place(40), place(41), place(42)), (Some(0), Some(0), Some(1)));
        // Both on the only online CPU of their node; the idle queue has no CPU.
        assert_eq!((place(50), place(51), place(52)), (Some(2), Some(2), None));
    }
}
