//! By which ids a network behind Open vSwitch knows a vif.

use serde::{Deserialize, Serialize};

use crate::bridge::shortened;
use crate::table::Table;

/// The longest id, in bytes.
const ID_MAX: usize = 255;

/// What is known of a vif, from which its ids follow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `iface-id`, if its description or its toolstack has one.
    pub iface_id: Option<String>,
    /// Its guest's address.
    pub mac: Option<String>,
    /// The name of its virtual machine.
    pub vm_name: Option<String>,
    /// Its number in that machine.
    pub handle: u32,
    /// The uuid that the toolstack has for it.
    pub vif_uuid: Option<String>,
    /// The uuid of its virtual machine.
    pub vm_uuid: Option<String>,
}

/// External ids of an interface of Open vSwitch. OVN and other networks recognize a port by its
/// `iface-id`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// `iface-id`, if there is anything to make it of.
    pub iface_id: Option<String>,
    /// `attached-mac`: the guest's address.
    pub attached_mac: Option<String>,
    /// `vm-uuid`.
    pub vm_uuid: Option<String>,
}

impl Facts {
    /// The ids. The `iface-id` is the vif's own, or else that in the table for its address or for
    /// its machine and handle, or else its uuid, or else that of its machine with its handle.
    ///
    /// # Errors
    /// One of them has other characters than [`check_id`] allows.
    pub(crate) fn ids(self, table: &Table) -> Result<Ids, String> {
        let listed = || table.iface_id(&self).map(str::to_owned);
        let of_machine = || self.vm_uuid.as_ref().map(|uuid| format!("{uuid}.{}", self.handle));
        let own = self.iface_id.clone().or_else(listed).or_else(|| self.vif_uuid.clone());
        let ids = Ids {
            iface_id: own.or_else(of_machine),
            attached_mac: self.mac.clone(),
            vm_uuid: self.vm_uuid.clone(),
        };
        ids.pairs().try_for_each(|(key, value)| check_id(key, value))?;
        Ok(ids)
    }
}

impl Ids {
    /// The ids that there are, by their keys.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let values = [&self.iface_id, &self.attached_mac, &self.vm_uuid];
        let pairs = Ids::KEYS.into_iter().zip(values);
        pairs.filter_map(|(key, value)| Some((key, value.as_deref()?)))
    }

    /// The keys of all ids.
    pub(crate) const KEYS: [&'static str; 3] = ["iface-id", "attached-mac", "vm-uuid"];
}

/// Checks an id that others have chosen: it becomes part of a command and of other programs'
/// databases.
///
/// # Errors
/// It is empty, too long, or has characters that no id needs. The text names the key.
pub fn check_id(key: &str, value: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    match (1..=ID_MAX).contains(&value.len()) && value.bytes().all(is_good) {
        true => Ok(()),
        false => Err(format!(
            "{key} is {:?}: expected 1 to {ID_MAX} letters, digits, `.`, `_`, `:` and `-`",
            shortened(value)
        )),
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
        let iface_id =
            |facts: &Facts, table| facts.clone().ids(table).expect("all are good").iface_id;
        assert_eq!(iface_id(&facts, &listed), some("own"));
        facts.iface_id = None;
        assert_eq!(iface_id(&facts, &listed), some("listed"));
        assert_eq!(iface_id(&facts, &empty), some("aa-bb"));
        facts.vif_uuid = None;
        assert_eq!(iface_id(&facts, &empty), some("cc-dd.0"));
        let ids = facts.clone().ids(&empty).expect("all are good");
        let pairs: Vec<_> = ids.pairs().collect();
        let expected =
            [("iface-id", "cc-dd.0"), ("attached-mac", "00:16:3e:00:00:01"), ("vm-uuid", "cc-dd")];
        assert_eq!(pairs, expected);
        facts.vm_uuid = None;
        assert_eq!(iface_id(&facts, &empty), None);
    }

    #[test]
    fn an_id_with_other_characters_is_refused_by_its_key() {
        for bad in ["", "a b", "a\"b", "a;b", "a\nb", "--x=y ", "\u{e9}", &"x".repeat(256)] {
            let facts = Facts { iface_id: some(bad), ..Facts::default() };
            let refusal = facts.ids(&Table::EMPTY).expect_err(bad);
            assert!(refusal.starts_with("iface-id is \""), "{refusal}");
            let facts = Facts { vm_uuid: some(bad), iface_id: some("a"), ..Facts::default() };
            let refusal = facts.ids(&Table::EMPTY).expect_err(bad);
            assert!(refusal.starts_with("vm-uuid is \"") && refusal.len() < 200, "{refusal}");
        }
        assert_eq!(check_id("iface-id", &"x".repeat(255)), Ok(()));
        assert_eq!(check_id("iface-id", "0f-A.b_c:9"), Ok(()));
    }
}
