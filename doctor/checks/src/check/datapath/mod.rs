//! What frames go through: drivers, switches, their versions.

pub(super) mod bridges;
pub(super) mod drop_reasons;
pub(super) mod emulated_card;
pub(super) mod grants;
pub(super) mod iommu;
pub(super) mod old_switch;
pub(super) mod ovn_ports;
pub(super) mod rules;
pub(super) mod switch_misses;
