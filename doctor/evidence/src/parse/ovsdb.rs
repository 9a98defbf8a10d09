//! The database of Open vSwitch: ports, from tables that `ovs-vsctl --format=json` prints, and
//! what `ovs-vsctl get` prints of the switch as a whole.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Deserializer, Value};

use super::Counters;
use crate::{Gap, Quote, Text, squeezed};

/// Bytes of the name of a port. Linux allows 15; a port without a device may have more.
const NAME_MAX: usize = 255;
/// Tables that are read: bridges, ports, interfaces.
const TABLES: usize = 3;

/// The ports of all bridges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Database {
    /// In the order of the tool; each link of a bond is one.
    pub ports: Vec<Port>,
}

/// A port of a bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// Its name, which is that of its device if it has one.
    pub name: String,
    /// `system` for a device of the kernel; others are `internal`, `patch`, `geneve` and the like.
    pub kind: String,
    /// The bridge.
    pub bridge: String,
    /// Whether a program forwards for the bridge, instead of the kernel.
    pub is_userspace: bool,
    /// Its MTU, if it has one.
    pub mtu: Option<u64>,
    /// Why the switch could not open it.
    pub error: Option<String>,
    ids: BTreeMap<String, String>,
    status: BTreeMap<String, String>,
}

/// Kinds of ports behind which there may be guests or containers.
const OF_GUESTS: [&str; 4] = ["dpdkvhostuser", "dpdkvhostuserclient", "system", "tap"];

impl Port {
    /// The logical port of OVN that it is for.
    pub fn iface_id(&self) -> Option<&str> {
        self.ids.get("iface-id").map(String::as_str).filter(|id| !id.is_empty())
    }

    /// Whether OVN has said that it forwards for this port.
    pub fn is_installed(&self) -> bool {
        self.ids.get("ovn-installed").is_some_and(|value| value == "true")
    }

    /// The interface through which the packets of a tunnel leave the host.
    pub fn egress(&self) -> Option<&str> {
        let nic = self.status.get("tunnel_egress_iface").map(String::as_str);
        nic.filter(|name| is_name(name))
    }

    /// Whether there may be a guest or a container behind it.
    pub fn is_of_guests(&self) -> bool {
        OF_GUESTS.contains(&self.kind.as_str()) && self.name != self.bridge
    }

    /// Quotes something that the database has of it, with the command that shows it.
    pub fn quote(&self, what: &str) -> Quote {
        let file = format!("ovs-vsctl list interface {}", squeezed(&self.name));
        Quote { file, line: None, text: squeezed(what) }
    }

    /// Quotes what other programs have noted about it.
    pub fn quote_ids(&self) -> Quote {
        let ids: Vec<String> =
            self.ids.iter().map(|(key, value)| format!("{key}={value}")).collect();
        self.quote(&format!("external_ids: {{{}}}", ids.join(", ")))
    }
}

impl Counters for Database {
    fn parse(text: &Text) -> Result<Database, Gap> {
        let tables: Result<Vec<Table>, serde_json::Error> =
            Deserializer::from_str(text.body()).into_iter().take(TABLES + 1).collect();
        let tables = tables
            .map_err(|error| text.unreadable(Some(error.line()), squeezed(&error.to_string())))?;
        let [bridges, ports, interfaces] = tables.as_slice() else {
            let why = "expected tables of bridges, of ports and of interfaces";
            return Err(text.unreadable(None, why));
        };
        let why = "expected the columns of bridges, of ports and of interfaces";
        database(bridges, ports, interfaces).ok_or_else(|| text.unreadable(None, why))
    }
}

/// One table, as the tool prints it.
#[derive(Deserialize)]
struct Table {
    headings: Vec<String>,
    data: Vec<Vec<Value>>,
}

/// The cell of a row that is too short.
static NULL: Value = Value::Null;

impl Table {
    /// These columns of each row.
    fn columns<const N: usize>(&self, names: [&str; N]) -> Option<Vec<[&Value; N]>> {
        let mut columns = [0; N];
        for (column, name) in columns.iter_mut().zip(names) {
            *column = self.headings.iter().position(|known| known == name)?;
        }
        Some(self.data.iter().map(|row| columns.map(|at| row.get(at).unwrap_or(&NULL))).collect())
    }
}

fn database(bridges: &Table, ports: &Table, interfaces: &Table) -> Option<Database> {
    let mut of_ports = BTreeMap::new();
    for [name, datapath, members] in bridges.columns(["name", "datapath_type", "ports"])? {
        let bridge = (word(name)?, word(datapath) == Some("netdev"));
        for port in all(members) {
            of_ports.insert(uuid(port)?, bridge);
        }
    }
    let mut of_interfaces = BTreeMap::new();
    for [own, members] in ports.columns(["_uuid", "interfaces"])? {
        let Some(bridge) = of_ports.get(uuid(own)?) else { continue };
        for interface in all(members) {
            of_interfaces.insert(uuid(interface)?, *bridge);
        }
    }
    let columns = ["_uuid", "name", "type", "mtu", "error", "external_ids", "status"];
    let mut found = Vec::new();
    for [own, name, kind, mtu, error, ids, status] in interfaces.columns(columns)? {
        let Some((bridge, is_userspace)) = of_interfaces.get(uuid(own)?) else { continue };
        found.push(Port {
            name: word(name).filter(|name| is_name(name))?.to_owned(),
            kind: word(kind).filter(|kind| !kind.is_empty()).unwrap_or("system").to_owned(),
            bridge: (*bridge).to_owned(),
            is_userspace: *is_userspace,
            mtu: only(mtu).and_then(Value::as_u64),
            error: word(error).map(str::to_owned),
            ids: map(ids)?,
            status: map(status)?,
        });
    }
    Some(Database { ports: found })
}

