//! Vifs of Xen that a process finds, several at once: at its start, those that an earlier process
//! has served.
//!
//! Where CPU time is short, most of the time of a take-over is the wait for XenStore's replies. So
//! the keys of some vifs are read together. That they are few keeps the turns of the control loop
//! short, and lets the first of them, which had most traffic, wait little for the others.

use std::collections::btree_map::Entry;
use std::time::Instant;

use ringway_vif_shell::device::{read_keys_together, remove_error, write};
use ringway_xenbus::{KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{Client, Errno, Lost, Transport, unless_refused};

use crate::host::Host;
use crate::world::{Parts, World};
use crate::xen::XenVif;

/// Vifs that are taken over together. A store may grant a domain as few as ten transactions at a
/// time.
const TOGETHER_MAX: usize = 4; // not a limit: the others follow

impl<W: World> Host<W> {
    /// The next vifs in turn, as far as they are new to this process.
    pub(crate) fn next_found(&mut self) -> Vec<Vif> {
        let vifs = &self.vifs;
        let next = || {
            self.turns.next_if(|vif, events| events.has_device_changed && !vifs.contains_key(vif))
        };
        std::iter::from_fn(next).take(TOGETHER_MAX).collect()
    }

    /// Begins to serve these vifs, in this order.
    pub(crate) fn take_over(
        &mut self,
        found: &[Vif],
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        let wanted: Vec<_> =
            found.iter().map(|vif| (vif.backend_dir(), KeySet::BackendDevice)).collect();
        let read = read_keys_together(parts.store, &wanted)?;
        for (vif, keys) in found.iter().zip(read) {
            // The toolstack has changed them meanwhile.
            if keys.as_ref().is_err_and(|error| error.is(Errno::Again)) {
                self.note_device(*vif);
                continue;
            }
            let is_ours = self.scope.has(*vif);
            let keys = unless_refused(keys, None)?.filter(|_| is_ours);
            self.begin(*vif, keys, now, parts)?;
        }
        let wanted = found.iter().filter_map(|vif| {
            let xen = self.vifs.get_mut(vif)?;
            Some((*vif, xen.end.wanted_keys(now)?))
        });
        let (begun, wanted): (Vec<Vif>, Vec<_>) = wanted.unzip();
        let read = read_keys_together(parts.store, &wanted)?;
        for (vif, keys) in begun.iter().zip(read) {
            let Some(xen) = self.vifs.get_mut(vif) else { continue };
            xen.found_keys(keys, &mut self.shared, parts, now)?;
        }
        Ok(())
    }

    /// Begins to serve a vif with these keys that is not served yet, if it is to be served.
    pub(crate) fn begin(
        &mut self,
        vif: Vif,
        keys: Option<Keys>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), Lost> {
        match keys {
            // The toolstack writes the state last.
            Some(keys) if keys.is_online() && keys.state() != XenbusState::Unknown => {
                if let Entry::Vacant(place) = self.vifs.entry(vif) {
                    place.insert(XenVif::begin(vif, &keys, &mut self.shared, parts, now)?);
                }
                Ok(())
            }
            Some(keys) => close_unwanted(parts.store, vif, &keys),
            None => remove_error(parts.store, vif),
        }
    }
}

/// Handles a vif whose keys are incomplete, or that is being removed. The toolstack may be waiting
/// for an earlier backend, which has ended, to close it.
fn close_unwanted<T: Transport>(store: &mut Client<T>, vif: Vif, keys: &Keys) -> Result<(), Lost> {
    remove_error(store, vif)?;
    if keys.state().is_gone() || keys.state() == XenbusState::Initialising {
        return Ok(());
    }
    let closed = write(store, &vif.backend_dir(), &[], Some(XenbusState::Closed));
    unless_refused(closed, ())
}
