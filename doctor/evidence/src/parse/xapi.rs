//! `xe ...-list`: records of XAPI's database, one `NAME ( RW): VALUE` per line, separated by empty
//! lines.

use std::collections::BTreeMap;

use crate::{Gap, Text};

/// What XAPI prints for a missing value.
const ABSENT: &str = "<not in database>";

/// By parameter: its value, and its line.
type Record = BTreeMap<String, (String, usize)>;

/// Records in the order that the tool prints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// Each by parameter: its value, and its line.
    pub all: Vec<Record>,
}

impl Records {
    /// Parses the output of `xe vm-list` and the like.
    pub fn parse(text: &Text) -> Result<Records, Gap> {
        let mut all = Vec::new();
        let mut record = BTreeMap::new();
        for (line, row) in text.lines() {
            if row.trim().is_empty() {
                all.push(std::mem::take(&mut record));
                continue;
            }
            let read = row.split_once(':').and_then(|(head, value)| {
                let (name, _access) = head.trim_end().strip_suffix(')')?.rsplit_once('(')?;
                Some((name.trim(), value))
            });
            let (name, value) =
                read.ok_or_else(|| text.unreadable(Some(line), "expected NAME ( RW): VALUE"))?;
            let value = value.trim();
            let value = if value == ABSENT { "" } else { value };
            record.insert(name.to_owned(), (value.to_owned(), line));
        }
        all.push(record);
        all.retain(|record| !record.is_empty());
        Ok(Records { all })
    }
}

impl Records {
    /// The UUID of a guest of `xe vm-list`, by domain and name: other hosts of the pool use the
    /// same domain numbers.
    pub fn guest(&self, domain: u32, name: &str) -> Option<&str> {
        let domain = domain.to_string();
        let is = |record: &Record, field: &str, value: &str| {
            record.get(field).is_some_and(|(found, _)| found == value)
        };
        let is_it =
            |record: &&Record| is(record, "dom-id", &domain) && is(record, "name-label", name);
        let (uuid, _) = self.all.iter().find(is_it)?.get("uuid")?;
        is_uuid(uuid).then_some(uuid)
    }
}

/// Whether it is safe to use in a command.
fn is_uuid(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// A network of `xe network-list`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Its name for XAPI.
    pub uuid: String,
    /// The bridge that implements it on each host.
    pub bridge: String,
    /// The MTU that its interfaces get when they are plugged.
    pub mtu: u64,
    /// The line of the MTU.
    pub line: usize,
}

/// An interface that is plugged into a network: a card of `xe pif-list`, or a guest's interface of
/// `xe vif-list`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plug {
    /// Its name for XAPI.
    pub uuid: String,
    /// The network's UUID.
    pub network: String,
    /// The host's or the guest's UUID.
    pub owner: String,
    /// Such as `eth0`; for a guest's interface, its number.
    pub device: String,
    /// The VLAN of a card.
    pub vlan: Option<u32>,
    /// The address of a guest's interface.
    pub mac: String,
    /// Whether XAPI is reached over it.
    pub is_management: bool,
    /// The line of the MTU that XAPI last saw.
    pub line: usize,
}

impl Network {
    /// All networks.
    pub fn all(text: &Text) -> Result<Vec<Network>, Gap> {
        let network = |of: Fields<'_>| {
            let (mtu, line) = of.field("MTU")?;
            let mtu = mtu.parse().map_err(|_| text.unreadable(Some(line), "expected a number"))?;
            let bridge = of.field("bridge")?.0.to_owned();
            Ok(Network { uuid: of.uuid("uuid")?, bridge, mtu, line })
        };
        Records::parse(text)?.all.iter().map(|record| network(Fields { text, record })).collect()
    }
}

impl Plug {
    /// All that are currently plugged.
    pub fn all(text: &Text) -> Result<Vec<Plug>, Gap> {
        let mut plugs = Vec::new();
        for record in &Records::parse(text)?.all {
            let of = Fields { text, record };
            if of.field("currently-attached")?.0 != "true" {
                continue;
            }
            let owner = if record.contains_key("vm-uuid") { "vm-uuid" } else { "host-uuid" };
            let value = |name: &str| of.field(name).map(|(value, _)| value).unwrap_or_default();
            plugs.push(Plug {
                uuid: of.uuid("uuid")?,
                network: of.uuid("network-uuid")?,
                owner: of.uuid(owner)?,
                device: of.field("device")?.0.to_owned(),
                // -1 means no VLAN.
                vlan: value("VLAN").parse().ok(),
                mac: value("MAC").to_owned(),
                is_management: value("management") == "true",
                line: of.field("MTU")?.1,
            });
        }
        Ok(plugs)
    }
}

/// A record and its origin.
struct Fields<'a> {
    text: &'a Text,
    record: &'a Record,
}

impl<'a> Fields<'a> {
    fn field(&self, name: &str) -> Result<(&'a str, usize), Gap> {
        let found = self.record.get(name).map(|(value, line)| (value.as_str(), *line));
        let first = self.record.values().map(|(_, line)| *line).min();
        found.ok_or_else(|| self.text.unreadable(first, format!("expected {name} in this record")))
    }

    /// Refuses a value that would be unsafe in a command.
    fn uuid(&self, name: &str) -> Result<String, Gap> {
        let (uuid, line) = self.field(name)?;
        if !is_uuid(uuid) {
            return Err(self.text.unreadable(Some(line), "expected a UUID"));
        }
        Ok(uuid.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parted_by_empty_lines() {
        let text = "uuid ( RO)                : 7d1a\n     name-label ( RW): a (b): c\n\n\n\
                    uuid ( RO)        : 8e2b\nPV-drivers-version (MRO): <not in database>\n";
        let read = Records::parse(&Text::new("xe vm-list", text)).expect("sound");
        assert_eq!(read.all.len(), 2);
        assert_eq!(read.all[0]["name-label"].0, "a (b): c");
        assert_eq!(read.all[1]["PV-drivers-version"].0, "");
        let text = "uuid ( RO) : 7d1a-1\nname-label ( RW): a b\ndom-id ( RO): 3\n";
        let read = Records::parse(&Text::new("xe vm-list", text)).expect("sound");
        assert_eq!((read.guest(3, "a b"), read.guest(3, "a")), (Some("7d1a-1"), None));
    }

    #[test]
    fn what_is_plugged_into_a_network_is_known_by_its_uuid() {
        let text =
            "uuid ( RO)       : 5a\n          MTU ( RW): 9000\n       bridge ( RO): xenbr6\n\n\n";
        let read = Network::all(&Text::new("xe network-list", text)).expect("sound");
        assert_eq!((read[0].bridge.as_str(), read[0].mtu, read[0].line), ("xenbr6", 9000, 2));

        let text = "uuid ( RO)                  : 1-b\n                vm-uuid ( RO): 2-c\n\
                    device ( RO): 0\n MAC ( RO): 00:16:3e:00:00:01\n MTU ( RO): 1500\n\
                    currently-attached ( RO): true\n          network-uuid ( RO): 5a\n";
        let read = Plug::all(&Text::new("xe vif-list", text)).expect("sound");
        assert_eq!(
            (read[0].owner.as_str(), read[0].network.as_str(), read[0].vlan),
            ("2-c", "5a", None)
        );
        for (from, to) in [("2-c", "2;reboot"), ("5a", ""), ("MTU", "MTV"), ("true", "false")] {
            let read = Plug::all(&Text::new("xe vif-list", text.replace(from, to)));
            assert!(read.is_err() || read == Ok(Vec::new()), "{to}");
        }
    }
}
