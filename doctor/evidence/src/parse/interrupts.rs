//! `/proc/interrupts`: which devices interrupt which CPUs.

use std::collections::BTreeMap;

use super::Counters;
use super::cpus::cpu_number;
use crate::{Gap, Text};

/// All interrupts of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The columns: online CPUs in order, perhaps with gaps.
    pub cpus: Vec<usize>,
    /// By label: a number, or letters if no device raises it.
    pub rows: BTreeMap<String, Row>,
}

/// One interrupt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// Counts by column.
    pub counts: Vec<u64>,
    /// What raises it: chip, kind and name.
    pub action: String,
    /// Its line in the file.
    pub line: usize,
}

impl Row {
    /// The last word: the name that the driver set.
    pub fn name(&self) -> &str {
        self.action.split_whitespace().next_back().unwrap_or_default()
    }
}

impl Counters for Interrupts {
    fn parse(text: &Text) -> Result<Interrupts, Gap> {
        let mut lines = text.lines();
        let (_, head) = lines.next().ok_or_else(|| text.unreadable(None, "empty"))?;
        let cpu = |word: &str| word.strip_prefix("CPU").and_then(cpu_number);
        let cpus: Option<Vec<usize>> = head.split_whitespace().map(cpu).collect();
        let cpus = cpus
            .filter(|cpus| !cpus.is_empty())
            .ok_or_else(|| text.unreadable(Some(1), "expected CPU0 CPU1 ..."))?;
        let mut rows = BTreeMap::new();
        for (line, row) in lines {
            let (label, rest) = row
                .split_once(':')
                .ok_or_else(|| text.unreadable(Some(line), "expected a label and a colon"))?;
            let label = label.trim().to_owned();
            let words = rest.split_whitespace();
            let numbers = words.clone().map_while(|word| word.parse().ok()).take(cpus.len());
            let counts: Vec<u64> = numbers.collect();
            // Errors have one count for all CPUs; devices have one for each.
            let is_device = label.bytes().all(|byte| byte.is_ascii_digit());
            if is_device && counts.len() != cpus.len() {
                let why = format!("expected {} counts, found {}", cpus.len(), counts.len());
                return Err(text.unreadable(Some(line), why));
            }
            let action = words.skip(counts.len()).collect::<Vec<_>>().join(" ");
            rows.insert(label, Row { counts, action, line });
        }
        Ok(Interrupts { cpus, rows })
    }
}

/// The interface and queue that an interrupt serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueIrq {
    /// The interface, or its virtio device, such as `virtio3`.
    pub device: String,
    /// `None` for an interface with a single queue.
    pub queue: Option<usize>,
    /// `None` if it serves both directions.
    pub direction: Option<Direction>,
}

/// The direction from the point of view of the interrupt's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// `tx`, `output`.
    Tx,
    /// `rx`, `input`.
    Rx,
}

/// Parses an interrupt's name: `vif1.0-q0-tx` and `eth0-q1` of Xen, `virtio3-input.0`,
/// `eth0-TxRx-3` and the like of hardware. `None` if it does not belong to a network queue.
pub fn queue_irq(name: &str, nics: &[String]) -> Option<QueueIrq> {
    virtio(name).or_else(|| {
        let (device, rest) = split_device(name, nics)?;
        let mut queue = None;
        let mut direction = None;
        for part in rest.split(['-', '_', '.']).filter(|part| !part.is_empty()) {
            let part = part.to_ascii_lowercase();
            match part.as_str() {
                "tx" => direction = Some(Direction::Tx),
                "rx" if direction.is_none() => direction = Some(Direction::Rx),
                // "Tx-Rx": both.
                "rx" | "txrx" | "rxtx" => direction = None,
                part => {
                    let number = part.trim_start_matches(|letter: char| letter.is_alphabetic());
                    queue = number.parse().ok().or(queue);
                }
            }
        }
        Some(QueueIrq { device: device.to_owned(), queue, direction })
    })
}

fn virtio(name: &str) -> Option<QueueIrq> {
    let (device, rest) = name.split_once('-')?;
    device.strip_prefix("virtio")?.parse::<u32>().ok()?;
    let (word, queue) = rest.split_once('.')?;
    let direction = match word {
        "input" => Direction::Rx,
        "output" => Direction::Tx,
        _ => return None,
    };
    let queue = Some(queue.parse().ok()?);
    Some(QueueIrq { device: device.to_owned(), queue, direction: Some(direction) })
}

