//! All virtio vifs of a world.

use crate::socket::Opener;
use crate::vmm::Vmm;

/// All virtio vifs.
#[derive(Default)]
pub(crate) struct Virtio {
    pub(crate) vmms: Vec<Vmm>,
    /// By vif.
    pub(crate) openers: Vec<Opener>,
    /// By vif: the pairs that the description allows now.
    pub(crate) queues: Vec<u16>,
    /// By vif: whether nothing has gone wrong with it since the backend started.
    pub(crate) are_clean: Vec<bool>,
}
