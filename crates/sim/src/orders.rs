//! The multicast frames that guests order.

use ringway_datapath::{MacAddr, MulticastFilter};
use ringway_host::{Note, vif_name};
use ringway_netfront::GroupOrder;

use crate::flaw::{Checked, Rule, ensure};
use crate::groups::{Chosen, GROUPS, Groups, group};
use crate::guest::Guest;
use crate::marks::Mark;
use crate::notes::KeptNotes;
use crate::toolstack::vif_of;
use crate::world::{World, lost};

impl Guest {
    /// The next process of the backend does not know what there was no room for.
    pub(crate) fn forget_unnoted(&mut self, notes: &KeptNotes) {
        let name = vif_name(vif_of(self.domid));
        self.is_wish_known &= !notes.is_stale(&Note::Hashing(name.clone()));
        self.chosen.are_known &= !notes.is_stale(&Note::Multicast(name));
    }
}

impl World {
    /// At rest, the backend knows what each guest has ordered, whichever process has carried it
    /// out.
    pub(crate) fn check_groups(&mut self) -> Checked {
        for number in 0..self.drivers.len() {
            let guest = &self.plane.guests[number];
            let Chosen { groups, is_requested, are_known } = &guest.chosen;
            let vif = self.backend.as_ref().and_then(|it| it.host.vif(vif_of(guest.domid)));
            let state = vif.map(|vif| &vif.state).filter(|it| it.connection.is_some());
            let is_known = *are_known && guest.is_up;
            let (Some(groups), Some(state), true) = (groups, state, is_known) else { continue };
            let found = state.groups().map(Groups::from_iter);
            ensure(found.as_ref() == Some(groups), Rule::Settings, || {
                format!("guest {number} has ordered {groups:?}, and the backend has {found:?}")
            })?;
            let is_filtered = state.is_multicast_filtered;
            ensure(is_filtered == *is_requested, Rule::Settings, || {
                format!("guest {number} gets only what it orders: {is_filtered}, by its backend")
            })?;
            self.plane.marks.hit(Mark::Ordered);
        }
        Ok(())
    }

    /// A guest orders frames of some addresses, or no more of them, or says whether it wants no
    /// others.
    pub(crate) fn change_groups(&mut self, guest: usize) -> Checked {
        let it = &mut self.plane.guests[guest];
        if it.is_up && self.plane.choices.is_one_in(4) {
            let is_requested = !it.chosen.is_requested;
            it.chosen.is_requested = is_requested;
            let driver = self.drivers[guest].as_mut();
            let said = driver.map_or(Ok(()), |it| it.request_multicast_control(is_requested));
            return said.map_err(|error| lost(&error));
        }
        for _ in 0..self.plane.choices.from_to(1, 16) {
            let group = group(self.plane.choices.below(GROUPS));
            self.order_group(guest, group)?;
        }
        Ok(())
    }

    fn order_group(&mut self, guest: usize, group: MacAddr) -> Checked {
        let it = &mut self.plane.guests[guest];
        let Some(groups) = &mut it.chosen.groups else { return Ok(()) };
        let order = match groups.contains(&group) {
            true => GroupOrder::Remove,
            false if groups.len() < MulticastFilter::ADDRESSES_MAX => GroupOrder::Add,
            false => return Ok(()),
        };
        let nic = it.nics.first_mut().filter(|_| it.is_up);
        let ordered = nic.map_or(Ok(1), |nic| {
            nic.is_awake = true;
            nic.xen().map_or(Ok(1), |queue| queue.order_groups(order, &[group]))
        });
        match (ordered, order) {
            // The ring has no room.
            (Ok(0), _) => Ok(()),
            (Ok(_), GroupOrder::Add) => {
                groups.insert(group);
                Ok(())
            }
            (Ok(_), GroupOrder::Remove) => {
                groups.remove(&group);
                Ok(())
            }
            (Err(down), _) => self.plane.unless_down(guest, Err(down)),
        }
    }
}
