//! What was applied of a description to the network devices of a process: a note for the next one.
//!
//! A device outlives its process, and an administrator may change it: move its address to a bridge,
//! take it off its bridge. The next process therefore applies only what has changed in the
//! description since.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ringway_datapath::MacAddr;
use serde_json::{Value, json};

use super::purpose::Purpose;
use crate::notes::{Note, Notes};

/// The version of the note's form. A note of another version is refused.
const VERSION: u64 = 1;
/// Bytes of the note: several hundred for each of a thousand devices.
const LEN_MAX: u64 = 1 << 20; // not a limit: our own note

/// The index of no link: without notes it is not known on which bridge a device was put.
pub(super) const NO_INDEX: u32 = 0;

/// What was applied to one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Applied {
    /// The kernel's number of the device: a later device with its name is another one.
    pub(crate) index: u32,
    /// The configured name.
    pub(crate) name: String,
    pub(crate) mac: Option<MacAddr>,
    /// The configured MTU.
    pub(crate) mtu: Option<u32>,
    /// The bridge that it was put on, and the kernel's number of that bridge.
    pub(crate) bridge: Option<(String, u32)>,
    /// The bridge that it belongs on: the last one that it was on, unless it was taken off.
    pub(crate) home: Option<(String, u32)>,
    /// Its addresses, with prefix lengths.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
}

/// What was applied to all devices of a process.
#[derive(Debug)]
pub(crate) struct AppliedNotes {
    /// Identifies the devices of this host.
    pub(crate) owner: String,
    devices: BTreeMap<String, Applied>,
}

impl AppliedNotes {
    /// What earlier processes have noted. A note that is refused counts as absent, and the log has
    /// the reason.
    pub(crate) fn read(owner: &str, notes: &mut impl Notes) -> AppliedNotes {
        let devices = parse(&notes.read(&Note::Devices, LEN_MAX)).unwrap_or_else(|why| {
            tracing::warn!("what was applied to network devices is not known: its note {why}");
            BTreeMap::new()
        });
        AppliedNotes { owner: owner.to_owned(), devices }
    }

    pub(crate) fn of(&self, purpose: &Purpose) -> Option<&Applied> {
        self.devices.get(&purpose.path())
    }

    pub(crate) fn keep(&mut self, purpose: &Purpose, applied: Applied, notes: &mut impl Notes) {
        let path = purpose.path();
        if self.devices.get(&path) != Some(&applied) {
            self.devices.insert(path, applied);
            self.write(notes);
        }
    }

    /// Changes the notes about a device, if there are any.
    pub(crate) fn update(
        &mut self,
        purpose: &Purpose,
        change: impl FnOnce(&mut Applied),
        notes: &mut impl Notes,
    ) {
        if let Some(mut applied) = self.of(purpose).cloned() {
            change(&mut applied);
            self.keep(purpose, applied, notes);
        }
    }

    /// Forgets a device that was removed.
    pub(crate) fn forget(&mut self, purpose: &Purpose, notes: &mut impl Notes) {
        if self.devices.remove(&purpose.path()).is_some() {
            self.write(notes);
        }
    }

    fn write(&self, notes: &mut impl Notes) {
        let devices: BTreeMap<&String, Value> =
            self.devices.iter().map(|(path, applied)| (path, applied.value())).collect();
        let content = json!({ "version": VERSION, "devices": devices });
        let written = match self.devices.is_empty() {
            true => notes.remove(&Note::Devices),
            false => notes.write(&Note::Devices, content.to_string().as_bytes()),
        };
        if let Err(error) = written {
            tracing::warn!(
                "{error}: until that is noted, a next process would not know what was applied to \
                 network devices"
            );
        }
    }
}

impl Applied {
    /// The configured bridge, if that was the one with this index, whatever its name is by now, or
    /// if it is not known which it was.
    pub(super) fn configured(&self, index: u32) -> Option<&str> {
        let (name, put_on) = self.bridge.as_ref()?;
        [index, NO_INDEX].contains(put_on).then_some(name.as_str())
    }

