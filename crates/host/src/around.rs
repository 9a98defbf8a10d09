//! What calls concern that a host does not keep itself.

use std::sync::Arc;
use std::time::SystemTime;

use ringway_calls::VifStatus;
use ringway_datapath::QueueCounters;
use ringway_switch::PortId;

use crate::shared::Shared;
use crate::vif_state::VifState;
use crate::world::{DeviceOf, Hosting, World};

/// What a host has to know for a call of all else that its process has.
pub struct Around<'a, W: World> {
    /// Its virtio vifs.
    pub virtio: Vec<&'a mut dyn VirtioVif<W>>,
    /// Its uplink.
    pub uplink: Option<OtherPort<'a>>,
    /// What a network device is attached to now, and whether it is down.
    pub place_of: PlaceOf<'a, W>,
    /// The present time, by the wall clock.
    pub wall: SystemTime,
}

impl<W: World> Around<'_, W> {
    /// The states of its virtio vifs.
    pub(crate) fn states(&self) -> impl Iterator<Item = &VifState<W>> + Clone {
        self.virtio.iter().map(|vif| vif.state())
    }
}

/// See [`Around::place_of`].
pub type PlaceOf<'a, W> = &'a dyn Fn(&DeviceOf<W>) -> (String, bool);

/// A virtio vif, as far as calls concern it. It has no keys in XenStore: a note has them for the
/// next process.
pub trait VirtioVif<W: World> {
    /// What it has in common with other vifs.
    fn state(&self) -> &VifState<W>;

    /// Completes its status.
    fn describe(&self, status: VifStatus) -> VifStatus;

    /// Sets a valid limit or mirror, by its key, for as long as it exists.
    ///
    /// # Errors
    /// Why this host cannot do that, or why the next process will not know it.
    fn set(&mut self, key: &str, value: &str, hosting: &mut Hosting<'_, W>) -> Result<(), String>;

    /// Accepts front-ends, or not, according to the remembered panics.
    fn check_quarantine(&mut self, shared: &Shared);
}

/// A port that is not a vif's: the uplink, or a trunk.
#[derive(Debug)]
pub struct OtherPort<'a> {
    /// Its number.
    pub port: PortId,
    /// Its name.
    pub name: &'a str,
    /// The counters of its queues.
    pub counters: &'a [Arc<QueueCounters>],
    /// Why it does not work as it should, if so.
    pub fault: Option<String>,
}
