//! The kinds of ring that a backend serves, as one type, so that workers call them directly.

use ringway_datapath::queue_of_variants;
use ringway_trunk::{TrunkEvent, TrunkGrants};
use ringway_virtback::QueuePair;

/// A queue of a trunk, at the tenant's end.
pub(crate) type TrunkQueue = ringway_netfront::VifQueue<TrunkGrants, TrunkEvent>;

/// A queue of which this process is the backend or the frontend, or a virtio pair.
pub(crate) enum VifOrTrunk<V> {
    /// A queue of a vif, or of a trunk in the switch process.
    Vif(V),
    /// A queue of a trunk, in a tenant's process.
    Trunk(Box<TrunkQueue>),
    /// A pair of a virtio device.
    Virtio(Box<QueuePair>),
}

queue_of_variants!(VifOrTrunk<V> { Vif, Trunk, Virtio });
