//! `ovs-appctl dpctl/show` and `ovs-dpctl show`: how often the datapath knew what to do with a
//! packet; `ovs-vsctl list interface`: what it lets in.

use super::Counters;
use crate::{Gap, Text};

/// Sums over all datapaths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Found among the flows of a datapath.
    pub hit: u64,
    /// Looked up in all rules.
    pub missed: u64,
    /// Dropped, because that was too slow.
    pub lost: u64,
    /// Of the last datapath, in the output.
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

/// Interfaces that Open vSwitch takes in only so much of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policing {
    /// Their names, 1000 bits a second, and the line of the rate.
    pub limits: Vec<(String, u64, usize)>,
}

impl Policing {
    /// Reads the records, which are apart by empty lines. A rate of 0 is no limit.
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
