//! Xen's domains according to its tools: `xl list`, `xl vcpu-list`, `xl info`, `xentop -b -f -i 1`.

use std::collections::BTreeMap;

use super::Counters;
use super::cpus::cpu_list;
use crate::{Gap, Text};

/// `xl vcpu-list`: CPU time of each virtual CPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VcpuTimes {
    /// By domain and number of the virtual CPU.
    pub vcpus: BTreeMap<(u32, u32), Vcpu>,
}

/// One virtual CPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vcpu {
    /// The name of its domain.
    pub domain: String,
    /// Whether it is plugged in: an unplugged one has no CPU, and the state `p`.
    pub is_online: bool,
    /// Seconds that it ran, to a tenth.
    pub seconds: f64,
    /// The physical CPUs that it is pinned to; `None` if it may run on all.
    pub pinned: Option<Vec<usize>>,
    /// Its line in the output.
    pub line: usize,
}

impl Counters for VcpuTimes {
    fn parse(text: &Text) -> Result<VcpuTimes, Gap> {
        let mut vcpus = BTreeMap::new();
        head(text, "VCPU")?;
        for (line, row) in text.lines().skip(1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            // A name may contain spaces and anything else, so the last match counts.
            let place = words.windows(5).rposition(is_vcpu);
            let Some((place, vcpu)) = place.and_then(|place| Some((place, vcpu(&words, place)?)))
            else {
                let why = "expected name, id, VCPU, CPU, state and seconds";
                return Err(text.unreadable(Some(line), why));
            };
            let (key, vcpu) = vcpu;
            vcpus.insert(key, Vcpu { domain: words[..place].join(" "), line, ..vcpu });
        }
        Ok(VcpuTimes { vcpus })
    }
}

/// Whether words are id, VCPU, CPU, state and seconds.
fn is_vcpu(words: &[&str]) -> bool {
    let [id, vcpu, cpu, state, seconds] = words else { return false };
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    let is_state = state.len() == 3 && state.bytes().all(|byte| b"rbp-".contains(&byte));
    let is_cpu = is_number(cpu) || *cpu == "-";
    is_number(id) && is_number(vcpu) && is_cpu && is_state && seconds.parse::<f64>().is_ok()
}

fn vcpu(words: &[&str], place: usize) -> Option<((u32, u32), Vcpu)> {
    let (known, affinity) = words.get(place..)?.split_at_checked(5)?;
    let [id, vcpu, _, state, seconds] = known else { return None };
    let seconds: f64 = seconds.parse().ok()?;
    let is_time = seconds.is_finite() && seconds >= 0.0;
    // Hard affinity comes before soft; neither `all` nor the `any cpu` of Xen before 4.5 is a list.
    let pinned = affinity.first().and_then(|hard| cpu_list(hard));
    let vcpu_of = Vcpu { is_online: !state.ends_with('p'), seconds, pinned, ..Vcpu::default() };
    is_time.then_some(((id.parse().ok()?, vcpu.parse().ok()?), vcpu_of))
}

impl VcpuTimes {
    /// Seconds of all virtual CPUs of a domain.
    pub fn of_domain(&self, domain: u32) -> f64 {
        self.domain(domain).map(|vcpu| vcpu.seconds).sum()
    }

    /// The virtual CPUs of a domain, in order.
    pub fn domain(&self, domain: u32) -> impl Iterator<Item = &Vcpu> {
        self.vcpus.range((domain, 0)..=(domain, u32::MAX)).map(|(_, vcpu)| vcpu)
    }
}

/// `xl list`: the existing domains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domains {
    /// By id.
    pub domains: BTreeMap<u32, Domain>,
}

/// One domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domain {
    /// The name in its configuration.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Whether its toolstack has paused it.
    pub is_paused: bool,
    /// Its line in the output.
    pub line: usize,
}

impl Domains {
    /// Reads the output of `xl list`.
    pub fn parse(text: &Text) -> Result<Domains, Gap> {
        let mut domains = BTreeMap::new();
        head(text, "VCPUs")?;
        for (line, row) in text.lines().skip(1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            let [name @ .., id, _memory, vcpus, state, _time] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected a domain"));
            };
            let refuse = || text.unreadable(Some(line), "expected id, memory, VCPUs, state, time");
            let id: u32 = id.parse().map_err(|_| refuse())?;
            let vcpus: u32 = vcpus.parse().map_err(|_| refuse())?;
            let is_paused = state.contains('p');
            domains.insert(id, Domain { name: name.join(" "), vcpus, is_paused, line });
        }
        Ok(Domains { domains })
    }
}

/// `xentop -b -f -i 1`: CPU seconds of whole domains, for hosts without `xl`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Xentop {
    /// CPU seconds since a domain's start, by name, with the line in the output.
    pub seconds: BTreeMap<String, (u64, usize)>,
}

