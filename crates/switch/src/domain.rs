//! Broadcast domains: which ports receive each other's floods, and the addresses behind them.
//!
//! Ports in no VLAN form one domain, in which frames are carried unchanged. Each VLAN is a domain
//! with its own forwarding table, so that one address may be in several VLANs. The control plane
//! creates and changes domains; workers reach them through the [`PortPolicy`](crate::PortPolicy) of
//! a port, and read sets of ports without waiting.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use ringway_datapath::Vid;

use crate::PortId;
use crate::fdb::Fdb;
use crate::querier::Queriers;

/// A set of ports that is read while it changes.
#[derive(Debug)]
pub(crate) struct PortSet(Box<[AtomicU64]>);

impl PortSet {
    pub(crate) fn new(ports_max: u16) -> PortSet {
        let words = usize::from(ports_max).div_ceil(64);
        PortSet(std::iter::repeat_with(AtomicU64::default).take(words).collect())
    }

    #[inline]
    pub(crate) fn has(&self, port: PortId) -> bool {
        let (word, bit) = place(port);
        self.0.get(word).is_some_and(|word| word.load(Relaxed) & bit != 0)
    }

    /// Sequentially consistent, for a thread that checks afterwards whether another thread has
    /// changed what the set depends on.
    pub(crate) fn set(&self, port: PortId, is_in: bool) {
        let (word, bit) = place(port);
        if let Some(word) = self.0.get(word) {
            match is_in {
                true => word.fetch_or(bit, SeqCst),
                false => word.fetch_and(!bit, SeqCst),
            };
        }
    }

    /// Whether another port is in it.
    pub(crate) fn has_other(&self, port: PortId) -> bool {
        let (own_word, own_bit) = place(port);
        self.0.iter().enumerate().any(|(index, word)| {
            let own = if index == own_word { own_bit } else { 0 };
            word.load(Relaxed) & !own != 0
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Relaxed) == 0)
    }
}

#[inline]
pub(crate) fn place(port: PortId) -> (usize, u64) {
    (usize::from(port.0 / 64), 1 << (port.0 % 64))
}

/// A VLAN.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) vid: Vid,
    pub(crate) fdb: Fdb,
    pub(crate) members: PortSet,
    /// Members that get its frames with a tag.
    pub(crate) tagged: PortSet,
    pub(crate) queriers: Queriers,
}
