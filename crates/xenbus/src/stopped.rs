//! The link of a vif whose backend was stopped for good: its frontend sees that it is down, and the
//! next backend shows what was set.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use crate::keys::{CARRIER, KeyChange, Keys, STOPPED};

/// `carrier` if it says only that no backend serves the vif: another form of 0 than anyone sets.
pub(crate) const CUT: &str = "00";

impl Keys {
    /// The changes of a backend's directory, in which these are, that show its frontend a link that
    /// is down, for as long as no backend serves the vif.
    pub fn cut_link(&self) -> [KeyChange; 2] {
        let was_set = self.text(CARRIER) == Some("1");
        [KeyChange::Set(CARRIER.to_owned(), CUT.to_owned()), KeyChange::flag(STOPPED, was_set)]
    }

    /// Those that show the link as it was before, or as it was set since, if no backend served the
    /// vif.
    pub fn restore_link(&self) -> Option<Vec<KeyChange>> {
        let removed = |key: &str| KeyChange::Remove(key.to_owned());
        let was_set = self.text(STOPPED)? == "1";
        let carrier = self.text(CARRIER).filter(|text| *text == CUT).map(|_| match was_set {
            true => KeyChange::flag(CARRIER, true),
            false => removed(CARRIER),
        });
        Some(carrier.into_iter().chain([removed(STOPPED)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::VifLimits;
    use crate::limits::LinkState;

    #[test]
    fn a_link_that_is_cut_was_not_set_down() {
        let text = |change| match change {
            KeyChange::Set(key, value) => (key, value),
            KeyChange::Remove(key) => panic!("{key} was never there"),
        };
        let removed = KeyChange::Remove(CARRIER.to_owned());
        let set = KeyChange::flag(CARRIER, true);
        for (values, link, restored) in
            [(vec![], None, removed), (vec![(CARRIER, "1")], Some(LinkState::Up), set)]
        {
            let before = Keys::new(
                "/b",
                values
                    .into_iter()
                    .map(|(key, value): (&str, &str)| (key.to_owned(), value.to_owned())),
            );
            assert_eq!(before.restore_link(), None);
            let keys = Keys::new("/b", before.cut_link().map(text));
            //= netif.h:carrier-stopped
            assert!(!keys.has_carrier());
            assert_eq!(VifLimits::read(&keys).0, VifLimits { link, ..VifLimits::default() });
            let stopped = KeyChange::Remove(STOPPED.to_owned());
            assert_eq!(keys.restore_link(), Some(vec![restored, stopped.clone()]));
            // What is set meanwhile stays.
            let mut keys = keys;
            keys.insert(CARRIER, "0".to_owned());
            assert_eq!(VifLimits::read(&keys).0.link, Some(LinkState::Down));
            assert_eq!(keys.restore_link(), Some(vec![stopped]));
        }
    }
}
