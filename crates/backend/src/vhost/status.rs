//! What users are shown of a virtio vif that does not work as it should.

use super::VhostVif;

impl VhostVif {
    /// Whether the front-end may truncate memory of its guest, because a file is not sealed.
    pub(crate) fn may_lose_memory(&self) -> bool {
        let memory = self.parts.memory.as_ref();
        memory.is_some_and(|memory| memory.regions().any(|region| region.may_shrink))
    }

    /// Why nothing is served, if so.
    pub(crate) fn error(&self) -> Option<String> {
        self.quarantined.clone().or_else(|| self.end.error()).or_else(|| self.unshared())
    }

    /// The likely reason if the guest kicks, and its rings stay zeros.
    fn unshared(&self) -> Option<String> {
        let kicks = self.parts.controls.values().find_map(|control| control.blank_kicks())?;
        Some(format!(
            "the guest has kicked {kicks} times, but its rings are all zeros, so its memory is \
             probably not shared (QEMU: -object memory-backend-memfd,...,share=on; libvirt: \
             <memoryBacking><access mode='shared'/></memoryBacking>)"
        ))
    }

    /// Logs that once for each time that it happens. Called periodically.
    pub(crate) fn log_unshared(&mut self) {
        let reason = self.unshared();
        if let (Some(reason), false) = (&reason, self.has_logged_unshared) {
            tracing::warn!(vif = self.served.name, "{reason}");
        }
        self.has_logged_unshared = reason.is_some();
    }
}