/// Whether it can be shown, and be the name of something.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && !text.contains(char::is_control)
}

/// All values of a cell: a set, or one value.
fn all(cell: &Value) -> Vec<&Value> {
    match cell.as_array().map(Vec::as_slice) {
        Some([kind, Value::Array(values)]) if kind.as_str() == Some("set") => {
            values.iter().collect()
        }
        _ => vec![cell],
    }
}

/// The value of a cell; an optional one is a set.
fn only(cell: &Value) -> Option<&Value> {
    match all(cell).as_slice() {
        [value] => Some(*value),
        _ => None,
    }
}

fn word(cell: &Value) -> Option<&str> {
    only(cell)?.as_str()
}

fn uuid(cell: &Value) -> Option<&str> {
    cell[1].as_str()
}

fn map(cell: &Value) -> Option<BTreeMap<String, String>> {
    if cell[0].as_str() != Some("map") {
        return None;
    }
    let pair = |pair: &Value| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned()));
    cell[1].as_array()?.iter().map(pair).collect()
}

/// What concerns OVN, and programs that forward, of the switch as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// What OVN calls this host.
    pub chassis: Option<String>,
    /// Where OVN's southbound database is; none without OVN.
    pub remote: Option<String>,
    bridge: Option<String>,
    /// The address from which OVN's tunnels lead.
    pub encap_ip: Option<String>,
    /// Whether a program that forwards handles offloads (`userspace-tso-enable`).
    pub has_userspace_tso: bool,
}

impl Settings {
    /// Parses a line for each, empty for one that is not set.
    pub fn parse(text: &Text) -> Result<Settings, Gap> {
        let value = |(_, line): (usize, &str)| {
            let value = line.trim().trim_matches('"');
            (!value.is_empty()).then(|| value.to_owned())
        };
        let values: Vec<Option<String>> = text.lines().map(value).collect();
        let values = <[Option<String>; 5]>::try_from(values);
        let [chassis, remote, bridge, encap_ip, tso] =
            values.map_err(|_| text.unreadable(None, "expected 5 lines"))?;
        let has_userspace_tso = tso.as_deref() == Some("true");
        Ok(Settings { chassis, remote, bridge, encap_ip, has_userspace_tso })
    }

    /// The bridge of OVN's ports.
    pub fn bridge(&self) -> &str {
        self.bridge.as_deref().unwrap_or("br-int")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = r#"
{"data":[["br-int","netdev",["uuid","p1"]]],"headings":["name","datapath_type","ports"]}
{"data":[[["uuid","p1"],["set",[["uuid","i1"],["uuid","i2"]]]],[["uuid","p9"],["uuid","i9"]]],
"headings":["_uuid","interfaces"]}
{"data":[[["uuid","i1"],"vif1.0","",1500,["set",[]],
["map",[["iface-id","lsp1"],["ovn-installed","true"]]],["map",[]]],
[["uuid","i2"],"gen","geneve",["set",[]],"gone",
["map",[]],["map",[["tunnel_egress_iface","eth0"]]]]],
"headings":["_uuid","name","type","mtu","error","external_ids","status"]}
"#;

    fn read(text: &str) -> Result<Database, Gap> {
        Database::parse(&Text::new("ovs-vsctl", text))
    }

    #[test]
    fn ports_have_their_bridges_and_what_is_optional_may_be_missing() {
        let ports = read(TABLES).expect("sound").ports;
        let [vif, tunnel] = ports.as_slice() else { panic!("{ports:?}") };
        assert_eq!((vif.name.as_str(), vif.kind.as_str()), ("vif1.0", "system"));
        assert_eq!((vif.bridge.as_str(), vif.is_userspace, vif.mtu), ("br-int", true, Some(1500)));
        assert!(vif.is_installed() && vif.is_of_guests() && vif.egress().is_none());
        let ids = "external_ids: {iface-id=lsp1, ovn-installed=true}";
        assert_eq!(vif.quote_ids().text, ids);
        assert_eq!((tunnel.mtu, tunnel.egress()), (None, Some("eth0")));
        assert_eq!(tunnel.error.as_deref(), Some("gone"));
        assert!(tunnel.iface_id().is_none() && !tunnel.is_of_guests());
    }

    #[test]
    fn a_part_of_the_tables_or_what_is_no_name_is_refused() {
        for end in 0..TABLES.trim_end().len() {
            assert!(read(&TABLES[..end]).is_err(), "{end}");
        }
        assert!(read(&format!("{TABLES}{{}}")).is_err());
        for (from, to) in [
            ("vif1.0", r"\u001b[2J"),
            ("\"map\"", "\"x\""),
            ("\"mtu\"", "\"x\""),
            ("\"vif1.0\"", "7"),
        ] {
            assert!(read(&TABLES.replacen(from, to, 1)).is_err(), "{to}");
        }
        let long = TABLES.replace("vif1.0", &"9".repeat(10 << 20));
        assert!(read(&long).expect_err("no name").to_string().len() < 200);
    }

    #[test]
    fn settings_are_lines_of_which_some_are_empty() {
        let read = |text: &str| Settings::parse(&Text::new("ovs-vsctl", text));
        let settings = read("hv1\n\"tcp:192.0.2.1:6642\"\n\n\"192.0.2.7\"\n\"true\"\n");
        let settings = settings.expect("sound");
        assert_eq!(settings.remote.as_deref(), Some("tcp:192.0.2.1:6642"));
        assert_eq!((settings.bridge(), settings.has_userspace_tso), ("br-int", true));
        assert_eq!(read("\n\n\n\n\n"), Ok(Settings::default()));
        for torn in ["", "hv1\n", "\n\n\n\n\n\n"] {
            assert!(read(torn).is_err(), "{torn:?}");
        }
    }
}