    fn value(&self) -> Value {
        let bridge = |it: &Option<(String, u32)>| it.as_ref().map(|it| json!([it.0, it.1]));
        let addresses: Vec<Value> =
            self.addresses.iter().map(|(address, len)| json!([address.to_string(), len])).collect();
        json!({
            "index": self.index,
            "name": self.name,
            "mac": self.mac.map(|mac| mac.0),
            "mtu": self.mtu,
            "bridge": bridge(&self.bridge),
            "home": bridge(&self.home),
            "addresses": addresses,
        })
    }

    fn parse(value: &Value) -> Option<Applied> {
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let byte = |value: &Value| value.as_u64().and_then(|number| u8::try_from(number).ok());
        let mac = value["mac"].as_array();
        let mac = mac.and_then(|mac| mac.iter().map(byte).collect::<Option<Vec<u8>>>());
        let address = |pair: &Value| Some((pair[0].as_str()?.parse().ok()?, byte(&pair[1])?));
        let bridge = |of: &Value| of[0].as_str().map(str::to_owned).zip(number(&of[1]));
        Some(Applied {
            index: number(&value["index"])?,
            name: value["name"].as_str()?.to_owned(),
            mac: mac.and_then(|mac| mac.try_into().ok()).map(MacAddr),
            mtu: number(&value["mtu"]),
            bridge: bridge(&value["bridge"]),
            home: bridge(&value["home"]),
            addresses: value["addresses"].as_array()?.iter().filter_map(address).collect(),
        })
    }
}

/// The devices of a note, or why it is refused.
fn parse(content: &[u8]) -> Result<BTreeMap<String, Applied>, String> {
    if content.is_empty() {
        return Ok(BTreeMap::new());
    }
    let content: Value =
        serde_json::from_slice(content).map_err(|error| format!("is damaged: {error}"))?;
    let version = &content["version"];
    if *version != VERSION {
        return Err(format!("has version {version}, and this process reads {VERSION}"));
    }
    let devices = content["devices"].as_object().into_iter().flatten();
    let devices =
        devices.filter_map(|(path, applied)| Some((path.clone(), Applied::parse(applied)?)));
    Ok(devices.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::tests::Kept;

    #[test]
    fn notes_are_read_back_by_the_next_process_and_other_versions_are_refused() {
        let kept = &mut Kept::default();
        let uplink = Applied {
            index: 7,
            name: "ringway0".to_owned(),
            mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
            mtu: Some(9000),
            bridge: None,
            home: None,
            addresses: vec![("10.0.0.1".parse().expect("one"), 24)],
        };
        let vm1 = Purpose::Virtio("vm1".to_owned());
        let bridged = Applied {
            index: 8,
            name: "vm1".to_owned(),
            bridge: Some(("br0".to_owned(), 3)),
            home: Some(("br1".to_owned(), 4)),
            ..Applied::default()
        };
        let mut notes = AppliedNotes::read("here", kept);
        notes.keep(&Purpose::Uplink, uplink.clone(), kept);
        notes.keep(&vm1, bridged.clone(), kept);
        let mut next = AppliedNotes::read("here", kept);
        assert_eq!(next.of(&Purpose::Uplink), Some(&uplink));
        assert_eq!(next.of(&vm1), Some(&bridged));
        next.forget(&Purpose::Uplink, kept);
        let next = AppliedNotes::read("here", kept);
        assert_eq!((next.of(&Purpose::Uplink), next.of(&vm1)), (None, Some(&bridged)));
        let text = String::from_utf8(kept.notes[&Note::Devices].clone()).expect("JSON");
        assert_eq!(parse(b""), Ok(BTreeMap::new()));
        for (other, reason) in [
            (text.replace("\"version\":1", "\"version\":2"), "has version 2, "),
            ("{}".to_owned(), "has version null, "),
            ("{".to_owned(), "is damaged: "),
        ] {
            let refused = parse(other.as_bytes()).expect_err("it is refused");
            assert!(refused.starts_with(reason), "{refused}");
            kept.notes.insert(Note::Devices, other.into());
            assert_eq!(AppliedNotes::read("here", kept).of(&vm1), None);
        }
        let mut last = next;
        last.forget(&vm1, kept);
        assert_eq!(kept.notes.get(&Note::Devices), None);
    }
}
