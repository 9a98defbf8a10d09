//! `ovs-appctl dpctl/show` and `ovs-dpctl show`: hits and misses of the datapath's flow table;
//! `ovs-vsctl list interface`: ingress limits.

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
