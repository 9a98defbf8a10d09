//! Settings of a virtio vif that a user has changed, noted for the next process of a backend. A Xen
//! vif has them in XenStore.

use std::collections::BTreeMap;
use std::io;

use ringway_datapath::PortRules;
use ringway_xenbus::{Keys, VifLimits, rules};

use crate::notes::{Note, Notes};

/// The directory of a virtio vif's keys in messages: they are not in XenStore.
const NO_DIR: &str = "vhost";
/// Bytes of a note: more than all settings.
const LEN_MAX: u64 = 64 << 10; // not a limit: our own note

/// The settings of a vif by their names in XenStore: those of its configuration, and changes.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    note: Note,
    configured: BTreeMap<String, String>,
    changes: BTreeMap<String, Change>,
}

/// A value, and the one in the configuration at that time: the change ends when that differs.
type Change = (String, Option<String>);

impl Settings {
    /// The settings in the configuration of the vif with this name, with the changes that a former
    /// process has noted.
    pub(crate) fn read(
        vif: &str,
        limits: &VifLimits,
        rules: &PortRules,
        notes: &mut impl Notes,
    ) -> Settings {
        let note = Note::Settings(vif.to_owned());
        let changes = parse(&notes.read(&note, LEN_MAX)).unwrap_or_else(|error| {
            tracing::warn!(
                vif,
                "what was set at run time is lost, as its note is damaged: {error}"
            );
            BTreeMap::new()
        });
        Settings { note, configured: BTreeMap::new(), changes }.described(limits, rules)
    }

    /// The settings under another configuration: changes stay of what that does not change.
    pub(crate) fn described(&self, limits: &VifLimits, rules: &PortRules) -> Settings {
        let configured = limits.keys().chain(rules::keys_of(rules));
        let configured: BTreeMap<String, String> =
            configured.map(|(key, value)| (key.to_owned(), value)).collect();
        let mut changes = self.changes.clone();
        changes.retain(|key, (_, before)| before.as_ref() == configured.get(key));
        Settings { note: self.note.clone(), configured, changes }
    }

    /// The limits and rules, as keys.
    pub(crate) fn keys(&self) -> Keys {
        let changes = self.changes.iter().map(|(key, (value, _))| (key.clone(), value.clone()));
        Keys::new(NO_DIR, self.configured.clone().into_iter().chain(changes))
    }

    /// The rules; those of the configuration if a note has damaged ones.
    pub(crate) fn rules(&self, configured: &PortRules) -> PortRules {
        self.keys().rules().unwrap_or_else(|_| configured.clone())
    }

    /// Changes a setting, which [`keep`](Settings::keep) then notes.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        let configured = self.configured.get(key).cloned();
        match configured.as_deref() == Some(value) {
            true => self.changes.remove(key),
            false => self.changes.insert(key.to_owned(), (value.to_owned(), configured)),
        };
    }

    /// Notes the changes for the next process.
    ///
    /// # Errors
    /// The reason why the next process will not know them, as text.
    pub(crate) fn keep(&self, notes: &mut impl Notes) -> Result<(), String> {
        let text = serde_json::to_vec(&self.changes).map_err(io::Error::other);
        let noted = text.and_then(|text| notes.write(&self.note, &text));
        noted.map_err(|error| {
            format!("done, but lost if the backend restarts before this is noted: {error}")
        })
    }

    /// Forgets the changes: the vif has ended.
    ///
    /// # Errors
    /// The reason why a later vif with this name will have them.
    pub(crate) fn forget(&self, notes: &mut impl Notes) -> io::Result<()> {
        notes.remove(&self.note)
    }
}

/// The changes of a note, which may not exist.
fn parse(content: &[u8]) -> serde_json::Result<BTreeMap<String, Change>> {
    match content.is_empty() {
        true => Ok(BTreeMap::new()),
        false => serde_json::from_slice(content),
    }
}

#[cfg(test)]
mod tests {
    use ringway_datapath::{Vid, VlanRules};
    use ringway_xenbus::{MIRROR_KEY, Rate};

    use super::*;
    use crate::notes::tests::Kept;

