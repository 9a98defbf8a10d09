//! Routes, neighbours and addresses, as `ip -j` prints them, and without `-j`, as in a sos report.
//! Of the latter, lines that cannot be read are counted: their forms differ between versions.

mod plain;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Counters;
use crate::{Gap, Text};

/// Routes of a network namespace, of all its tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Routes {
    /// In the order of the tool.
    pub all: Vec<Route>,
    /// Lines that could not be read.
    pub skipped: usize,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Route {
    /// The destination, such as `default` or `10.0.0.0/8`.
    pub dst: String,
    /// The gateway; `None` for on-link destinations, and for a route with several next hops.
    #[serde(default)]
    pub gateway: Option<String>,
    /// The interface.
    #[serde(default)]
    pub dev: Option<String>,
    /// The next hops of a multipath route.
    #[serde(default)]
    pub nexthops: Vec<Hop>,
    /// Such as `linkdown`.
    #[serde(default)]
    pub flags: Vec<String>,
    /// What it sets for TCP, by name.
    #[serde(default)]
    pub metrics: Vec<BTreeMap<String, serde_json::Value>>,
    /// Its metric: of several routes to one destination, that with the lowest is taken.
    #[serde(default, rename = "metric")]
    priority: u64,
    /// Its table, if it is not that of all packets.
    #[serde(default)]
    table: Option<serde_json::Value>,
    /// What only routes of IPv6 have.
    #[serde(default)]
    pref: Option<String>,
}

/// One next hop of several.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Hop {
    /// The gateway.
    #[serde(default)]
    pub gateway: Option<String>,
    /// The interface.
    #[serde(default)]
    pub dev: Option<String>,
    /// Such as `linkdown`.
    #[serde(default)]
    pub flags: Vec<String>,
}

impl Route {
    /// Whether packets take this route instead of another one to the same destination.
    pub fn comes_before(&self, other: &Route) -> bool {
        let place = |route: &Route| {
            let table = route.table.as_ref().and_then(|table| table.as_str()).unwrap_or("main");
            (route.dst.clone(), table.to_owned(), route.pref.is_some())
        };
        place(self) == place(other) && self.priority < other.priority
    }

    /// A number that it sets for TCP.
    pub fn metric(&self, name: &str) -> Option<u64> {
        self.metrics.iter().find_map(|all| all.get(name)?.as_u64())
    }
}

/// Neighbours of a network namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Neighbours {
    /// In the order of the tool.
    pub all: Vec<Neighbour>,
    /// Lines that could not be read.
    pub skipped: usize,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub dst: String,
    /// The interface behind which it is.
    #[serde(default)]
    pub dev: String,
    /// Its link-layer address, if it replied.
    #[serde(default)]
    pub lladdr: Option<String>,
    /// Such as `REACHABLE`.
    #[serde(default)]
    pub state: Vec<String>,
}

impl Neighbour {
    /// Whether resolution failed: it did not reply.
    pub fn is_failed(&self) -> bool {
        self.state.iter().any(|state| state == "FAILED")
    }

    /// Whether resolution is in progress: it has not replied yet.
    pub fn is_resolving(&self) -> bool {
        self.state.iter().any(|state| state == "INCOMPLETE")
    }
}

impl Neighbours {
    /// This neighbour in another sample.
    pub fn same(&self, one: &Neighbour) -> Option<&Neighbour> {
        self.all.iter().find(|other| other.dst == one.dst && other.dev == one.dev)
    }
}

/// Interfaces with their addresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Addresses {
    /// In the order of the tool.
    pub all: Vec<Addressed>,
    /// Lines that could not be read.
    pub skipped: usize,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Addressed {
    /// The interface.
    #[serde(default)]
    pub ifname: String,
    /// Its lower interface, or its peer.
    #[serde(default)]
    pub link: Option<String>,
    /// Its bridge, bond or VRF.
    #[serde(default)]
    pub master: Option<String>,
    /// Such as `UP`.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Its addresses.
    #[serde(default)]
    pub addr_info: Vec<Address>,
}

/// An address of an interface.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Address {
    /// `inet` or `inet6`.
    #[serde(default)]
    pub family: String,
    /// The address.
    #[serde(default)]
    pub local: String,
    /// The prefix length.
    #[serde(default)]
    pub prefixlen: u32,
}

impl Routes {
    /// The command that shows them.
    pub(crate) const COMMAND: &[&str] =
        &["ip", "-d", "-j", "route", "show", "table", "all", "type", "unicast"];
}

impl Neighbours {
    /// The command that shows them.
    pub(crate) const COMMAND: &[&str] = &["ip", "-s", "-j", "neigh", "show"];
}

impl Addresses {
    /// The command that shows them.
    pub(crate) const COMMAND: &[&str] = &["ip", "-j", "addr", "show"];
}

/// Whether a text is not the plain output of a tool: also if it is damaged or empty, which no
/// parser may take for a host without any.
fn is_json(text: &Text) -> bool {
    let start = text.value().trim_start();
    start.is_empty() || start.starts_with(['[', '{'])
}

/// Refuses a text of which no line could be read.
fn some_of(text: &Text, read: usize, skipped: usize) -> Result<(), Gap> {
    match (read, skipped) {
        (0, 1..) => Err(text.unreadable(None, "none of its lines could be read")),
        _ => Ok(()),
    }
}

fn parse<T: DeserializeOwned>(text: &Text) -> Result<Vec<T>, Gap> {
    serde_json::from_str(text.value())
        .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))
}

impl Counters for Routes {
    fn parse(text: &Text) -> Result<Routes, Gap> {
        match is_json(text) {
            true => parse(text).map(|all| Routes { all, skipped: 0 }),
            false => {
                let all = plain::routes(text);
                some_of(text, all.all.len(), all.skipped).map(|()| all)
            }
        }
    }
}

impl Counters for Neighbours {
    fn parse(text: &Text) -> Result<Neighbours, Gap> {
        match is_json(text) {
            true => parse(text).map(|all| Neighbours { all, skipped: 0 }),
            false => {
                let all = plain::neighbours(text);
                some_of(text, all.all.len(), all.skipped).map(|()| all)
            }
        }
    }
}

impl Counters for Addresses {
    fn parse(text: &Text) -> Result<Addresses, Gap> {
        match is_json(text) {
            true => parse(text).map(|all| Addresses { all, skipped: 0 }),
            false => {
                let all = plain::addresses(text);
                some_of(text, all.all.len(), all.skipped).map(|()| all)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ip_prints_is_read() {
        let text = |text: &str| Text::new("ip", text);
        let routes = Routes::parse(&text(
            r#"[{"type":"unicast","dst":"default","flags":[],"metrics":[{"window":4096}],
            "nexthops":[{"gateway":"10.98.0.9","dev":"a","weight":1,"flags":["linkdown"]}]}]"#,
        ));
        let routes = routes.expect("sound");
        assert_eq!(routes.all[0].metric("window"), Some(4096));
        assert_eq!(routes.all[0].nexthops[0].flags, ["linkdown"]);
        let failed = r#"[{"dst":"10.98.0.9","dev":"a","state":["FAILED"]}]"#;
        assert!(Neighbours::parse(&text(failed)).expect("sound").all[0].is_failed());
        let address = r#"[{"ifname":"a","addr_info":[{"local":"10.98.0.1","prefixlen":24}]},{}]"#;
        assert_eq!(Addresses::parse(&text(address)).expect("sound").all.len(), 2);
        for torn in ["", "[", "{}", "[{\"dst\":1}]"] {
            assert!(Routes::parse(&text(torn)).is_err(), "{torn:?}");
        }
    }
}
