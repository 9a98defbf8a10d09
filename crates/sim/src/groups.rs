//! The multicast frames from which guests choose.

use std::collections::BTreeSet;

use ringway_datapath::{MacAddr, MulticastFilter};

use crate::choices::Choices;

/// The addresses that a guest orders.
pub(crate) type Groups = BTreeSet<MacAddr>;

/// Addresses from which guests choose: more than a vif may have.
pub(crate) const GROUPS: usize = MulticastFilter::ADDRESSES_MAX + 16;

/// Some addresses, at times as many as a vif may have.
pub(crate) fn choose_groups(choices: &mut Choices) -> Groups {
    let count = choices.pick(&[0, 1, 5, MulticastFilter::ADDRESSES_MAX]);
    (0..count).map(group).collect()
}

/// One of them.
pub(crate) fn group(number: usize) -> MacAddr {
    MacAddr([0x33, 0x33, 0, 0, 0, u8::try_from(number).expect("there are fewer")])
}

/// A guest's choice of multicast frames.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// Those that it orders; `None` for a guest that gets all.
    pub(crate) groups: Option<Groups>,
    /// Whether it wants no others, as it has said.
    pub(crate) is_requested: bool,
    /// Whether its backend has to know them: there was room to note them.
    pub(crate) are_known: bool,
}
