//! The vifs by port.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_switch::PortId;

use crate::quarantine::Charged;

/// The vifs by port. Clones share it: the thread that panics has one.
#[derive(Debug, Clone, Default)]
pub struct Occupants(Arc<Mutex<BTreeMap<PortId, Charged>>>);

impl Occupants {
    /// The queues of a port are those of this vif from now on.
    pub fn insert(&self, port: PortId, vif: Charged) {
        self.vifs().insert(port, vif);
    }

    /// A port has no queues any more.
    pub fn remove(&self, port: PortId) {
        self.vifs().remove(&port);
    }

    /// The vif at a port.
    pub fn at(&self, port: PortId) -> Option<Charged> {
        self.vifs().get(&port).cloned()
    }

    fn vifs(&self) -> MutexGuard<'_, BTreeMap<PortId, Charged>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
