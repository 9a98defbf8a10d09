//! What users are shown of a virtio vif that does not work as it should.

use ringway_hypervisor::Hypervisor;

use super::VhostVif;

impl<H: Hypervisor> VhostVif<H> {
    /// Whether the front-end may truncate memory of its guest, because a file is not sealed.
    pub(crate) fn may_lose_memory(&self) -> bool {
        let memory = self.parts.memory.as_ref();
        memory.is_some_and(|memory| memory.regions().any(|region| region.may_shrink))
    }

    /// Why nothing is served, if so.
    pub(crate) fn error(&self) -> Option<String> {
        let unattached = || self.why_unattached().map(str::to_owned);
        let of_guest = || self.end.error().or_else(|| self.parts.unshared());
        self.quarantined.clone().or_else(unattached).or_else(of_guest)
    }
}
