//! Verdicts: where the frames of a batch go.

use std::sync::Arc;

use arrayvec::ArrayVec;
use ringway_datapath::MacAddr;
use ringway_datapath::headers::macs;
use ringway_datapath::{BATCH, DropReason, FrameBatch};

use crate::fdb::Fdb;
use crate::{FloodBudget, FloodLimit, PortId, Ticks};

/// Limits of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Addresses in the forwarding table. It takes about 24 bytes for each.
    pub fdb_entries_max: u32,
    /// Ports: a [`PortId`] is below this.
    pub ports_max: u16,
    /// Addresses that one port may have, unless [`Fdb::set_addresses_max`] says otherwise: an
    /// uplink needs more than a guest.
    pub addresses_per_port_max: u32,
    /// Ticks after which an address that is not seen is forgotten (IEEE 802.1D recommends 300 s).
    pub ageing_ticks: u32,
    /// What one port may flood, unless its budget says otherwise.
    pub flood: FloodLimit,
    /// A random number, so that nobody can choose addresses that compete for the same entries.
    pub hash_seed: u64,
}

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// To this port, which is not the one it came from.
    Unicast(PortId),
    /// To all ports but the one it came from.
    Flood,
    /// Nowhere.
    Drop(DropReason),
}

/// A verdict for each frame of a batch.
pub type Verdicts = ArrayVec<Verdict, BATCH>;

/// A learning switch, shared by all workers.
#[derive(Debug)]
pub struct Switch {
    fdb: Fdb,
    flood: FloodLimit,
}

impl Switch {
    /// A switch that has learned nothing. Takes all its memory here.
    pub fn new(config: SwitchConfig) -> Switch {
        let fdb = Fdb::new(
            config.fdb_entries_max,
            config.ports_max,
            config.addresses_per_port_max,
            config.ageing_ticks,
            config.hash_seed,
        );
        Switch { fdb, flood: config.flood }
    }

    /// The forwarding table.
    pub fn fdb(&self) -> &Fdb {
        &self.fdb
    }

    /// A full budget by the configured limit, for all queues of one port.
    pub fn flood_budget(&self, now: Ticks) -> Arc<FloodBudget> {
        Arc::new(FloodBudget::new(self.flood, now))
    }

    /// Learns the sources of frames that entered at `from` and finds where they go: `verdicts`
    /// becomes one for each frame, in order. `flood` is the budget of `from`.
    ///
    /// Frames that follow each other with the same addresses, as those of a flow do, cost one
    /// look-up. Drops are [`DropReason::Malformed`] for a frame without an Ethernet header,
    /// [`DropReason::BadSource`] for a source that is a group or all zeros,
    /// [`DropReason::NoRoute`] for a destination at `from` itself or reserved for the link, and
    /// [`DropReason::FloodLimit`].
    pub fn classify(
        &self,
        from: PortId,
        batch: &FrameBatch,
        now: Ticks,
        flood: &FloodBudget,
        verdicts: &mut Verdicts,
    ) {
        flood.refill(now);
        verdicts.clear();
        let mut last_macs = None;
        let mut verdict = Verdict::Drop(DropReason::Malformed);
        verdicts.extend(batch.iter().map(|frame| {
            let Some((dst, src)) = macs(frame.bytes()) else {
                return Verdict::Drop(DropReason::Malformed);
            };
            if last_macs != Some((dst, src)) {
                last_macs = Some((dst, src));
                verdict = self.verdict(from, dst, src, now);
            }
            // Each frame pays for itself, however it came to its verdict.
            if verdict == Verdict::Flood && !flood.take(frame.len()) {
                return Verdict::Drop(DropReason::FloodLimit);
            }
            verdict
        }));
    }

    fn verdict(&self, from: PortId, dst: MacAddr, src: MacAddr, now: Ticks) -> Verdict {
        if src.is_multicast() || src == NOBODY {
            return Verdict::Drop(DropReason::BadSource);
        }
        if is_link_local(dst) {
            return Verdict::Drop(DropReason::NoRoute);
        }
        self.fdb.learn(src, from, now);
        if dst.is_multicast() {
            return Verdict::Flood;
        }
        match self.fdb.lookup(dst, now) {
            Some(port) if port == from => Verdict::Drop(DropReason::NoRoute),
            Some(port) => Verdict::Unicast(port),
            None => Verdict::Flood,
        }
    }
}

/// Addresses that no bridge forwards: spanning tree, pause frames, link aggregation and their
/// like (IEEE 802.1D, table 7-10). Their senders are not learned either.
fn is_link_local(dst: MacAddr) -> bool {
    matches!(dst.0, [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00..=0x0f])
}

const NOBODY: MacAddr = MacAddr([0; 6]);
