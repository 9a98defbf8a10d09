//! The status of a toolstack's hotplug script for a vif's network device.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use crate::keys::{HOTPLUG_ERROR, HOTPLUG_STATUS, Keys, SCRIPT};

/// Bytes of what a script said that are shown: more than scripts of Xen and of Open vSwitch say,
/// and so few that the reason still fits a node of XenStore.
const SAID_MAX: usize = 1000;

/// The progress of the script that connects a vif's network device, for example to a bridge.
///
/// The toolstack runs it once, when the backend is at `InitWait`, and not again when the guest
/// reconnects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hotplug {
    /// There is no script to wait for.
    Absent,
    /// It has not reported yet.
    Pending,
    /// The device is connected.
    Connected,
    /// It failed, for this reason.
    Failed(String),
}

impl Hotplug {
    /// Reads it from the backend's directory (`script`, `hotplug-status` and `hotplug-error`).
    pub fn read(keys: &Keys) -> Hotplug {
        if keys.script().is_none() {
            return Hotplug::Absent;
        }
        match keys.text(HOTPLUG_STATUS) {
            Some("connected") => Hotplug::Connected,
            Some("error") => {
                let said = keys.text(HOTPLUG_ERROR).map(str::trim).filter(|said| !said.is_empty());
                let said = said.map_or("it gives no reason".to_owned(), end_of);
                let script = keys.path(SCRIPT);
                Hotplug::Failed(format!("the hotplug script ({script}) failed: {said}"))
            }
            _ => Hotplug::Pending,
        }
    }
}

/// What a script said, escaped. If that is too long, its end: its last words are the reason, and
/// those before are the command that failed, which begin alike for all reasons.
fn end_of(said: &str) -> String {
    let escaped: String = said.escape_debug().collect();
    let surplus = escaped.len().saturating_sub(SAID_MAX);
    if surplus == 0 {
        return escaped;
    }
    let end = (surplus..).find_map(|start| escaped.get(start..));
    format!("...{}", end.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> Hotplug {
        let values = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Hotplug::read(&Keys::new("/local/domain/0/backend/vif/1/0", values))
    }

    #[test]
    fn a_status_without_a_script_is_ignored() {
        assert_eq!(read(&[]), Hotplug::Absent);
        assert_eq!(read(&[("script", ""), ("hotplug-status", "error")]), Hotplug::Absent);
    }

    #[test]
    fn a_script_is_pending_until_its_status_is_one_of_two_words() {
        let script = ("script", "/etc/xen/scripts/vif-bridge");
        for status in ["", "busy", "Connected"] {
            assert_eq!(read(&[script, ("hotplug-status", status)]), Hotplug::Pending, "{status:?}");
        }
        assert_eq!(read(&[script]), Hotplug::Pending);
        assert_eq!(read(&[script, ("hotplug-status", "connected")]), Hotplug::Connected);
        let failed = [script, ("hotplug-status", "error"), ("hotplug-error", "no bridge\n")];
        let Hotplug::Failed(reason) = read(&failed) else { panic!("it failed") };
        assert!(reason.contains("/1/0/script") && reason.ends_with(": no bridge"), "{reason}");
        assert!(matches!(read(&failed[..2]), Hotplug::Failed(_)));
    }

    #[test]
    fn a_report_is_shown_whole_unless_it_is_too_long_for_xenstore() {
        let reason_of = |said: &str| {
            let failed = [("script", "x"), ("hotplug-status", "error"), ("hotplug-error", said)];
            let Hotplug::Failed(reason) = read(&failed) else { panic!("it failed") };
            reason
        };
        let said = format!("{}could not find bridge br9", "ovs-vsctl --timeout=30 ".repeat(40));
        assert!(reason_of(&said).ends_with(&format!(") failed: {said}")));
        let said = format!("{}\nno bridge br9\n", "å".repeat(2000));
        let reason = reason_of(&said);
        assert!(reason.ends_with("å\\nno bridge br9"), "{reason}");
        assert!(reason.contains(") failed: ...å") && reason.len() < 1100, "{reason}");
    }
}
