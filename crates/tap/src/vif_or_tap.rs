//! The two kinds of queue that a process serves, as one type, so that workers call them directly.

use ringway_datapath::queue_of_variants;

use crate::TapQueue;

/// A queue of a vif, or of a TAP device.
pub enum VifOrTap<V> {
    /// A queue of a vif, at either end.
    Vif(V),
    /// A queue of a TAP device.
    Tap(TapQueue),
}

impl<V> From<TapQueue> for VifOrTap<V> {
    fn from(queue: TapQueue) -> VifOrTap<V> {
        VifOrTap::Tap(queue)
    }
}

queue_of_variants!(VifOrTap<V> { Vif, Tap });