    const WEIGHT: &str = "ringway-weight";

    fn weight(settings: &Settings) -> Option<u16> {
        VifLimits::read(&settings.keys()).0.weight
    }

    #[test]
    fn the_next_process_has_the_changes_until_the_configuration_differs() {
        let notes = &mut Kept::default();
        let rate = Some(Rate { bytes: 1000, interval_us: 50_000 });
        let limits = VifLimits { rate, weight: Some(2), ..VifLimits::default() };
        let rules = PortRules::default();
        let read =
            |limits: &VifLimits, notes: &mut Kept| Settings::read("vm1", limits, &rules, notes);
        let mut settings = read(&limits, notes);
        assert_eq!(VifLimits::read(&settings.keys()).0, limits);
        settings.set(WEIGHT, "300");
        settings.set("rate", "0,0");
        settings.set(MIRROR_KEY, "vif1.0:tx ringway0");
        settings.keep(notes).expect("noted");
        let next = read(&limits, notes);
        let found = VifLimits::read(&next.keys()).0;
        assert_eq!((found.weight, found.rate), (Some(300), None));
        assert_eq!(next.rules(&rules).mirror.len(), 2);
        let other = VifLimits { weight: Some(3), ..limits };
        assert_eq!(weight(&read(&other, notes)), Some(3), "the description was changed");
        // A shorter text leaves nothing of a longer one.
        let mut next = read(&limits, notes);
        for (key, value) in [(WEIGHT, "2"), (MIRROR_KEY, "")] {
            next.set(key, value);
        }
        next.keep(notes).expect("noted");
        let last = read(&limits, notes);
        assert_eq!((weight(&last), last.rules(&rules).mirror.len()), (Some(2), 0));
        assert_eq!(weight(&read(&other, notes)), Some(3));
        last.forget(notes).expect("forgotten");
        last.forget(notes).expect("nothing is left");
        assert_eq!(VifLimits::read(&read(&limits, notes).keys()).0, limits);
    }

    #[test]
    fn rules_that_are_set_stay_beside_those_of_the_description() {
        let notes = &mut Kept::default();
        let limits = VifLimits::default();
        let vlan = |number| VlanRules { untagged: Vid::new(number), ..VlanRules::default() };
        let described = PortRules { vlan: vlan(5), is_router: true, ..PortRules::default() };
        let mut settings = Settings::read("vm1", &limits, &described, notes);
        assert_eq!(settings.rules(&described), described);
        for (key, value) in [("ringway-private", "1"), ("ringway-vlan", "7"), ("ip", "10.0.0.5")] {
            settings.set(key, value);
        }
        settings.keep(notes).expect("noted");
        let next = Settings::read("vm1", &limits, &described, notes);
        let found = next.rules(&described);
        assert_eq!((found.vlan, found.is_private, found.is_router), (vlan(7), true, true));
        assert_eq!(found.allowed.len(), 1);
        // Another description has the last word of what it changes.
        let other = PortRules { vlan: vlan(6), ..described };
        let found = next.described(&limits, &other).rules(&other);
        assert_eq!((found.vlan, found.is_private), (vlan(6), true));
        let text = r#"{"ringway-vlan": ["many", "5"]}"#;
        notes.notes.insert(Note::Settings("vm1".to_owned()), text.into());
        let damaged = Settings::read("vm1", &limits, &PortRules { vlan: vlan(5), ..other }, notes);
        assert_eq!(damaged.rules(&PortRules::default()), PortRules::default());
    }

    #[test]
    fn a_damaged_note_changes_nothing() {
        let notes = &mut Kept::default();
        let limits = VifLimits { weight: Some(2), ..VifLimits::default() };
        for text in ["", "{", "[1]", "{\"ringway-weight\": {}}"] {
            notes.notes.insert(Note::Settings("vm1".to_owned()), text.into());
            let settings = Settings::read("vm1", &limits, &PortRules::default(), notes);
            assert_eq!(weight(&settings), Some(2), "{text}");
            assert_eq!(parse(text.as_bytes()).is_err(), !text.is_empty(), "{text}: with a reason");
        }
    }
}
