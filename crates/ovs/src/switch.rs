//! What of the database of Open vSwitch is read and changed, and by which arguments of `ovs-vsctl`.
//!
//! A port that was made here has three external ids beside those of its network: whose it is, the
//! vif that it is for, and the kernel's number of its device. No port of others is ever changed or
//! removed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bridge::OvsBridge;
use crate::datapath::{Datapath, Version};
use crate::ids::{Facts, Ids};
use crate::table::Table;

/// External ids that say whose a port is, for which vif, and of which device: one that was made
/// again has another number.
const OWNER: &str = "ringway-owner";
const VIF: &str = "ringway-vif";
const DEVICE: &str = "ringway-device";
/// What the switch itself writes of a bridge's own port, from 3.3 on: whether it runs with
/// `userspace-tso-enable`. Of another port it says what that device can do, which follows from what
/// is decided here.
const TSO_IN_FORCE: &str = "status:tx_tcp_seg_offload";
/// That the guest runs, for programs that watch ports.
const STATUS: &str = "iface-status";

/// The port that a vif is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortWanted {
    /// Its network device, which is the port's name.
    pub device: String,
    /// The kernel's number of that device.
    pub index: u32,
    /// Where it is to be.
    pub bridge: OvsBridge,
    /// From what its ids follow.
    pub facts: Facts,
}

/// An Open vSwitch, by the runs of `ovs-vsctl` that reach it.
#[derive(Debug)]
pub struct OpenVswitch<R> {
    /// Identifies ports of this host's ringway: another one may use the same Open vSwitch.
    pub owner: String,
    /// Runs `ovs-vsctl` with these arguments, and returns its output, or one sentence that says why
    /// it has failed.
    pub run: R,
}

