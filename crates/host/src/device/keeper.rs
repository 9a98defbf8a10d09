//! What a process needs to keep network devices.

use std::io;

use super::applied::AppliedNotes;
use super::in_use;
use super::kernel::Kernel;
use super::purpose::Purpose;
use crate::notes::Notes;

/// Whether ports of Open vSwitch can be asked for: another process does that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// They can.
    Possible,
    /// This machine has no `ovs-vsctl`.
    WithoutVsctl,
    /// Not for vifs of tenants with processes of their own.
    Isolated,
}

/// What a process needs to keep devices.
pub struct Keeper<K> {
    /// The links of the host.
    pub net: K,
    /// Whether its devices can be ports of Open vSwitch.
    pub joining: Joining,
    /// What was applied to the devices.
    pub(crate) applied: AppliedNotes,
}

impl<K: Kernel> Keeper<K> {
    /// Knows what earlier processes have noted. `owner` identifies the devices of a host, whichever
    /// of its processes makes them.
    pub fn new(net: K, owner: &str, notes: &mut impl Notes) -> Keeper<K> {
        let joining = Joining::Isolated;
        Keeper { net, joining, applied: AppliedNotes::read(owner, notes) }
    }

    /// The note on a device.
    pub(crate) fn note_for(&self, purpose: &Purpose) -> String {
        purpose.note(&self.applied.owner)
    }

    /// Checks that no other interface has the name of a device that is to be made, without waiting
    /// for it to go: others need the thread.
    ///
    /// # Errors
    /// One has it.
    pub fn check_name(&mut self, name: &str, purpose: &Purpose) -> io::Result<()> {
        let owner = &self.applied.owner;
        match self.net.link(name).is_ok_and(|link| !purpose.is_of(&link, owner)) {
            true => Err(in_use(name)),
            false => Ok(()),
        }
    }
}
