//! Panics of the backend over vifs, which it notes for the next process.

use ringway_host::{Charged, Note, PANICS_MAX};
use ringway_switch::PortId;

use crate::flaw::{Checked, Rule, ensure};
use crate::marks::Mark;
use crate::toolstack::vif_of;
use crate::world::World;

impl World {
    /// The backend's process ends because an engine panics over a queue of this guest, and perhaps
    /// the next process as well, at once.
    pub(crate) fn panic_over(&mut self, guest: usize) -> Checked {
        let name = self.name_of(guest);
        let Some(backend) = &self.backend else { return Ok(()) };
        let ports: Vec<PortId> = backend.ports_of(&name).collect();
        if !ports.is_empty() {
            let port = self.plane.choices.pick(&ports);
            let charged = backend.host.shared.occupants.at(port);
            let expected = match guest < self.drivers.len() {
                true => Charged::Xen(vif_of(self.plane.guests[guest].domid)),
                false => Charged::Virtio(name),
            };
            ensure(charged.as_ref() == Some(&expected), Rule::Quarantine, || {
                format!("a panic over guest {guest} is charged to {charged:?}")
            })?;
            for _ in 0..self.plane.choices.from_to(1, PANICS_MAX) {
                self.plane.journal.note(|| format!("a process panics over guest {guest}"));
                self.plane.marks.hit(Mark::BackendPanics);
                self.panics[guest] += usize::from(self.notes.add_panic(&expected));
            }
        }
        self.plane.kill_backend();
        Ok(())
    }

    /// There is no room for notes, or there is room again.
    pub(crate) fn toggle_disk(&mut self) {
        let is_full = self.notes.toggle_room();
        self.plane.marks.add(Mark::DiskFull, u64::from(is_full));
        self.plane.journal.note(|| format!("whether the disk is full: {is_full}"));
    }

    /// Once there is room again, each note is what the process has last said, at the latest when it
    /// has looked after its notes, which it does from time to time.
    pub(crate) fn check_notes(&mut self) -> Checked {
        let World { plane, backend, notes, .. } = self;
        if plane.choices.is_one_in(2) {
            notes.make_room();
        }
        if !notes.has_room() {
            return Ok(());
        }
        backend.iter_mut().for_each(|backend| backend.catch_up(plane));
        let left = notes.unwritten();
        ensure(left.is_empty(), Rule::Notes, || format!("there is room, and not for {left:?}"))
    }

    /// Whether the backend does not serve a guest because of panics.
    pub(crate) fn is_quarantined(&self, guest: usize) -> bool {
        let state = self.backend.as_ref().and_then(|backend| backend.state(&self.name_of(guest)));
        state.is_some_and(|state| state.is_quarantined)
    }

    /// Whether a guest that was released is quarantined again: the process that had released it had
    /// no room to note that, and was killed.
    pub(crate) fn is_release_lost(&self, guest: usize) -> bool {
        self.is_quarantined(guest) && self.notes.is_stale(&Note::Panics)
    }

    /// A vif over which two processes have panicked is not served, and says why. Its administrator
    /// lets it be served.
    pub(crate) fn release_quarantined(&mut self) -> Checked {
        for guest in 0..self.plane.guests.len() {
            let is_quarantined = self.is_quarantined(guest);
            let panics = self.panics[guest];
            ensure(is_quarantined || panics < PANICS_MAX, Rule::Quarantine, || {
                format!("guest {guest} is served after {panics} panics")
            })?;
            if !is_quarantined {
                continue;
            }
            self.plane.marks.hit(Mark::Quarantined);
            let remedy = format!("ringway vif release {}", self.name_of(guest));
            let error = self.error_of(guest)?;
            let says_so = error.as_ref().is_some_and(|error| error.contains(&remedy));
            ensure(says_so, Rule::Quarantine, || {
                format!("guest {guest} is not served, and its error is {error:?}")
            })?;
            self.release(guest)?;
        }
        self.settle()
    }
}
