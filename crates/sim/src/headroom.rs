//! The headroom that guests ask for, as one does that loads a program of XDP.

use ringway_xenbus::XenbusState;

use crate::flaw::{Checked, Rule, ensure};
use crate::marks::Mark;
use crate::toolstack::vif_of;
use crate::world::{World, lost};

/// What a guest asks for: what Linux' frontend does, an odd number, the most, and none.
const CHOICES: [u16; 5] = [256, 256, 33, 2048, 0];

impl World {
    /// A guest asks for other headroom, whatever happens on its rings.
    pub(crate) fn change_headroom(&mut self, guest: usize) -> Checked {
        let bytes = self.plane.choices.pick(&CHOICES);
        let World { plane, drivers, .. } = self;
        let Some(driver) = &mut drivers[guest] else { return Ok(()) };
        // What it has not heard of its backend may have it connect again.
        while driver.turn(plane).map_err(|error| lost(&error))? {}
        self.plane.journal.note(|| format!("guest {guest} asks for {bytes} bytes of headroom"));
        self.plane.marks.hit(Mark::HeadroomChanged);
        let vif = vif_of(self.plane.guests[guest].domid);
        if self.toolstack.backend_state(vif) != XenbusState::Connected {
            // As it does if the last change is not over.
            self.plane.guests[guest].is_disturbed = true;
            self.settings.reconnected(vif);
        }
        let World { plane, drivers, .. } = self;
        let Some(driver) = &mut drivers[guest] else { return Ok(()) };
        driver.ask_for_headroom(bytes, plane).map_err(|error| lost(&error))
    }

    /// At rest, frames for each guest have the headroom that it asks for, whichever process serves
    /// it.
    pub(crate) fn check_headroom(&mut self) -> Checked {
        for (number, driver) in self.drivers.iter().enumerate() {
            let guest = &self.plane.guests[number];
            let vif = self.backend.as_ref().and_then(|it| it.host.vif(vif_of(guest.domid)));
            let state = vif.map(|vif| &vif.state).filter(|it| it.connection.is_some());
            let (Some(driver), Some(state), true) = (driver, state, guest.is_up) else { continue };
            let (wanted, given) = (driver.headroom(), state.headroom.get());
            ensure(wanted == given, Rule::Settings, || {
                format!("guest {number} wants {wanted} bytes of headroom, and has {given}")
            })?;
            if given > 0 {
                self.plane.marks.hit(Mark::Headroom);
            }
        }
        Ok(())
    }
}
