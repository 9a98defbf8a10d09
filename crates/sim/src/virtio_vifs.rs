//! All virtio vifs of a world.

use ringway_datapath::PortRules;
use ringway_xenbus::VifLimits;

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
    /// By honest vif: what the description says.
    pub(crate) sections: Vec<Section>,
    /// By honest vif: whether nothing has gone wrong with it since the backend started.
    pub(crate) are_clean: Vec<bool>,
}

/// What the description says of the virtio vif of an honest guest, apart from its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Section {
    /// Whether it was taken out of the description.
    pub(crate) is_gone: bool,
    pub(crate) limits: VifLimits,
    pub(crate) rules: PortRules,
}

impl Virtio {
    /// Whether a vif was taken out of the description, and is not served.
    pub(crate) fn is_gone(&self, number: usize) -> bool {
        self.sections.get(number).is_some_and(|section| section.is_gone)
    }
}
