//! Rules of a vif as keys, and those that can be set while it runs by their names.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use ringway_datapath::{MulticastRouter, PortRules};

use crate::keys::{
    ADDRESSES_MAX, ALLOWED_MACS, IP, IPV4_ALLOWED, IPV6_ALLOWED, IS_ANNOUNCED, IS_DHCP_SERVER,
    IS_PRIVATE, IS_ROUTER, KeyChange, LINK_LOCAL_TO, LOCKING_MODE, MIRROR, MULTICAST_ROUTER,
    SHARED_MACS, TRUNK, VLAN,
};

/// Every rule. The command line and descriptions of a host have them by these names.
pub const RULES: &[Rule] = &[
    any("locking-mode", LOCKING_MODE, Form::OrNone, "locked, unlocked, disabled, or none"),
    any("allowed-ips", IP, Form::OrNone, "IP addresses and networks that it may have, or none"),
    any("addresses-per-vif", ADDRESSES_MAX, Form::Count, "Ethernet addresses that it may have"),
    any("allowed-macs", ALLOWED_MACS, Form::OrNone, "Further Ethernet addresses, or none"),
    any("shared-macs", SHARED_MACS, Form::OrNone, "Ethernet addresses that vifs share, or none"),
    any("router", IS_ROUTER, Form::Flag, "Whether it may send router advertisements: true, false"),
    any("dhcp-server", IS_DHCP_SERVER, Form::Flag, "Whether it may be a DHCP server: true, false"),
    any("announce", IS_ANNOUNCED, Form::FlagOrTrue, "Whether its guest is announced: true, false"),
    on_switch("vlan", VLAN, Form::OrNone, "The VLAN of its frames without a tag, or none"),
    on_switch("trunk", TRUNK, Form::OrNone, "VLANs of its frames with a tag, with commas, or none"),
    on_switch("private", IS_PRIVATE, Form::Flag, "Whether it reaches the uplink only: true, false"),
    on_switch("multicast-router", MULTICAST_ROUTER, Form::Word, "never, learn or always"),
    on_switch(
        "link-local-to",
        LINK_LOCAL_TO,
        Form::OrNone,
        "The vif at the end of its link, or none",
    ),
    on_switch(
        "mirror",
        MIRROR,
        Form::OrNone,
        "The ports whose frames it gets copies of, and nothing else: vif1.0, vif1.0:tx, vif1.0:rx, \
         all, or none",
    ),
];

/// A rule that can be set while a vif runs.
#[derive(Debug)]
pub struct Rule {
    /// Its name on the command line and in a description.
    pub name: &'static str,
    /// Its key in the backend's directory.
    pub key: &'static str,
    /// Whether only a vif on the switch can have it.
    pub is_of_switch: bool,
    /// What it says, for people.
    pub help: &'static str,
    form: Form,
}

/// How users write a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `true` or `false`, which is the default.
    Flag,
    /// `true`, which is the default, or `false`.
    FlagOrTrue,
    /// A number, or `none`.
    Count,
    /// As in the key.
    Word,
    /// As in the key, or `none` for an empty one.
    OrNone,
}

const fn any(name: &'static str, key: &'static str, form: Form, help: &'static str) -> Rule {
    Rule { name, key, is_of_switch: false, help, form }
}

const fn on_switch(name: &'static str, key: &'static str, form: Form, help: &'static str) -> Rule {
    Rule { name, key, is_of_switch: true, help, form }
}

impl Rule {
    /// The rule with this name.
    pub fn named(name: &str) -> Option<&'static Rule> {
        RULES.iter().find(|rule| rule.name == name)
    }

    /// The value of its key for what a user writes. The result may be invalid.
    ///
    /// # Errors
    /// The text is neither true nor false, and has to be.
    pub fn key_value(&self, text: &str) -> Result<String, String> {
        let value = match (self.form, text) {
            (Form::Flag | Form::FlagOrTrue, "true") => "1",
            (Form::Flag | Form::FlagOrTrue, "false") | (Form::Count, "none") => "0",
            (Form::Flag | Form::FlagOrTrue, _) => {
                return Err(format!("`{text}`: expected `true` or `false`"));
            }
            (Form::OrNone, "none") => "",
            // As it is shown.
            (Form::OrNone, "default") if self.key == LOCKING_MODE => "",
            _ => text,
        };
        Ok(value.to_owned())
    }

    /// What to change in the backend's directory so that the rule has this value alone: addresses
    /// may also be in the keys of XenServer.
    pub fn changes(&self, value: &str) -> Vec<KeyChange> {
        let others: &[&str] = if self.key == IP { &[IPV4_ALLOWED, IPV6_ALLOWED] } else { &[] };
        let set = KeyChange::set(self.key, value);
        let removed = others.iter().map(|key| KeyChange::Remove((*key).to_owned()));
        removed.chain([set]).collect()
    }
}