impl<R: Fn(&[String]) -> Result<String, String>> OpenVswitch<R> {
    /// Gives a vif its port, or changes the one that it has, and returns the port's ids. It may be
    /// ended anywhere, and called again.
    ///
    /// # Errors
    /// One sentence with the reason. What the vif had before may be gone; nothing else is changed.
    pub fn join(&self, vif: &str, wanted: &PortWanted, table: &Table) -> Result<Ids, String> {
        let ids = table.ids(&wanted.facts)?;
        let device = wanted.device.as_str();
        if !device.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
            return Err(format!("a port of Open vSwitch cannot have the name {device:?}"));
        }
        if let Some(found) = self.find(&[format!("name={}", quoted(device))])?.first() {
            if found.owner != self.owner || found.vif != vif {
                return Err(format!(
                    "Open vSwitch has a port {device} already, which is not this vif's: remove it \
                     (ovs-vsctl del-port {device}), or choose another name"
                ));
            }
            let bridge = (self.run)(&words(["port-to-br", device]))?;
            let is_same_device = found.device == wanted.index.to_string();
            if !is_same_device || bridge.trim() != wanted.bridge.name {
                // Not in the transaction that adds it: the userspace datapath would not open it
                // again, and would go on to use a deleted device.
                self.remove(device)?;
            }
        }
        (self.run)(&self.added(vif, wanted, &ids)).map_err(|error| {
            match error.contains("no bridge named") {
                true => format!("{error}: make it (ovs-vsctl add-br), or correct `bridge`"),
                false => error,
            }
        })?;
        Ok(ids)
    }

    /// Removes the port of a vif, if it has one.
    ///
    /// # Errors
    /// One sentence with the reason.
    pub fn leave(&self, vif: &str) -> Result<(), String> {
        let is_its = [self.is_own(), external(VIF, vif)];
        self.find(&is_its)?.iter().try_for_each(|found| self.remove(&found.name))
    }

    /// The vifs that have ports.
    ///
    /// # Errors
    /// One sentence with the reason.
    pub fn vifs(&self) -> Result<Vec<String>, String> {
        Ok(self.find(&[self.is_own()])?.into_iter().map(|found| found.vif).collect())
    }

    /// The datapath of a bridge: as it runs, whatever the settings for its next start are.
    /// `ask_version` asks the switch itself for its version: the database may have none, or that of
    /// another one.
    ///
    /// # Errors
    /// One sentence with the reason.
    pub fn datapath(
        &self,
        bridge: &OvsBridge,
        ask_version: impl FnOnce() -> Option<String>,
    ) -> Result<Datapath, String> {
        let mut all = words(["--", "get", "Bridge", &bridge.name, "datapath_type"]);
        all.extend(words(["--", "--if-exists", "get", "Open_vSwitch", "."]));
        all.push("other_config:userspace-tso-enable".to_owned());
        all.extend(words(["--", "--if-exists", "get", "Interface", &bridge.name, TSO_IN_FORCE]));
        let output = (self.run)(&all)?;
        let mut lines = output.lines().map(|line| line.trim_matches('"'));
        let mut next = || lines.next().unwrap_or_default();
        let (datapath, tso_set, tso_in_force) = (next(), next(), next());
        let version = || Version::find(&ask_version()?);
        Ok(match (datapath, tso_set, tso_in_force) {
            ("netdev", _, "true") => Datapath::UserspaceTso(version()),
            ("netdev", "true", _) => Datapath::UserspaceTsoSet(version()),
            ("netdev", ..) => Datapath::Userspace,
            _ => Datapath::Kernel,
        })
    }

    fn is_own(&self) -> String {
        external(OWNER, &self.owner)
    }

    /// The arguments by which a port is as wanted, whether it exists already or not.
    fn added(&self, vif: &str, wanted: &PortWanted, ids: &Ids) -> Vec<String> {
        let PortWanted { device, index, bridge, .. } = wanted;
        let mut all = words(["--", "--may-exist", "add-port", &bridge.name, device]);
        all.extend(words(["--", "clear", "Port", device, "tag", "trunks"]));
        let tag = bridge.tag.map(|tag| format!("tag={tag}"));
        let trunks: Vec<String> = bridge.trunks.iter().map(u16::to_string).collect();
        let trunks = (!trunks.is_empty()).then(|| format!("trunks={}", trunks.join(",")));
        let vlans: Vec<String> = tag.into_iter().chain(trunks).collect();
        if !vlans.is_empty() {
            all.extend(words(["--", "set", "Port", device]).into_iter().chain(vlans));
        }
        // Those of others, such as OVN's `ovn-installed`, stay.
        all.extend(words(["--", "remove", "Interface", device, "external_ids"]));
        all.extend(Ids::KEYS.map(str::to_owned));
        all.extend(words(["--", "set", "Interface", device]));
        all.extend([self.is_own(), external(VIF, vif), external(DEVICE, &index.to_string())]);
        all.push(external(STATUS, "active"));
        all.extend(ids.pairs().map(|(key, value)| external(key, value)));
        all
    }

    fn remove(&self, device: &str) -> Result<(), String> {
        (self.run)(&words(["--", "--if-exists", "del-port", device])).map(drop)
    }

    /// The interfaces that meet all conditions.
    fn find(&self, conditions: &[String]) -> Result<Vec<Found>, String> {
        let mut all = words(["--format=json", "--columns=name,external_ids"]);
        all.extend(words(["find", "Interface"]).into_iter().chain(conditions.iter().cloned()));
        let output = (self.run)(&all)?;
        found(&output).ok_or_else(|| "ovs-vsctl has written no table of interfaces".to_owned())
    }
}

/// An interface in the database. Its texts are empty where it has no such id.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    name: String,
    owner: String,
    vif: String,
    device: String,
}

