//! `/proc/net/bonding/*`: a bond and its links.

use crate::{Gap, Text};

/// The status of a bond.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bond {
    /// Such as `IEEE 802.3ad Dynamic link aggregation`.
    pub mode: String,
    /// Such as `layer2`; `None` in modes without a hash.
    pub hash: Option<String>,
    /// Where that is.
    pub hash_line: usize,
    /// Whether any link is up.
    pub is_up: bool,
    /// Where that is.
    pub up_line: usize,
    /// Whether its links are monitored, by carrier or by ARP.
    pub is_watched: bool,
    /// The line of the interval.
    pub watched_line: usize,
    /// The active aggregator of 802.3ad.
    pub aggregator: Option<u64>,
    /// The line of the partner's address, if no LACP partner responds.
    pub no_partner_line: Option<usize>,
    /// Its links.
    pub links: Vec<BondLink>,
}

/// A link of a bond.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BondLink {
    /// The interface.
    pub name: String,
    /// Whether the bond may use it.
    pub is_up: bool,
    /// Its speed in Mbit/s, if known.
    pub mbit: Option<u64>,
    /// Its aggregator of 802.3ad.
    pub aggregator: Option<u64>,
    /// The line of its status.
    pub line: usize,
}

impl Bond {
    /// Parses a file of the folder.
    pub fn parse(text: &Text) -> Result<Bond, Gap> {
        let mut bond = Bond::default();
        let mut statuses = 0;
        let head = text.lines().next().map_or("", |(_, head)| head);
        if !head.starts_with("Ethernet Channel Bonding Driver") {
            return Err(text.unreadable(Some(1), "expected the bonding driver"));
        }
        for (line, row) in text.lines() {
            let Some((name, value)) = row.trim().split_once(':') else { continue };
            let value = value.trim();
            let number = || value.parse::<u64>().ok();
            if name == "Slave Interface" {
                bond.links.push(BondLink { name: value.to_owned(), ..BondLink::default() });
                continue;
            }
            match (bond.links.last_mut(), name) {
                (None, "Bonding Mode") => value.clone_into(&mut bond.mode),
                (None, "Transmit Hash Policy") => {
                    bond.hash = value.split_whitespace().next().map(str::to_owned);
                    bond.hash_line = line;
                }
                (None, "MII Status") => {
                    (bond.is_up, bond.up_line) = (value == "up", line);
                    statuses += 1;
                }
                (None, "MII Polling Interval (ms)") => {
                    bond.is_watched |= number().is_some_and(|interval| interval > 0);
                    bond.watched_line = line;
                }
                (None, "ARP Polling Interval (ms)") => {
                    bond.is_watched |= number().is_some_and(|interval| interval > 0);
                }
                (None, "Aggregator ID") => bond.aggregator = number(),
                (None, "Partner Mac Address") if value == "00:00:00:00:00:00" => {
                    bond.no_partner_line = Some(line);
                }
                (Some(link), "MII Status") => {
                    (link.is_up, link.line) = (value == "up", line);
                    statuses += 1;
                }
                (Some(link), "Speed") => {
                    let mbit = value.strip_suffix(" Mbps").and_then(|mbit| mbit.parse().ok());
                    link.mbit = mbit;
                }
                (Some(link), "Aggregator ID") => link.aggregator = number(),
                _ => {}
            }
        }
        if statuses != bond.links.len() + 1 || bond.watched_line == 0 {
            return Err(text.unreadable(None, "expected a bond and its links, each with a status"));
        }
        Ok(bond)
    }

    /// Whether it chooses a link for each packet by a hash.
    pub fn is_hashing(&self) -> bool {
        ["xor", "802.3ad"].iter().any(|mode| self.mode.contains(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOND: &str = "Ethernet Channel Bonding Driver: v6.1.0\n\n\
        Bonding Mode: IEEE 802.3ad Dynamic link aggregation\nTransmit Hash Policy: layer2 (0)\n\
        MII Status: up\nMII Polling Interval (ms): 100\n\n802.3ad info\n\
        Active Aggregator Info:\n\tAggregator ID: 1\n\tPartner Mac Address: 00:00:00:00:00:00\n\n\
        Slave Interface: eth0\nMII Status: up\nSpeed: 10000 Mbps\nAggregator ID: 1\n\
        details actor lacp pdu:\n    system priority: 65535\n\n\
        Slave Interface: eth1\nMII Status: down\nSpeed: Unknown\nAggregator ID: 2\n";

    #[test]
    fn a_bond_has_links_that_are_up_or_down() {
        let bond = Bond::parse(&Text::new("b", BOND)).expect("sound");
        assert!(bond.is_up && bond.is_watched && bond.is_hashing());
        assert_eq!((bond.hash.as_deref(), bond.aggregator), (Some("layer2"), Some(1)));
        assert_eq!(bond.no_partner_line, Some(11));
        let links: Vec<(&str, bool, Option<u64>)> =
            bond.links.iter().map(|link| (link.name.as_str(), link.is_up, link.mbit)).collect();
        assert_eq!(links, [("eth0", true, Some(10_000)), ("eth1", false, None)]);
    }

    #[test]
    fn a_link_without_its_status_is_torn() {
        let torn = BOND.split("MII Status: down").next().expect("a beginning");
        assert!(Bond::parse(&Text::new("b", torn)).is_err());
        for other in ["", "Slave Interface: eth0\nMII Status: up\n"] {
            assert!(Bond::parse(&Text::new("b", other)).is_err());
        }
    }
}
