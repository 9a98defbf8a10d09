//! How work is spread.

pub(super) mod few_flows;
pub(super) mod hot_interface;
pub(super) mod queue_count;
pub(super) mod queue_interrupts;
pub(super) mod starvation;
pub(super) mod uneven_load;
pub(super) mod unused_queues;
