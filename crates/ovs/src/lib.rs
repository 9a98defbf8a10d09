//! Ports of vifs on bridges of Open vSwitch.
//!
//! Which bridge, tag and trunks a text names is in `bridge.rs`, by which ids a network behind Open
//! vSwitch knows a port in `ids.rs` and `table.rs`, and what is changed in the database in
//! `switch.rs`: always by the arguments of one run of `ovs-vsctl`, which no shell reads.
//!
//! Whether and when a vif has a port is not decided here, and no program is started. To read first:
//! [`OpenVswitch::join`].

mod bind;
mod bridge;
mod ids;
mod switch;
mod table;

pub use bind::Bind;
pub use bridge::OvsBridge;
pub use ids::{Facts, Ids, check_id};
pub use switch::{OpenVswitch, PortWanted};
pub use table::Table;
