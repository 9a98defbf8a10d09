//! The status of a toolstack's hotplug script for a vif's network device.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use crate::keys::{ERROR_MAX, HOTPLUG_ERROR, HOTPLUG_STATUS, Keys, SCRIPT};

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

/// The end of what a script said, escaped: its last words are the reason. Those before are the
/// command that failed, and begin alike for all reasons.
fn end_of(said: &str) -> String {
    let surplus = said.escape_debug().count().saturating_sub(ERROR_MAX);
    let mark = if surplus > 0 { "..." } else { "" };
    mark.chars().chain(said.escape_debug().skip(surplus)).collect()
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
    fn of_a_long_report_the_end_is_shown() {
        let said = format!("{}\ncould not find bridge br9\n", "ovs-vsctl --timeout=30 ".repeat(40));
        let failed = [("script", "x"), ("hotplug-status", "error"), ("hotplug-error", &said)];
        let Hotplug::Failed(reason) = read(&failed) else { panic!("it failed") };
        assert!(reason.ends_with(" \\ncould not find bridge br9"), "{reason}");
        assert!(reason.contains(") failed: ...") && reason.len() < 400, "{reason}");
    }
}
