//! A table of `iface-id`s for vifs whose toolstack has no place for one.

use ringway_datapath::MacAddr;
use serde::Deserialize;

use crate::ids::{Facts, Ids, check_id};

/// `[[port]]` sections, each with an `iface-id` for a `mac`, or for the `handle` of a `vm`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    #[serde(default)]
    port: Vec<Port>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Port {
    mac: Option<String>,
    vm: Option<String>,
    handle: Option<u32>,
    iface_id: String,
}

impl Table {
    /// One without ports.
    pub const EMPTY: Table = Table { port: Vec::new() };

    /// Reads it as TOML.
    ///
    /// # Errors
    /// It says something else. The text has the number of the section, if it is about one.
    pub fn parse(text: &str) -> Result<Table, String> {
        let table: Table = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        for (number, port) in (1..).zip(&table.port) {
            let of_port = |error| format!("[[port]] {number}: {error}");
            check_id("iface-id", &port.iface_id).map_err(of_port)?;
            let is_by_mac = port.mac.as_ref().is_some_and(|mac| MacAddr::parse(mac).is_some());
            let is_by_vm = port.vm.is_some();
            if is_by_mac == is_by_vm || (port.mac.is_some() && (is_by_vm || port.handle.is_some()))
            {
                let expected =
                    "expected a `mac`, or a `vm` with the `handle` of its vif".to_owned();
                return Err(of_port(expected));
            }
        }
        Ok(table)
    }

    /// The ids of a vif. Its `iface-id` is its own, or else that in the table for its address or
    /// for its machine and handle, or else its uuid, or else that of its machine with its handle.
    ///
    /// # Errors
    /// One of them has other characters than [`check_id`] allows.
    pub(crate) fn ids(&self, facts: &Facts) -> Result<Ids, String> {
        let listed = || self.iface_id(facts).map(str::to_owned);
        let of_machine = || facts.vm_uuid.as_ref().map(|uuid| format!("{uuid}.{}", facts.handle));
        let own = facts.iface_id.clone().or_else(listed).or_else(|| facts.vif_uuid.clone());
        let ids = Ids {
            iface_id: own.or_else(of_machine),
            attached_mac: facts.mac.clone(),
            vm_uuid: facts.vm_uuid.clone(),
        };
        ids.pairs().try_for_each(|(key, value)| check_id(key, value))?;
        Ok(ids)
    }

    /// The `iface-id` for a vif, if there is one: that of its address before that of its machine.
    fn iface_id(&self, facts: &Facts) -> Option<&str> {
        let mac = facts.mac.as_deref().and_then(MacAddr::parse);
        let is_by_mac =
            |port: &&Port| mac.is_some() && port.mac.as_deref().and_then(MacAddr::parse) == mac;
        let is_by_vm = |port: &&Port| {
            port.vm.is_some()
                && port.vm == facts.vm_name
                && port.handle.unwrap_or(0) == facts.handle
        };
        let mut ports = self.port.iter();
        let found = ports.clone().find(is_by_mac).or_else(|| ports.find(is_by_vm));
        found.map(|port| port.iface_id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn the_iface_id_is_the_first_of_what_is_known() {
        let text = "[[port]]\nvm = \"web\"\niface-id = \"listed\"\n";
        let (listed, empty) = (Table::parse(text).expect("good"), Table::EMPTY);
        let mut facts = Facts {
            iface_id: some("own"),
            mac: some("00:16:3e:00:00:01"),
            vm_name: some("web"),
            handle: 0,
            vif_uuid: some("aa-bb"),
            vm_uuid: some("cc-dd"),
        };
        let iface_id = |facts: &Facts, table: &Table| table.ids(facts).expect("good").iface_id;
        assert_eq!(iface_id(&facts, &listed), some("own"));
        facts.iface_id = None;
        assert_eq!(iface_id(&facts, &listed), some("listed"));
        assert_eq!(iface_id(&facts, &empty), some("aa-bb"));
        facts.vif_uuid = None;
        assert_eq!(iface_id(&facts, &empty), some("cc-dd.0"));
        let ids = empty.ids(&facts).expect("all are good");
        let pairs: Vec<_> = ids.pairs().collect();
        let expected =
            [("iface-id", "cc-dd.0"), ("attached-mac", "00:16:3e:00:00:01"), ("vm-uuid", "cc-dd")];
        assert_eq!(pairs, expected);
        facts.vm_uuid = None;
        assert_eq!(iface_id(&facts, &empty), None);
    }

    #[test]
    fn a_bad_id_is_refused_whichever_it_is() {
        let bad = || some("a b");
        let refusal = Table::EMPTY.ids(&Facts { iface_id: bad(), ..Facts::default() });
        assert!(refusal.is_err_and(|refusal| refusal.starts_with("iface-id is \"a b\"")));
        let facts = Facts { vm_uuid: bad(), iface_id: some("a"), ..Facts::default() };
        assert!(Table::EMPTY.ids(&facts).is_err_and(|it| it.starts_with("vm-uuid is \"a b\"")));
    }

    #[test]
    fn a_port_is_found_by_address_or_by_machine_and_handle() {
        let text = "[[port]]\nvm = 'web 1'\nhandle = 1\niface-id = 'b'\n\
                    [[port]]\nvm = 'web 1'\niface-id = 'a'\n\
                    [[port]]\nmac = '00:16:3E:00:00:0A'\niface-id = 'c'\n";
        let table = Table::parse(text).expect("good");
        let of = |vm: Option<&str>, handle, mac: Option<&str>| {
            let (vm_name, mac) = (vm.map(str::to_owned), mac.map(str::to_owned));
            let facts = Facts { vm_name, handle, mac, ..Facts::default() };
            table.iface_id(&facts).map(str::to_owned)
        };
        assert_eq!(of(Some("web 1"), 0, None).as_deref(), Some("a"));
        assert_eq!(of(Some("web 1"), 1, None).as_deref(), Some("b"));
        assert_eq!(of(Some("web 1"), 1, Some("00:16:3e:00:00:0a")).as_deref(), Some("c"));
        assert_eq!(of(Some("web 1"), 2, Some("00:16:3e:00:00:0b")), None);
        assert_eq!(of(None, 0, None), None);
    }

    #[test]
    fn a_table_that_says_something_else_is_refused_by_the_number_of_its_section() {
        let good = "[[port]]\nvm = 'a'\niface-id = 'a'\n";
        for bad in [
            "iface-id = 'a'",
            "mac = '00:16:3e:00:00:0a'\nvm = 'a'\niface-id = 'a'",
            "mac = '00:16:3e:00:00:0a'\nhandle = 0\niface-id = 'a'",
            "mac = 'a'\niface-id = 'a'",
            "vm = 'a'\niface-id = 'a b'",
        ] {
            let refusal = Table::parse(&format!("{good}[[port]]\n{bad}\n")).expect_err(bad);
            assert!(refusal.starts_with("[[port]] 2: "), "{refusal}");
        }
        for bad in ["vm = 'a'", "vm = 'a'\niface-id = 'a'\nvlan = 7", "vm = 1\niface-id = 'a'"] {
            assert!(Table::parse(&format!("[[port]]\n{bad}\n")).is_err(), "{bad}");
        }
    }
}
