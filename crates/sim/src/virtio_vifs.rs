//! All virtio vifs of a world.

use crate::intruder::Intruder;
use crate::socket::Opener;
use crate::vmm::Vmm;

/// All virtio vifs.
#[derive(Default)]
pub(crate) struct Virtio {
    pub(crate) vmms: Vec<Vmm>,
    pub(crate) intruders: Vec<Intruder>,
    /// By vif: those of honest guests come first.
    pub(crate) openers: Vec<Opener>,
    /// By honest vif: the pairs that the description allows now.
    pub(crate) queues: Vec<u16>,
    /// By honest vif: the weight that the description says, if it says one.
    pub(crate) weights: Vec<Option<u16>>,
    /// By honest vif: whether nothing has gone wrong with it since the backend started.
    pub(crate) are_clean: Vec<bool>,
}
