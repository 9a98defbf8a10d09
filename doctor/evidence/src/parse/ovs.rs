//! `ovs-appctl dpctl/show` and `ovs-dpctl show`: hits and misses of the datapath's flow table;
//! `ovs-vsctl list interface`: ingress limits; `ovs-appctl dpif/show`: ports of bridges.

use std::collections::BTreeMap;

use super::Counters;
use crate::{Gap, Text};

/// Sums over all datapaths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Packets with a flow in the datapath.
    pub hit: u64,
    /// Packets without one, which are looked up in all rules.
    pub missed: u64,
    /// Packets dropped because that lookup was too slow.
    pub lost: u64,
    /// The line of the last datapath in the output.
    pub line: usize,
}

impl Counters for Lookups {
    fn parse(text: &Text) -> Result<Lookups, Gap> {
        let mut sum = Lookups::default();
        for (line, row) in text.lines() {
            let Some(row) = row.trim().strip_prefix("lookups:") else { continue };
            let value = |key: &str| {
                let word = row.split_whitespace().find_map(|word| word.strip_prefix(key));
                let value = word.and_then(|word| word.parse::<u64>().ok());
                value.ok_or_else(|| text.unreadable(Some(line), format!("expected {key}NUMBER")))
            };
            sum.hit = sum.hit.saturating_add(value("hit:")?);
            sum.missed = sum.missed.saturating_add(value("missed:")?);
            sum.lost = sum.lost.saturating_add(value("lost:")?);
            sum.line = line;
        }
        if sum.line == 0 {
            return Err(text.unreadable(None, "expected a line of lookups"));
        }
        Ok(sum)
    }
}

/// Ports of each bridge of Open vSwitch, as `ovs-appctl dpif/show` lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchPorts {
    /// By bridge; without its own interface, whose MTU the switch sets.
    pub bridges: BTreeMap<String, Vec<String>>,
}

impl SwitchPorts {
    /// Parses lines of datapaths, of bridges below, and of ports below those.
    pub fn parse(text: &Text) -> Result<SwitchPorts, Gap> {
        let mut bridges: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut bridge = None;
        for (line, row) in text.lines() {
            let depth = row.len() - row.trim_start().len();
            let words: Vec<&str> = row.split_whitespace().collect();
            match (depth, words.as_slice()) {
                (0, _) => bridge = None,
                (1..=2, [name]) => {
                    let name = name.trim_end_matches(':').to_owned();
                    bridges.entry(name.clone()).or_default();
                    bridge = Some(name);
                }
                (3.., [port, ..]) => {
                    let refuse = || text.unreadable(Some(line), "expected a bridge above it");
                    let bridge = bridge.as_ref().ok_or_else(refuse)?;
                    if port != bridge {
                        bridges.entry(bridge.clone()).or_default().push((*port).to_owned());
                    }
                }
                _ => return Err(text.unreadable(Some(line), "expected a bridge or a port")),
            }
        }
        Ok(SwitchPorts { bridges })
    }
}

/// Interfaces with an ingress limit in Open vSwitch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policing {
    /// Name, rate in kbit/s, and the line of the rate.
    pub limits: Vec<(String, u64, usize)>,
}

impl Policing {
    /// Parses the records, which empty lines separate. A rate of 0 is no limit.
    pub fn parse(text: &Text) -> Result<Policing, Gap> {
        let mut limits = Vec::new();
        let mut name = None;
        for (line, row) in text.lines() {
            if row.trim().is_empty() {
                name = None;
                continue;
            }
            let (key, value) = row
                .split_once(':')
                .ok_or_else(|| text.unreadable(Some(line), "expected a column and its value"))?;
            match key.trim() {
                "name" => name = Some(value.trim().trim_matches('"').to_owned()),
                "ingress_policing_rate" => {
                    let rate = value.trim().parse();
                    let rate: u64 =
                        rate.map_err(|_| text.unreadable(Some(line), "expected a number"))?;
                    let name = name.clone().ok_or_else(|| {
                        text.unreadable(Some(line), "expected the name of an interface before it")
                    })?;
                    if rate > 0 {
                        limits.push((name, rate, line));
                    }
                }
                _ => {}
            }
        }
        Ok(Policing { limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_belong_to_the_bridge_above_them() {
        let text = "netdev@ovs-netdev: hit:9 missed:3\n  ovs0:\n    ovs0 65534/1: (tap)\n    \
                    vif1.0 1/2: (system)\n  ovs1:\n    vx 4/5: (vxlan: remote_ip=192.0.2.9)\n";
        let read = SwitchPorts::parse(&Text::new("ovs-appctl", text)).expect("sound");
        assert_eq!(read.bridges["ovs0"], ["vif1.0"]);
        assert_eq!(read.bridges["ovs1"], ["vx"]);
        for torn in ["    a 1/2: (system)\n", "x:\n  a b\n"] {
            assert!(SwitchPorts::parse(&Text::new("ovs-appctl", torn)).is_err(), "{torn:?}");
        }
    }

    #[test]
    fn rates_belong_to_the_name_before_them() {
        let text = "name                : vif1.0\ningress_policing_rate: 100000\n\n\
                    name                : \"eth0\"\ningress_policing_rate: 0\n";
        let read = Policing::parse(&Text::new("ovs-vsctl", text)).expect("sound");
        assert_eq!(read.limits, [("vif1.0".to_owned(), 100_000, 2)]);
        for text in ["x", "ingress_policing_rate: 5\n", "name: a\ningress_policing_rate: x\n"] {
            assert!(Policing::parse(&Text::new("ovs-vsctl", text)).is_err(), "{text}");
        }
    }
}
