//! Where a frame goes.

use crate::{DropReason, PortId};

/// Where a frame goes, as the switch decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// To this port, which is not the one it came from.
    Unicast(PortId),
    /// To all ports in its scope, except the one it came from.
    Flood,
    /// Likewise, but only to ports with multicast routers.
    Routers,
    /// Nowhere.
    Drop(DropReason),
}

/// A frame that no switch has seen goes nowhere.
impl Default for Verdict {
    fn default() -> Verdict {
        Verdict::Drop(DropReason::NoRoute)
    }
}
