//! Pairs of ports that are the two ends of a link.
//!
//! No bridge forwards frames to the addresses 01:80:c2:00:00:00 to :0f, such as those of LLDP, LACP
//! and EAPOL: they are for the station at the other end of the link. The control plane says which
//! port that is; workers read it without waiting.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ringway_datapath::MacAddr;

use crate::PortId;

/// The partner of each port.
#[derive(Debug)]
pub(crate) struct Links(Box<[AtomicU32]>);

impl Links {
    pub(crate) fn new(ports_max: u16) -> Links {
        Links((0..ports_max).map(|_| AtomicU32::new(NO_PORT)).collect())
    }

    /// Where a frame to a reserved address goes, if anywhere. Pause frames are for the device at
    /// the other end, and would stop a whole port.
    pub(crate) fn partner(&self, from: PortId, dst: MacAddr) -> Option<PortId> {
        let partner = self.0.get(usize::from(from.0))?.load(Relaxed);
        u16::try_from(partner).ok().filter(|_| dst != PAUSE).map(PortId)
    }

    /// Replaces all pairs.
    pub(crate) fn set(&self, pairs: &[(PortId, PortId)]) {
        for (port, partner) in (0..).map(PortId).zip(&self.0) {
            let other = pairs.iter().find_map(|(one, other)| match port {
                _ if port == *one => Some(*other),
                _ if port == *other => Some(*one),
                _ => None,
            });
            partner.store(other.map_or(NO_PORT, |other| other.0.into()), Relaxed);
        }
    }

    /// Ends the pair of a port.
    pub(crate) fn forget(&self, port: PortId) {
        for (number, partner) in (0..).map(PortId).zip(&self.0) {
            if number == port || partner.load(Relaxed) == u32::from(port.0) {
                partner.store(NO_PORT, Relaxed);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|partner| partner.load(Relaxed) == NO_PORT)
    }
}

/// Whether no bridge forwards this address: spanning tree, pause frames, link aggregation and
/// similar (IEEE 802.1D, table 7-10). Their senders are not learned either.
pub(crate) fn is_link_local(dst: MacAddr) -> bool {
    matches!(dst.0, [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00..=0x0f])
}

/// No port has this number.
const NO_PORT: u32 = u32::MAX;
/// The address of MAC control frames (IEEE 802.3, 31A).
const PAUSE: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);
