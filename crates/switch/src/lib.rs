//! The L2 switch: decides by which port a frame leaves.
//!
//! One [`Switch`] is shared by all workers. It learns the ports of addresses from incoming frames
//! and returns a [`Verdict`] for each frame of a batch; it does not move frames. It knows no ring,
//! grant or domain, reads no clock (time is an argument, in [`Ticks`]) and takes no lock; [`fdb`]
//! describes what that means for workers that use the table concurrently.
//!
//! What a port may send is its [`PortPolicy`]: which Ethernet and IP addresses, and whether it may
//! act as a router or a DHCP server.
//!
//! Ports may be in VLANs, with tags or without. Frames of ports in no VLAN are carried unchanged,
//! including tags. A private port reaches uplinks only.
//!
//! If multicast is snooped, a frame for a group leaves by the ports that listen to the group
//! (`groups.rs`).

mod claim;
mod classify;
mod domain;
pub mod fdb;
mod flood;
mod groups;
mod inspect;
mod links;
mod mirror;
mod policy;
mod ports;
mod querier;
mod snoop;

pub use claim::Claim;
pub use classify::{Scope, Switch, SwitchConfig};
pub use flood::{FloodBudget, FloodKind, FloodLimit, StormLimits};
pub use groups::{GroupEntry, MulticastConfig, MulticastPort, Unregistered};
pub use mirror::{MIRRORS_MAX, Mirror, MirrorConfig, Mirrors};
pub use policy::{Binding, PortPolicy, PortVlan, PortVlans};
pub use ports::{Role, TooManyVlans, VLANS_MAX};
pub use ringway_datapath::{PortId, Verdict};

/// A moment on a coarse clock; the caller chooses the unit (tenths of a second work well). It may
/// wrap around; compared moments must be less than 2^31 ticks apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ticks(pub u32);

impl Ticks {
    /// Ticks from `earlier` to `self`; 0 if `earlier` is in fact later, which happens when workers
    /// read the clock at different moments.
    #[inline]
    pub fn since(self, earlier: Ticks) -> u32 {
        let ticks = self.0.wrapping_sub(earlier.0);
        if ticks >> 31 == 0 { ticks } else { 0 }
    }
}
