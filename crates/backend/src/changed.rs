//! Settings of a virtio vif that a user has changed, kept in the run directory for the next process
//! of a backend. A Xen vif has them in XenStore.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use ringway_control::files;
use ringway_datapath::{Mirrored, PortRules};
use ringway_xenbus::{Keys, MIRROR_KEY, VifLimits};

use crate::quarantine::read_at_most;

/// The directory of a virtio vif's keys in messages: they are not in XenStore.
const NO_DIR: &str = "vhost";
/// Bytes of a file: more than all settings.
const LEN_MAX: u64 = 64 << 10; // not a limit: our own file

/// The settings of a vif by their names in XenStore: those of its configuration, and changes.
#[derive(Debug)]
pub(crate) struct Settings {
    file: PathBuf,
    configured: BTreeMap<String, String>,
    changes: BTreeMap<String, Change>,
    /// Bytes of the file.
    len: usize,
}

/// A value, and the one in the configuration at that time: the change ends when that differs.
type Change = (String, Option<String>);

impl Settings {
    /// The settings of a configuration, with the changes that a former process has kept.
    pub(crate) fn read(file: PathBuf, limits: &VifLimits, rules: &PortRules) -> Settings {
        let configured = limits.keys().map(|(key, value)| (key.to_owned(), value));
        let mirror = rules.mirror.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let mirror = (!mirror.is_empty()).then(|| (MIRROR_KEY.to_owned(), mirror));
        let configured: BTreeMap<String, String> = configured.chain(mirror).collect();
        let content = read_at_most(&file, LEN_MAX).unwrap_or_default();
        let changes: Option<BTreeMap<String, Change>> = serde_json::from_slice(&content).ok();
        let mut changes = changes.unwrap_or_default();
        changes.retain(|key, (_, before)| before.as_ref() == configured.get(key));
        Settings { file, configured, changes, len: content.len() }
    }

    /// The limits, as keys.
    pub(crate) fn keys(&self) -> Keys {
        let changes = self.changes.iter().map(|(key, (value, _))| (key.clone(), value.clone()));
        Keys::new(NO_DIR, self.configured.clone().into_iter().chain(changes))
    }

    /// The rules with the mirror that is set.
    pub(crate) fn rules(&self, configured: &PortRules) -> PortRules {
        let changed = self.changes.get(MIRROR_KEY).map(|(value, _)| value.as_str());
        let mirror = changed.and_then(|mirror| Mirrored::parse_list(mirror).ok());
        let mirror = mirror.unwrap_or_else(|| configured.mirror.clone());
        PortRules { mirror, ..configured.clone() }
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// The reason why the next process will not know it, as text.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let configured = self.configured.get(key).cloned();
        match configured.as_deref() == Some(value) {
            true => self.changes.remove(key),
            false => self.changes.insert(key.to_owned(), (value.to_owned(), configured)),
        };
        self.keep().map_err(|error| {
            let file = files::shown(&self.file);
            format!("done, but lost when the backend restarts: {file}: {error}")
        })
    }

    /// Writes in one call and without truncating, so that a killed process leaves the whole text or
    /// the former one.
    fn keep(&mut self) -> io::Result<()> {
        let text = serde_json::to_string(&self.changes).map_err(io::Error::other)?;
        self.len = self.len.max(text.len());
        let text = format!("{text:len$}", len = self.len);
        let mut file = File::options().write(true).create(true).truncate(false).open(&self.file)?;
        file.write_all(text.as_bytes())
    }

    /// Forgets the changes: the vif has ended.
    ///
    /// # Errors
    /// The reason why a later vif with this name will have them, as text.
    pub(crate) fn forget(&self) -> Result<(), String> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{}: {error}", files::shown(&self.file)))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringway_xenbus::Rate;

    use super::*;

    const WEIGHT: &str = "ringway-weight";

    fn weight(settings: &Settings) -> Option<u16> {
        VifLimits::read(&settings.keys()).0.weight
    }

    #[test]
    fn the_next_process_has_the_changes_until_the_configuration_differs() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("vhost-vm1.limits");
        let rate = Some(Rate { bytes: 1000, interval_us: 50_000 });
        let limits = VifLimits { rate, weight: Some(2), ..VifLimits::default() };
        let rules = PortRules::default();
        let read = |limits: &VifLimits| Settings::read(file.clone(), limits, &rules);
        let mut settings = read(&limits);
        assert_eq!(VifLimits::read(&settings.keys()).0, limits);
        settings.set(WEIGHT, "300").expect("kept");
        settings.set("rate", "0,0").expect("kept");
        settings.set(MIRROR_KEY, "vif1.0:tx ringway0").expect("kept");
        let next = read(&limits);
        let kept = VifLimits::read(&next.keys()).0;
        assert_eq!((kept.weight, kept.rate), (Some(300), None));
        assert_eq!(next.rules(&rules).mirror.len(), 2);
        let other = VifLimits { weight: Some(3), ..limits };
        assert_eq!(weight(&read(&other)), Some(3), "the description was changed");
        // A shorter text leaves nothing of a longer one.
        let mut next = read(&limits);
        for (key, value) in [(WEIGHT, "2"), (MIRROR_KEY, "")] {
            next.set(key, value).expect("kept");
        }
        let last = read(&limits);
        assert_eq!((weight(&last), last.rules(&rules).mirror.len()), (Some(2), 0));
        assert_eq!(weight(&read(&other)), Some(3));
        last.forget().expect("forgotten");
        last.forget().expect("nothing is left");
        assert_eq!(VifLimits::read(&read(&limits).keys()).0, limits);
    }

    #[test]
    fn a_damaged_file_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("vhost-vm1.limits");
        let limits = VifLimits { weight: Some(2), ..VifLimits::default() };
        for text in ["", "{", "[1]", "{\"ringway-weight\": {}}"] {
            fs::write(&file, text).expect("written");
            let settings = Settings::read(file.clone(), &limits, &PortRules::default());
            assert_eq!(weight(&settings), Some(2), "{text}");
        }
    }
}
