//! The control plane of a backend: which vifs are served, and how.
//!
//! It has no descriptor, clock, thread or file. What is around it is a [`World`], and time is an
//! argument. So `ringway-backend` runs it on a real host, and a seed can.
//!
//! Read `world.rs` first, then `host.rs` and `attach.rs`.

// `clippy.toml` keeps clocks, threads and files out.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod announce;
mod arrival;
mod attach;
mod calls;
#[cfg(all(feature = "canary", debug_assertions))]
pub mod canary;
mod changes;
mod chosen;
mod comparison;
mod connection;
mod cut;
mod datapaths;
mod defaults;
mod device;
mod drop_log;
mod host;
mod limited;
mod mirrors;
mod negotiated;
mod notes;
mod occupants;
mod offloads;
mod on_ovs;
mod order;
mod other_port;
mod ovs_ports;
mod pairs;
mod policy;
mod quarantine;
mod reload;
mod restarts;
mod round_robin;
mod rules;
mod scope;
mod session;
mod settings;
mod shared;
mod staged;
mod status;
mod take_over;
mod tenants;
mod uplink;
mod vif_state;
mod virtio;
mod virtio_vifs;
mod waits;
mod world;
mod xen;

pub use calls::{CallReply, NotDone, refuse_of_uplink, refuse_queues_of_uplink};
pub use changes::{DescriptionChanges, VifChanges};
pub use comparison::{Comparison, Followed};
pub use connection::Connection;
pub use cut::cut_links;
pub use datapaths::Datapaths;
pub use device::{
    Bridged, Device, DeviceChange, DeviceKeeper, DeviceState, Devices, HOST_ADDRESS, HostDevice,
    HostLinks, Joining, Keeper, Kernel, Link, LinkKind, LinkSetting, LowMtu, Made, Passed, Place,
    PortDevice, Purpose, Tap, Uplink, UplinkRules, VifDevice, check_bridge, delete_devices,
    open_port_device, uplink_obstacle,
};
pub use host::{Event, Host};
pub use limited::{Limited, unlimited};
pub use notes::{Note, Notes, Retried};
pub use occupants::Occupants;
pub use ovs_ports::{OvsPorts, PortOrder};
pub use quarantine::{Charged, PANICS_MAX, QUARANTINE_DURATION, Quarantine, panic_line, vif_name};
pub use rules::Rules;
pub use scope::{Scope, watch};
pub use session::{Rings, Session, SessionHost, SessionPlace};
pub use shared::{Defaults, HostConfig, QueueDown, Shared};
pub use tenants::{TenantRules, Tenants};
pub use uplink::UplinkPort;
pub use vif_state::VifState;
pub use virtio::{Change, KEYS, Key, VirtioVif, VirtioWanted};
pub use virtio_vifs::{AddedVirtio, Phase};
pub use world::{DeviceOf, EventOf, Hosting, MemoryOf, Parts, QueueOf, SessionEventOf, World};
pub use xen::{Unservable, XenVif, XenWanted};
