//! Guests that write to memory that is not shared with us.

use std::collections::BTreeMap;

use ringway_hypervisor::Hypervisor;

use super::{Parts, VhostVif};

/// Kicks of a pair from which on its driver has made chains available. QEMU itself kicks each of
/// the two queues when the device starts.
const KICKS_MIN: u64 = 3;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Unshared {
    /// By pair: kicks before the guest last stopped it.
    before: BTreeMap<u16, u64>,
    has_logged: bool,
}

impl Parts {
    /// The guest has stopped a pair: kicks from now on are for other rings.
    pub(super) fn note_stop(&mut self, pair: u16) {
        self.unshared.before.insert(pair, self.kicks(pair));
    }

    fn kicks(&self, pair: u16) -> u64 {
        self.counters.get(&pair).map_or(0, |counters| counters.totals().events_received)
    }

    /// The likely reason if the guest kicks, and its rings stay zeros.
    pub(super) fn unshared(&self) -> Option<String> {
        let blank = self.controls.iter().filter(|(_, control)| control.is_blank());
        let kicks = blank.map(|(pair, _)| {
            let before = self.unshared.before.get(pair).copied().unwrap_or_default();
            // The counters of a new connection begin at zero.
            self.kicks(*pair).saturating_sub(before)
        });
        let kicks = kicks.max().filter(|kicks| *kicks >= KICKS_MIN)?;
        Some(format!(
            "the guest has kicked {kicks} times, but its rings are all zeros, so its memory is \
             probably not shared (QEMU: -object memory-backend-memfd,...,share=on; libvirt: \
             <memoryBacking><access mode='shared'/></memoryBacking>)"
        ))
    }
}

impl<H: Hypervisor> VhostVif<H> {
    /// Logs that once for each time that it happens. Called periodically.
    pub(crate) fn log_unshared(&mut self) {
        let reason = self.parts.unshared();
        if let (Some(reason), false) = (&reason, self.parts.unshared.has_logged) {
            tracing::warn!(vif = self.state.name, "{reason}");
        }
        self.parts.unshared.has_logged = reason.is_some();
    }
}
