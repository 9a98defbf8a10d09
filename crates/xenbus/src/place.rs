//! Where a vif is to be, according to its toolstack: on ringway's switch, on a bridge, or where a
//! script puts it.

use crate::keys::{BIND, BRIDGE, BadKeys, IFACE_ID, Keys, SCRIPT, VIFNAME};

/// The hotplug scripts that are ours, by the last part of their paths. Beside the first, the vif is
/// on ringway's own switch, and `bridge` is only libxl's default; beside the second, on `bridge`.
const SWITCH_SCRIPT: &str = "vif-ringway";
const BRIDGE_SCRIPT: &str = "vif-ringway-bridge";

/// The longest interface name in Linux, in bytes (`IFNAMSIZ`, less the 0 at its end).
const INTERFACE_NAME_MAX: usize = 15; // not a limit: the kernel's

impl Keys {
    /// The hotplug script that the toolstack runs for the vif's network device, if any. With one,
    /// the toolstack decides where the device belongs, not the backend.
    pub fn script(&self) -> Option<&str> {
        let is_ours = |script: &str| [SWITCH_SCRIPT, BRIDGE_SCRIPT].contains(&last_part(script));
        self.text(SCRIPT).filter(|script| !script.is_empty() && !is_ours(script))
    }

    /// Whether the vif is on ringway's own switch. A toolstack requests that by naming our script,
    /// because it has no key for it.
    fn is_for_switch(&self) -> bool {
        self.text(SCRIPT).is_some_and(|script| last_part(script) == SWITCH_SCRIPT)
    }

    /// The name that the toolstack gives the vif's network device (`vifname`), if it does not leave
    /// that to the backend.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if Linux would reject the name, or treat it as a pattern of names.
    pub fn device_name(&self) -> Result<Option<&str>, BadKeys> {
        let Some(name) = self.text(VIFNAME).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        // With a `%` the kernel would choose the name; it rejects the other characters
        // (`dev_valid_name`).
        let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
        let is_dots = matches!(name, "." | "..");
        if name.len() > INTERFACE_NAME_MAX || is_dots || name.contains(is_bad) {
            return Err(self.unreadable(VIFNAME, name, "a name for a network interface"));
        }
        Ok(Some(name))
    }

    /// The bridge to attach the vif to, if the toolstack names one: one of Linux, or of Open
    /// vSwitch, perhaps with VLANs as Xen's script for it takes them (`br-int.7:8`).
    pub fn bridge(&self) -> Option<&str> {
        self.text(BRIDGE).filter(|bridge| !bridge.is_empty() && !self.is_for_switch())
    }

    /// When the vif has a port on a bridge of Open vSwitch, if the toolstack has chosen that.
    pub fn bind(&self) -> Option<&str> {
        self.text(BIND)
    }

    /// `iface-id` of the vif's port on a bridge of Open vSwitch, if the toolstack has chosen it.
    pub fn iface_id(&self) -> Option<&str> {
        self.text(IFACE_ID)
    }
}

fn last_part(script: &str) -> &str {
    script.rsplit('/').next().unwrap_or(script)
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;

    use super::*;

    fn named(name: &str) -> Keys {
        Keys::new("/local/domain/0/backend/vif/1/0", [(VIFNAME.to_owned(), name.to_owned())])
    }

    #[test]
    fn a_device_has_a_name_that_linux_accepts() {
        for name in ["vif1.0", "a", "fifteen-bytes-x", "\u{e9}t\u{e9}"] {
            assert_eq!(named(name).device_name(), Ok(Some(name)));
        }
        assert_eq!(named("").device_name(), Ok(None));
        assert_eq!(Keys::new("/1/0", []).device_name(), Ok(None));
        for bad in [
            "sixteen-bytes-xx",
            ".",
            "..",
            "a/b",
            "a b",
            "a\tb",
            "a\n",
            "a:1",
            "tap%d",
            "a\0b",
            "\x1b[2J",
        ] {
            let error = named(bad).device_name().expect_err(bad).to_string();
            assert!(error.contains("/1/0/vifname") && !error.contains(char::is_control), "{error}");
        }
    }

    #[test]
    fn a_vif_with_our_own_script_waits_for_no_script_and_is_on_a_bridge_only_by_that_for_bridges() {
        let both = |script: &str| {
            let own = |text: &str| text.to_owned();
            Keys::new("/b", [(own(SCRIPT), own(script)), (own(BRIDGE), own("xenbr0"))])
        };
        for script in ["vif-ringway", "/etc/xen/scripts/vif-ringway"] {
            assert_eq!((both(script).script(), both(script).bridge()), (None, None));
        }
        for script in ["vif-ringway-bridge", "/etc/xen/scripts/vif-ringway-bridge"] {
            assert_eq!((both(script).script(), both(script).bridge()), (None, Some("xenbr0")));
        }
        for script in ["/etc/xen/scripts/vif-bridge", "/etc/not-vif-ringway"] {
            let keys = both(script);
            assert_eq!((keys.script(), keys.bridge()), (Some(script), Some("xenbr0")));
        }
    }
}