/// Finds the interface in a name: a known one anywhere in it, or a vif at its start. The longest
/// wins, so that `eth0.10` is not mistaken for `eth0`.
fn split_device<'a>(name: &'a str, nics: &[String]) -> Option<(&'a str, &'a str)> {
    let is_edge = |letter: Option<char>| !letter.is_some_and(char::is_alphanumeric);
    let at = |nic: &String| {
        let start = name.find(nic.as_str())?;
        let (before, from) = name.split_at(start);
        let (found, rest) = from.split_at(nic.len());
        let alone = is_edge(before.chars().next_back()) && is_edge(rest.chars().next());
        alone.then_some((found, rest))
    };
    let known = nics.iter().filter(|nic| !nic.is_empty()).filter_map(at);
    known.max_by_key(|(found, _)| found.len()).or_else(|| {
        let vif = name.strip_prefix("vif")?;
        let end = vif.find('-').unwrap_or(vif.len());
        let (domain, handle) = vif.get(..end)?.split_once('.')?;
        domain.parse::<u32>().ok()?;
        handle.parse::<u32>().ok()?;
        name.split_at_checked("vif".len() + end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn irq(name: &str) -> Option<(String, Option<usize>, Option<Direction>)> {
        let nics = ["eth0".to_owned(), "ens1f0".to_owned(), "eth0.10".to_owned()];
        queue_irq(name, &nics).map(|irq| (irq.device, irq.queue, irq.direction))
    }

    #[test]
    fn queues_are_recognized_by_the_names_that_drivers_give() {
        let (tx, rx) = (Some(Direction::Tx), Some(Direction::Rx));
        for (name, device, queue, direction) in [
            ("vif1.0-q0-tx", "vif1.0", Some(0), tx),
            ("vif12.3-q7-rx", "vif12.3", Some(7), rx),
            ("vif1.0-q2", "vif1.0", Some(2), None),
            ("vif1.0", "vif1.0", None, None),
            ("eth0-q3-rx", "eth0", Some(3), rx),
            ("eth0-tx", "eth0", None, tx),
            ("virtio3-input.0", "virtio3", Some(0), rx),
            ("virtio3-output.11", "virtio3", Some(11), tx),
            ("ens1f0-TxRx-5", "ens1f0", Some(5), None),
            ("i40e-ens1f0-TxRx-5", "ens1f0", Some(5), None),
            ("eth0-Tx-Rx-2", "eth0", Some(2), None),
            ("eth0-rx-1", "eth0", Some(1), rx),
            ("eth0-fp-3", "eth0", Some(3), None),
        ] {
            let expected = Some((device.to_owned(), queue, direction));
            assert_eq!(irq(name), expected, "{name}");
        }
        for name in ["virtio3-config", "virtio1-req.0", "ttyS0", "eth01-rx-0", "vif1-q0", ""] {
            assert_eq!(irq(name), None, "{name}");
        }
    }

    #[test]
    fn the_three_labels_of_xen_and_a_missing_cpu_are_read() {
        let text = "            CPU0       CPU2\n\
                    72:       10         20  xen-dyn-event     vif1.0-q0-tx\n\
                    73:        1          2  xen-dyn    -event     vif1.0-q0-rx\n\
                    74:        3          4  xen-dyn-lateeoi   vif1.0-q1-tx\n\
                    NMI:       0          0  Non-maskable interrupts\n\
                    ERR:       7\n";
        let read = Interrupts::parse(&Text::new("/proc/interrupts", text)).expect("sound");
        assert_eq!(read.cpus, [0, 2]);
        let names: Vec<&str> =
            ["72", "73", "74"].iter().map(|row| read.rows[*row].name()).collect();
        assert_eq!(names, ["vif1.0-q0-tx", "vif1.0-q0-rx", "vif1.0-q1-tx"]);
        assert_eq!(read.rows["72"].counts, [10, 20]);
        assert_eq!(read.rows["ERR"].counts, [7]);
    }

    #[test]
    fn a_truncated_line_is_named() {
        let text = Text::new("/proc/interrupts", "  CPU0 CPU1\n 1: 3 4 x y\n 2: 5");
        let gap = Interrupts::parse(&text).expect_err("truncated");
        assert_eq!(gap.to_string(), "/proc/interrupts:3: expected 2 counts, found 1");
    }
}
