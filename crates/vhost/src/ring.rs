//! A session's state of one ring.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_wire::virtio::Features;

/// The location of a ring in the front-end's address space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The descriptor table.
    pub descriptor: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// The guest address under which writes to the used ring are logged, if they are.
    pub log: Option<u64>,
}

/// Where a ring continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// At this position, as in `SET_VRING_BASE`: an available index of 16 bits, or two positions in
    /// a packed ring.
    At(u32),
    /// At the used index: chains in flight are recorded in memory, and everything before was
    /// completed in order.
    Used,
}

/// The plan for serving a pair of rings.
#[derive(Debug, Clone)]
pub struct PairPlan {
    /// Its number, from 0.
    pub pair: u16,
    /// The negotiated features.
    pub features: Features,
    /// The ring on which the guest receives.
    pub rx: RingPlan,
    /// The ring on which the guest transmits.
    pub tx: RingPlan,
    /// Whether frames pass. On a disabled pair, frames that the guest transmits are taken and
    /// dropped: Linux's driver still transmits on a queue that it has just disabled, and its TCP
    /// waits for the completion of frames in it.
    pub is_enabled: bool,
}

/// The plan for one ring.
#[derive(Debug, Clone)]
pub struct RingPlan {
    /// Its entries: a power of two.
    pub size: u16,
    /// Its location.
    pub addresses: Addresses,
    /// Where it continues.
    pub base: Base,
    /// The descriptor by which the guest notifies us.
    pub kick: Arc<OwnedFd>,
    /// The descriptor by which we notify the guest; `None` if it polls.
    pub call: Option<Arc<OwnedFd>>,
}

/// One ring of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring {
    pub(crate) size: Option<u16>,
    pub(crate) addresses: Option<Addresses>,
    pub(crate) base: Option<u32>,
    /// The ring is started while this is set.
    pub(crate) kick: Option<Arc<OwnedFd>>,
    pub(crate) call: Option<Arc<OwnedFd>>,
    /// The front-end's last setting; before the first, the default of the negotiated features.
    pub(crate) is_enabled: Option<bool>,
    /// Incremented with every change that a running ring cannot adopt.
    pub(crate) revision: u64,
}

/// A ring that is not set up, of a pair of which something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsetRing {
    /// Its number in the session.
    pub ring: u16,
    /// What the front-end has not passed.
    pub lacks: Vec<&'static str>,
}

impl fmt::Display for UnsetRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.ring % 2 == 0 { "receives" } else { "transmits" };
        write!(
            f,
            "ring {}, on which the guest {direction}, has no {}",
            self.ring,
            self.lacks.join(", no ")
        )
    }
}

impl Ring {
    pub(crate) fn set_addresses(&mut self, addresses: Addresses) {
        if self.addresses.replace(addresses) != Some(addresses) {
            self.revision += 1;
        }
    }

    pub(crate) fn set_kick(&mut self, file: Option<OwnedFd>) {
        self.kick = file.map(Arc::new);
        self.revision += 1;
    }

    pub(crate) fn set_call(&mut self, file: Option<OwnedFd>) {
        self.call = file.map(Arc::new);
        self.revision += 1;
    }

    /// What is missing before it can be served.
    pub(crate) fn lacks(&self) -> Vec<&'static str> {
        let parts = [
            ("size", self.size.is_none()),
            ("addresses", self.addresses.is_none()),
            ("base", self.base.is_none()),
            ("kick", self.kick.is_none()),
        ];
        parts.into_iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| name).collect()
    }

    /// Whether the front-end has passed anything of it.
    fn is_begun(&self) -> bool {
        self.size.is_some()
            || self.addresses.is_some()
            || self.base.is_some()
            || self.kick.is_some()
    }

    /// The ring that is missing more, of a pair of which the front-end has passed something.
    pub(crate) fn unset(pair: u16, [rx, tx]: [&Ring; 2]) -> Option<UnsetRing> {
        let numbered = [(2 * pair, rx.lacks()), (2 * pair + 1, tx.lacks())];
        let (ring, lacks) = numbered.into_iter().max_by_key(|(_, lacks)| lacks.len())?;
        let is_unset = (rx.is_begun() || tx.is_begun()) && !lacks.is_empty();
        is_unset.then_some(UnsetRing { ring, lacks })
    }

    /// Resets everything except whether it is enabled.
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

/// What says where a ring continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resumes {
    /// `SET_VRING_BASE`.
    AtBase,
    /// The used ring.
    AtUsed,
}