/// Reads what `ovs-vsctl --format=json` writes: rows of a name and of a map.
fn found(output: &str) -> Option<Vec<Found>> {
    let output: Value = serde_json::from_str(output).ok()?;
    let row = |row: &Value| {
        let ids = row[1][1].as_array()?;
        let id = |key: &str| {
            let pair = ids.iter().find(|pair| pair[0].as_str() == Some(key));
            pair.and_then(|pair| pair[1].as_str()).unwrap_or_default().to_owned()
        };
        let name = row[0].as_str()?.to_owned();
        Some(Found { name, owner: id(OWNER), vif: id(VIF), device: id(DEVICE) })
    };
    output["data"].as_array()?.iter().map(row).collect()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// A text as a value in the database: it may have spaces, commas and quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn external(key: &str, value: &str) -> String {
    format!("external_ids:{key}={}", quoted(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_in_one_transaction_with_all_that_it_has() {
        let run = |_: &[String]| Err(String::new());
        let switch = OpenVswitch { owner: "/run/a b".to_owned(), run };
        let bridge = "br-int.7:8:9".parse().expect("good");
        let facts = Facts::default();
        let wanted = PortWanted { device: "vif1.0".to_owned(), index: 12, bridge, facts };
        let ids = Ids { iface_id: Some("a:b".to_owned()), ..Ids::default() };
        let words = switch.added("virtio/\"x", &wanted, &ids);
        let expected = [
            "-- --may-exist add-port br-int vif1.0",
            "-- clear Port vif1.0 tag trunks",
            "-- set Port vif1.0 tag=7 trunks=8,9",
            "-- remove Interface vif1.0 external_ids iface-id attached-mac vm-uuid",
            "-- set Interface vif1.0 external_ids:ringway-owner=\"/run/a b\"",
            "external_ids:ringway-vif=\"virtio/\\\"x\" external_ids:ringway-device=\"12\"",
            "external_ids:iface-status=\"active\"",
            "external_ids:iface-id=\"a:b\"",
        ];
        assert_eq!(words.join(" "), expected.join(" "));
    }

    #[test]
    fn a_datapath_is_read_as_it_runs_with_the_version_of_the_switch_if_that_matters() {
        let found = Some(Version { major: 3, minor: 5 });
        let asked = Some("ovs-vswitchd (Open vSwitch) 3.5.0\n");
        for (output, asked, expected) in [
            ("\"\"\n\n\n", None, Datapath::Kernel),
            ("system\n\"true\"\n\n", None, Datapath::Kernel),
            ("", None, Datapath::Kernel),
            ("netdev\n\n\n", None, Datapath::Userspace),
            ("netdev\n\n", None, Datapath::Userspace),
            ("netdev\n\"false\"\n\"false\"\n", None, Datapath::Userspace),
            // It has been set since the start, or is of a version that does not say so.
            ("netdev\n\"true\"\n\"false\"\n", asked, Datapath::UserspaceTsoSet(found)),
            ("netdev\n\"true\"\n\n", asked, Datapath::UserspaceTsoSet(found)),
            ("netdev\n\"true\"\n", Some("none"), Datapath::UserspaceTsoSet(None)),
            ("netdev\n\"true\"\n\"true\"\n", asked, Datapath::UserspaceTso(found)),
            // It has been turned off since the start.
            ("netdev\n\"false\"\n\"true\"\n", asked, Datapath::UserspaceTso(found)),
            ("netdev\ntrue\ntrue\n", Some("no version"), Datapath::UserspaceTso(None)),
        ] {
            let run = |_: &[String]| Ok(output.to_owned());
            let switch = OpenVswitch { owner: String::new(), run };
            let bridge = "br-int.7".parse().expect("good");
            let ask = || Some(asked.expect("it is not needed").to_owned());
            assert_eq!(switch.datapath(&bridge, ask), Ok(expected), "{output}");
        }
    }

    #[test]
    fn interfaces_are_read_with_and_without_ids_and_nothing_else() {
        let row = |ids: &str| format!("{{\"data\":[[\"vm1\",[\"map\",[{ids}]]]],\"headings\":[]}}");
        let own = "[\"ringway-owner\",\"o\"],[\"x\",\"y\"],[\"ringway-vif\",\"v\"]";
        let expected = |[owner, vif, device]: [&str; 3]| {
            let [name, owner, vif, device] = ["vm1", owner, vif, device].map(str::to_owned);
            Some(vec![Found { name, owner, vif, device }])
        };
        assert_eq!(found(&row(own)), expected(["o", "v", ""]));
        let device = format!("{own},[\"ringway-device\",\"3\"]");
        assert_eq!(found(&row(&device)), expected(["o", "v", "3"]));
        assert_eq!(found(&row("")), expected(["", "", ""]));
        assert_eq!(found("{\"data\":[],\"headings\":[]}"), Some(Vec::new()));
        for bad in ["", "[]", "{\"data\":[[1,2]]}", "{\"data\":[[\"vm1\"]]}"] {
            assert_eq!(found(bad), None, "{bad}");
        }
    }
}
