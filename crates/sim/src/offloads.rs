//! The offloads of vifs, which are set while their guests are connected.

use crate::device::Kind;
use crate::flaw::{Checked, Rule, ensure};
use crate::marks::Mark;
use crate::world::World;

impl World {
    /// At rest, what has left to the network of a vif since the last rest was complete, if its
    /// offloads were off all the time: also that of a guest that goes on to send by an older offer.
    pub(crate) fn check_offloads(&mut self) -> Checked {
        for number in 0..self.plane.devices.len() {
            let unfinished = self.plane.devices[number].take_unfinished();
            let Kind::Vif { guest } = self.plane.devices[number].kind else { continue };
            let name = self.name_of(guest);
            let were_off = self.settings.were_offloads_off(&name);
            ensure(!were_off || unfinished == 0, Rule::Settings, || {
                format!("{unfinished} frames of guest {guest} have left with work undone")
            })?;
            let guest = &self.plane.guests[guest];
            let is_by_older = were_off && guest.is_up && guest.caps.checksum_v4;
            self.plane.marks.add(Mark::OffloadsCompleted, u64::from(is_by_older));
        }
        Ok(())
    }
}
