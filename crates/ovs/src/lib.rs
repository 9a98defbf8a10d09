//! Ports of vifs on bridges of Open vSwitch.
//!
//! Which bridge, tag and trunks a text names is in `bridge.rs`, by which ids a network behind Open
//! vSwitch knows a port in `ids.rs` and `table.rs`, whether its bridge takes offloads in
//! `datapath.rs`, and what is read and changed in the database in `switch.rs`: always by the
//! arguments of one run of `ovs-vsctl`, which no shell reads.
//!
//! Whether and when a vif has a port is not decided here, and no program is started. To read first:
//! [`OpenVswitch::join`].

mod bind;
mod bridge;
mod datapath;
mod ids;
mod switch;
mod table;

pub use bind::Bind;
pub use bridge::OvsBridge;
pub use datapath::{Datapath, Version};
pub use ids::{Facts, Ids, check_id};
pub use switch::{OpenVswitch, PortWanted};
pub use table::Table;
