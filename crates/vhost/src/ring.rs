//! What a session knows of one ring.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_wire::virtio::Features;

/// Where a ring is, in the front-end's address space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The descriptor table.
    pub descriptor: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// The guest address under which writes to the used ring are noted, if they are.
    pub log: Option<u64>,
}

/// Where a ring is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Here, as `SET_VRING_BASE` has it: an available index of 16 bits, or two places in a packed
    /// ring.
    At(u32),
    /// That of the used ring: what is under way is noted in memory, and all that came before it was
    /// completed in order.
    Used,
}

/// Two rings that are to be served.
#[derive(Debug, Clone)]
pub struct PairPlan {
    /// Its number, from 0.
    pub pair: u16,
    /// What the guest's driver and this back-end agreed on.
    pub features: Features,
    /// What the guest receives by.
    pub rx: RingPlan,
    /// What the guest transmits by.
    pub tx: RingPlan,
    /// Whether frames pass. Of a pair that is not enabled, what the guest transmits is taken and
    /// dropped: Linux's driver still transmits by a queue that it has just disabled, and its TCP
    /// waits for what lies there.
    pub is_enabled: bool,
}

/// One of them.
#[derive(Debug, Clone)]
pub struct RingPlan {
    /// Its entries: a power of two.
    pub size: u16,
    /// Where it is.
    pub addresses: Addresses,
    /// Where it goes on.
    pub base: Base,
    /// The guest notifies by it.
    pub kick: Arc<OwnedFd>,
    /// The guest is notified by it; `None` if it polls.
    pub call: Option<Arc<OwnedFd>>,
}

/// One ring of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring {
    pub(crate) size: Option<u16>,
    pub(crate) addresses: Option<Addresses>,
    pub(crate) base: Option<u32>,
    /// It is started while there is one.
    pub(crate) kick: Option<Arc<OwnedFd>>,
    pub(crate) call: Option<Arc<OwnedFd>>,
    /// As the front-end said last; before it has, by what was agreed.
    pub(crate) is_enabled: Option<bool>,
    /// Raised by all that a running ring cannot take over.
    pub(crate) revision: u64,
}

impl Ring {
    /// Forgets everything but whether it is enabled.
    pub(crate) fn reset(&mut self) {
        *self = Ring {
            is_enabled: self.is_enabled,
            call: self.call.take(),
            revision: self.revision + 1,
            ..Ring::default()
        };
    }

    pub(crate) fn plan(&self, resumes: Resumes) -> Option<RingPlan> {
        let base = self.base?;
        let base = match resumes {
            Resumes::AtBase => Base::At(base),
            Resumes::AtUsed => Base::Used,
        };
        Some(RingPlan {
            size: self.size?,
            addresses: self.addresses?,
            base,
            kick: Arc::clone(self.kick.as_ref()?),
            call: self.call.clone(),
        })
    }
}

/// What says where a ring goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resumes {
    /// `SET_VRING_BASE`.
    AtBase,
    /// The used ring.
    AtUsed,
}