/// The keys of the rules that are set, with their values: what [`Keys::rules`](crate::Keys::rules)
/// reads.
pub fn keys_of(rules: &PortRules) -> Vec<(&'static str, String)> {
    fn list<T: ToString>(items: &[T]) -> Option<String> {
        let texts: Vec<String> = items.iter().map(T::to_string).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }
    let flag = |is_set: bool| is_set.then(|| "1".to_owned());
    let trunk: Vec<u16> = rules.vlan.tagged.iter().map(|vid| vid.get()).collect();
    let routing = Some(rules.multicast_router).filter(|it| *it != MulticastRouter::default());
    let all = [
        (LOCKING_MODE, rules.locking.map(|mode| mode.to_string())),
        (IP, list(&rules.allowed)),
        (ADDRESSES_MAX, rules.addresses_max.map(|max| max.to_string())),
        (ALLOWED_MACS, list(&rules.allowed_macs)),
        (SHARED_MACS, list(&rules.shared_macs)),
        (IS_ROUTER, flag(rules.is_router)),
        (IS_DHCP_SERVER, flag(rules.is_dhcp_server)),
        (IS_ANNOUNCED, rules.is_unannounced.then(|| "0".to_owned())),
        (VLAN, rules.vlan.untagged.map(|vid| vid.get().to_string())),
        (TRUNK, list(&trunk)),
        (IS_PRIVATE, flag(rules.is_private)),
        (MULTICAST_ROUTER, routing.map(|it| it.to_string())),
        (LINK_LOCAL_TO, rules.link_local_to.clone()),
        (MIRROR, list(&rules.mirror)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// The rules that are set, as users write them: `allowed-ips fd77::1, router true`; `no rules`
/// without any.
pub fn as_set(rules: &PortRules) -> String {
    let text = |(key, value): (&str, String)| {
        let rule = RULES.iter().find(|rule| rule.key == key)?;
        let value = match (rule.form, value.as_str()) {
            (Form::Flag | Form::FlagOrTrue, "1") => "true",
            (Form::Flag | Form::FlagOrTrue, _) => "false",
            (_, value) => value,
        };
        Some(format!("{} {value}", rule.name))
    };
    let all: Vec<String> = keys_of(rules).into_iter().filter_map(text).collect();
    if all.is_empty() { "no rules".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use ringway_datapath::{IpNetwork, LockingMode, MacAddr, Mirrored, Vid, VlanRules};

    use super::*;
    use crate::Keys;

    fn read(keys: impl IntoIterator<Item = (&'static str, String)>) -> Result<PortRules, String> {
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
        Keys::new("", keys).rules().map_err(|bad| bad.to_string())
    }

    /// Rules of which none is a default.
    fn all() -> PortRules {
        PortRules {
            locking: Some(LockingMode::Locked),
            allowed: IpNetwork::parse_list("fd77::1 10.0.0.0/24 10.1.0.1").expect("good"),
            addresses_max: Some(3),
            allowed_macs: vec![MacAddr([2; 6]), MacAddr([4; 6])],
            shared_macs: vec![MacAddr([0, 0, 0x5e, 0, 1, 7])],
            is_router: true,
            is_dhcp_server: true,
            is_unannounced: true,
            multicast_router: MulticastRouter::Learn,
            vlan: VlanRules { untagged: Vid::new(5), tagged: vec![Vid::new(6).expect("good")] },
            is_private: true,
            link_local_to: Some("vif3.0".to_owned()),
            mirror: Mirrored::parse_list("vif1.0:tx,all").expect("good"),
        }
    }

    #[test]
    fn rules_are_read_as_they_are_written() {
        assert_eq!(read(keys_of(&all())), Ok(all()));
        assert_eq!(keys_of(&PortRules::default()), []);
        let written: Vec<&str> = keys_of(&all()).iter().map(|(key, _)| *key).collect();
        let known: Vec<&str> = RULES.iter().map(|rule| rule.key).collect();
        assert_eq!(written, known, "each rule can be set");
    }

    #[test]
    fn rules_are_shown_as_users_set_them() {
        assert_eq!(as_set(&PortRules::default()), "no rules");
        let all = all();
        let some = PortRules { is_router: true, is_unannounced: true, ..PortRules::default() };
        let some = PortRules { allowed_macs: all.allowed_macs, vlan: all.vlan, ..some };
        let shown = "allowed-macs 02:02:02:02:02:02,04:04:04:04:04:04, router true, \
                     announce false, vlan 5, trunk 6";
        assert_eq!(as_set(&some), shown);
    }

    #[test]
    fn each_rule_can_be_unset_again() {
        for rule in RULES {
            let word = match rule.form {
                Form::Flag => "false",
                Form::FlagOrTrue => "true",
                Form::Count | Form::OrNone => "none",
                Form::Word => "never",
            };
            let value = rule.key_value(word).expect("good");
            assert_eq!(read([(rule.key, value)]), Ok(PortRules::default()), "{}", rule.name);
        }
        let default = Rule::named("locking-mode").map(|rule| rule.key_value("default"));
        assert_eq!(default, Some(Ok(String::new())));
        let error = Rule::named("private").map(|rule| rule.key_value("yes"));
        assert!(error.is_some_and(|it| it.is_err_and(|text| text.contains("`true` or `false`"))));
    }

    #[test]
    fn a_vlan_that_is_unset_is_not_that_of_the_vif_line() {
        let line = || ("vlan", "10".to_owned());
        assert!(read([line()]).is_ok_and(|rules| rules.vlan.untagged == Vid::new(10)));
        assert_eq!(read([line(), (VLAN, String::new())]), Ok(PortRules::default()));
    }

    #[test]
    fn addresses_that_are_set_are_the_only_ones() {
        let rule = Rule::named("allowed-ips").expect("known");
        let removed = [IPV4_ALLOWED, IPV6_ALLOWED].map(|key| KeyChange::Remove(key.to_owned()));
        let changes = rule.changes("10.0.0.5");
        assert_eq!(changes[..2], removed);
        assert_eq!(changes[2..], [KeyChange::set(IP, "10.0.0.5")]);
    }
}
