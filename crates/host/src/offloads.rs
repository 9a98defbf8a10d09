//! Which work a guest and its network may leave to each other: checksums and segmentation.
//!
//! [`decide`] says so for vifs of both kinds. A guest is offered everything, unless that is turned
//! off: what its network does not take is done in software, as late as possible, so that the guest
//! and its rings have few long frames. What is set applies at once, also to a guest that goes on to
//! send by an older offer.

use std::borrow::Cow;

use ringway_datapath::OffloadCaps;
use ringway_engine::Limits;
use ringway_ovs::Datapath;
use ringway_xenbus::OffloadWish;

use crate::device::Tap as _;
use crate::shared::Shared;
use crate::vif_state::VifState;
use crate::world::{Hosting, World};

/// What is left to no one. Frames in several slots are a matter of a guest and its backend alone:
/// without them a guest could not have a long MTU.
const NOTHING: OffloadCaps = OffloadCaps { scatter_gather: true, ..OffloadCaps::NONE };

/// What stands behind a vif.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// The switch.
    Switch,
    /// The kernel: its bridge, its routes, or where a script has put the vif's device.
    Kernel,
    /// A bridge of Open vSwitch, with its datapath if that is known.
    OpenVswitch(Option<Datapath>),
}

/// What is decided of a vif.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offloading {
    /// What its guest is offered when it connects, and may get.
    pub(crate) offered: OffloadCaps,
    /// What its guest and its network may leave to each other.
    pub(crate) passing: OffloadCaps,
    /// Why, for people.
    pub(crate) why: Cow<'static, str>,
}

fn decide(wish: OffloadWish, behind: Behind) -> Offloading {
    let caps = |are_on: bool| if are_on { OffloadCaps::ALL } else { NOTHING };
    let (passes, why) = match (wish, behind) {
        (OffloadWish::All, _) => (true, "as set".into()),
        (OffloadWish::None, _) => (false, "as set".into()),
        (_, Behind::Switch) => (true, "the switch completes frames for who needs it".into()),
        (_, Behind::Kernel) => (true, "the kernel completes frames".into()),
        (_, Behind::OpenVswitch(Some(datapath))) if datapath.takes_offloads() => {
            (true, format!("its bridge has {datapath}").into())
        }
        (_, Behind::OpenVswitch(Some(datapath))) => {
            (false, format!("ringway completes frames for its bridge, which has {datapath}").into())
        }
        (_, Behind::OpenVswitch(None)) => {
            (false, "Open vSwitch has not said yet which datapath its bridge has".into())
        }
    };
    Offloading { offered: caps(wish != OffloadWish::None), passing: caps(passes), why }
}

impl Offloading {
    /// For which offloads frames from the network are merged, if the guest takes these: a network
    /// that takes long frames brings some, or its kernel merges them itself.
    fn merged(&self, caps: OffloadCaps) -> OffloadCaps {
        if self.passing == NOTHING { self.offered.and(caps) } else { OffloadCaps::NONE }
    }
}

impl<W: World> VifState<W> {
    /// What is decided of it.
    pub(crate) fn offloading(&self, shared: &Shared) -> Offloading {
        let behind = match (&self.device, self.ovs()) {
            (None, _) => Behind::Switch,
            (Some(_), None) => Behind::Kernel,
            (Some(_), Some(bridge)) => Behind::OpenVswitch(shared.datapaths.of(bridge)),
        };
        decide(self.limited.wanted.offloads.unwrap_or_default(), behind)
    }

    /// What its guest is offered when it connects.
    pub(crate) fn offloads_offered(&self, shared: &Shared) -> OffloadCaps {
        self.offloading(shared).offered.and(shared.config.offloads)
    }

    /// Whether frames leave to its guest as they would be on a wire.
    pub(crate) fn is_plain(&self, shared: &Shared) -> bool {
        self.offloading(shared).offered == NOTHING
    }

    /// The limits of the port of its network device.
    pub(crate) fn device_limits(&self, shared: &Shared) -> Limits {
        let is_plain = self.offloading(shared).passing == NOTHING;
        Limits { is_plain, ..Limits::default() }
    }

    /// For which offloads frames from its network device are merged, if its guest takes these.
    pub(crate) fn merged(&self, caps: OffloadCaps, shared: &Shared) -> OffloadCaps {
        match self.headroom.get() {
            0 => self.offloading(shared).merged(caps),
            _ => OffloadCaps::NONE,
        }
    }

    /// Applies what is decided now to a guest that is connected.
    pub(crate) fn apply_offloads(&self, hosting: &mut Hosting<'_, W>) {
        let Some(connection) = &self.connection else { return };
        self.apply_limits(hosting);
        let Some(device) = &self.device else { return };
        device.tap.set_plain(self.device_limits(hosting.shared).is_plain);
        // The kernel has its own way, which costs less.
        let caps = connection.caps.and(self.offloading(hosting.shared).passing);
        if let Err(error) = device.tap.set_offloads(caps) {
            tracing::debug!(vif = self.name, %error, "the network device keeps its offloads");
        }
    }
}

#[cfg(test)]
mod tests {
    use ringway_ovs::Version;

    use super::*;

    #[test]
    fn a_guest_has_all_offloads_and_leaves_its_network_what_that_takes_or_those_that_are_set() {
        let version = |major, minor| Some(Version { major, minor });
        let cases = [
            (Behind::Switch, true),
            (Behind::Kernel, true),
            (Behind::OpenVswitch(Some(Datapath::Kernel)), true),
            (Behind::OpenVswitch(Some(Datapath::Userspace)), false),
            (Behind::OpenVswitch(Some(Datapath::UserspaceTso(version(3, 1)))), false),
            (Behind::OpenVswitch(Some(Datapath::UserspaceTso(version(3, 5)))), true),
            (Behind::OpenVswitch(Some(Datapath::UserspaceTsoSet(version(3, 5)))), false),
            (Behind::OpenVswitch(None), false),
        ];
        for (behind, takes) in cases {
            let decided = decide(OffloadWish::Auto, behind);
            let passing = if takes { OffloadCaps::ALL } else { NOTHING };
            let expected = (OffloadCaps::ALL, passing);
            assert_eq!((decided.offered, decided.passing), expected, "{behind:?}");
            let merged = if takes { OffloadCaps::NONE } else { OffloadCaps::NETIF };
            assert_eq!(decided.merged(OffloadCaps::NETIF), merged, "{behind:?}");
            for (wish, caps) in [(OffloadWish::All, OffloadCaps::ALL), (OffloadWish::None, NOTHING)]
            {
                let decided = decide(wish, behind);
                assert_eq!((decided.offered, decided.passing), (caps, caps), "{behind:?}");
                assert!(!decided.merged(OffloadCaps::ALL).gso_v4, "as set");
            }
        }
    }
}