impl Counters for Xentop {
    fn parse(text: &Text) -> Result<Xentop, Gap> {
        let (_, first) = text.lines().next().ok_or_else(|| text.unreadable(None, "empty"))?;
        let columns: Vec<&str> = first.split_whitespace().collect();
        if !columns.starts_with(&["NAME", "STATE", "CPU(sec)"]) {
            return Err(text.unreadable(Some(1), "expected NAME STATE CPU(sec) ..."));
        }
        let mut seconds = BTreeMap::new();
        for (line, row) in text.lines().skip(1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            // Names may contain spaces, and so does "no limit" in later columns.
            let state = words.iter().position(|word| is_state(word));
            let read = state.and_then(|at| Some((at, words.get(at + 1)?.parse().ok()?)));
            let Some((at, spent)) = read.filter(|(at, _)| *at > 0) else {
                return Err(text.unreadable(Some(line), "expected name, state and seconds"));
            };
            seconds.insert(words[..at].join(" "), (spent, line));
        }
        Ok(Xentop { seconds })
    }
}

/// Six characters, each a letter or a dash: `--b---`, `-----r`.
fn is_state(word: &str) -> bool {
    word.len() == 6
        && word.contains('-')
        && word.bytes().all(|byte| b"-dsbcpr".contains(&byte.to_ascii_lowercase()))
}

/// `xl info`: `KEY : VALUE`, one per line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct XlInfo {
    values: BTreeMap<String, (String, usize)>,
}

impl XlInfo {
    /// Reads the output of `xl info`.
    pub fn parse(text: &Text) -> Result<XlInfo, Gap> {
        let mut values = BTreeMap::new();
        for (line, row) in text.lines().filter(|(_, row)| !row.trim().is_empty()) {
            let (key, value) = row
                .split_once(':')
                .ok_or_else(|| text.unreadable(Some(line), "expected a name and a value"))?;
            values.insert(key.trim().to_owned(), (value.trim().to_owned(), line));
        }
        Ok(XlInfo { values })
    }

    /// A value with its line.
    pub fn get(&self, key: &str) -> Option<(&str, usize)> {
        self.values.get(key).map(|(value, line)| (value.as_str(), *line))
    }

    /// The hypervisor's version.
    pub fn version(&self) -> Option<(u32, u32)> {
        let number = |key| self.get(key)?.0.parse().ok();
        Some((number("xen_major")?, number("xen_minor")?))
    }
}

fn head(text: &Text, column: &str) -> Result<(), Gap> {
    let first = text.lines().next().map(|(_, line)| line).unwrap_or_default();
    if first.starts_with("Name") && first.split_whitespace().any(|word| word == column) {
        return Ok(());
    }
    Err(text.unreadable(Some(1), format!("expected Name ... {column} ...")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_domains_may_have_spaces() {
        let text = "Name       ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)\n\
                    Domain-0    0     0    1   r--      12.5  all / all\n\
                    my 1 guest  7     3    -   --p       0.1  0-3 / all\n";
        let read = VcpuTimes::parse(&Text::new("xl vcpu-list", text)).expect("sound");
        let (dom0, guest) = (&read.vcpus[&(0, 0)], &read.vcpus[&(7, 3)]);
        assert_eq!((dom0.is_online, &dom0.pinned), (true, &None));
        assert_eq!((guest.is_online, &guest.pinned), (false, &Some(vec![0, 1, 2, 3])));
        assert_eq!(read.vcpus[&(7, 3)].domain, "my 1 guest");
        assert!((read.of_domain(0) - 12.5).abs() < 1e-9);

        let text = "Name   ID  Mem VCPUs\tState\tTime(s)\nmy guest  7  512     4     -b----  3.0\n";
        let read = Domains::parse(&Text::new("xl list", text)).expect("sound");
        assert_eq!((read.domains[&7].name.as_str(), read.domains[&7].vcpus), ("my guest", 4));

        let text = "      NAME  STATE   CPU(sec) CPU(%)     MEM(k) MEM(%)  MAXMEM(k)\n\
                      Domain-0 -----r         95    0.0    1048576   12.5   no limit\n";
        let read = Xentop::parse(&Text::new("xentop", text)).expect("sound");
        assert_eq!(read.seconds["Domain-0"], (95, 2));
    }

    #[test]
    fn what_is_no_table_of_domains_is_refused() {
        for text in ["", "x\n", "Name ID VCPU CPU State\nDomain-0 0 0 1 r--\n", "Name VCPU\nx 1\n"]
        {
            assert!(VcpuTimes::parse(&Text::new("xl", text)).is_err(), "{text:?}");
        }
    }
}
