//! By which ids a network behind Open vSwitch knows a vif.

use serde::{Deserialize, Serialize};

use crate::bridge::shortened;

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

    #[test]
    fn an_id_with_other_characters_is_refused_by_its_key() {
        for bad in ["", "a b", "a\"b", "a;b", "a\nb", "--x=y ", "\u{e9}", &"x".repeat(256)] {
            let refusal = check_id("vm-uuid", bad).expect_err(bad);
            assert!(refusal.starts_with("vm-uuid is \"") && refusal.len() < 200, "{refusal}");
        }
        assert_eq!(check_id("iface-id", &"x".repeat(255)), Ok(()));
        assert_eq!(check_id("iface-id", "0f-A.b_c:9"), Ok(()));
    }
}
