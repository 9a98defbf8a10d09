//! What a description says of bridges that may be those of Open vSwitch.

use std::fmt;
use std::str::FromStr;

use ringway_ovs::{OvsBridge, check_id};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value::{InterfaceName, as_text, text};

/// The bridge of a vif: one of Linux, or one of Open vSwitch, perhaps with VLANs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BridgeName(pub String);

impl FromStr for BridgeName {
    type Err = String;

    fn from_str(text: &str) -> Result<BridgeName, String> {
        match text.contains(':') {
            true => text.parse::<OvsBridge>().map(drop)?,
            false => text.parse::<InterfaceName>().map(drop)?,
        }
        Ok(BridgeName(text.to_owned()))
    }
}

impl fmt::Display for BridgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a vif in a network behind Open vSwitch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IfaceId(pub String);

/// The id of a virtual machine there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmUuid(pub String);

/// What both ids are: texts that may become part of a command.
macro_rules! as_id {
    ($name:ident, $key:literal) => {
        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                check_id($key, text).map(|()| $name(text.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

as_id!(IfaceId, "iface-id");
as_id!(VmUuid, "vm-uuid");
as_text!(BridgeName, IfaceId, VmUuid);

#[cfg(test)]
mod tests {
    use ringway_ovs::Bind;

    use crate::{Usage, differences, parse};

    #[test]
    fn a_bridge_may_have_vlans_and_a_port_an_id_and_others_are_refused_with_their_line() {
        let read = |keys: &str| {
            let text = format!("[[vhost]]\nname = 'vm1'\nsocket = '/run/vm1.sock'\n{keys}\n");
            parse("host.toml", &text, Usage::default()).map_err(|error| error.to_string())
        };
        let host = read(
            "bridge = 'br-int.7:8'\niface-id = 'a.b_c:d-e'\nvm-uuid = 'c-d'\nbind = 'plugged'",
        )
        .expect("it is good");
        let vhost = &host.vhosts[0];
        assert_eq!(vhost.vif.bridge.as_ref().map(|it| it.0.as_str()), Some("br-int.7:8"));
        assert_eq!(vhost.iface_id.as_ref().map(|it| it.0.as_str()), Some("a.b_c:d-e"));
        assert_eq!(vhost.vm_uuid.as_ref().map(|it| it.0.as_str()), Some("c-d"));
        assert_eq!(vhost.bind, Bind::Plugged);
        for (keys, part) in [
            ("bridge = 'br-int:0'", "line 4: vhost.bridge: \"br-int:0\" names no bridge"),
            ("bridge = 'br/int'", "line 4: vhost.bridge: `br/int` is not an interface name"),
            ("iface-id = 'a b'", "line 4: vhost.iface-id: iface-id is \"a b\""),
            ("bind = 'unplugged'", "line 4"),
            ("vm-uuid = ''", "line 4: vhost.vm-uuid: vm-uuid is \"\""),
            (
                "[[guest]]\nname = 'a'\n[[guest.vif]]\nvm-uuid = 'a'",
                "line 7: guest.vif.vm-uuid: not here; set it in [[guest]]",
            ),
        ] {
            let refused = read(keys).expect_err(keys);
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_guest_may_be_on_any_bridge_that_its_host_can_have_with_ids_of_its_port() {
        let read = |host: &str, keys: &str| {
            let guest = "[[guest]]\nname = 'a'\nvm-uuid = 'c-d'\n[[guest.vif]]\n[[guest.vif]]";
            let text = format!("{host}[[bridge]]\nname = 'br0'\n{guest}\n{keys}\n");
            parse("host.toml", &text, Usage::default()).map_err(|error| error.to_string())
        };
        let keys = "bridge = 'br-int:8'\niface-id = 'lsp1'\nbind = 'plugged'";
        let host = read("", keys).expect("it is good");
        let guest = &host.guests[0];
        assert_eq!(guest.vm_uuid.as_ref().map(|it| it.0.as_str()), Some("c-d"));
        let [plain, vif] = &guest.vifs[..] else { panic!("it has two") };
        assert_eq!((&plain.iface_id, plain.bind), (&None, Bind::Connected));
        assert_eq!(vif.bridge.as_ref().map(|it| it.0.as_str()), Some("br-int:8"));
        assert_eq!(vif.iface_id.as_ref().map(|it| it.0.as_str()), Some("lsp1"));
        assert_eq!(vif.bind, Bind::Plugged);
        let other = read("", &keys.replace("lsp1", "lsp2")).expect("it is good");
        assert_eq!(differences(&host, &other), ["guest a"], "it needs another start");
        for (host, keys, part) in [
            ("", "bridge = 'br-int:0'", "line 8: guest.vif.bridge: \"br-int:0\" names no bridge"),
            ("", "iface-id = 'a b'", "line 8: guest.vif.iface-id: iface-id is \"a b\""),
            (
                "[host]\nnetwork = 'private'\n",
                "bridge = 'br-int'",
                "line 10: guest.vif.bridge: there is no [[bridge]] `br-int`, and `network` is \
                 private: expected one of `br0`",
            ),
        ] {
            let refused = read(host, keys).expect_err(keys);
            assert!(refused.contains(part), "{refused}");
        }
    }
}
