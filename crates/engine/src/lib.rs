//! The core of the data plane: an [`Engine`] owns queues of ports and moves batches of frames
//! between them.
//!
//! In a round it takes a batch in from each of its queues, decides for each frame which port it
//! leaves by, and sends what has gathered. A queue of another engine is reached through that
//! engine's [`Inbox`]. An engine has no clock, no descriptor and no thread: time, readiness and
//! commands are arguments, and a round returns how long it may wait. The thread around it is in
//! `ringway-worker`.
//!
//! * A queue belongs to one engine from attach to detach.
//! * Nothing here locks or allocates per frame.
//! * A full queue holds back the sources that send to it ([`gauge`]), for as long as that harms no
//!   other queue.
//! * Ports share an engine by what their frames cost, not by their number of queues.
//!
//! Read `engine.rs` first, then the table in [`state`]. How a control plane attaches, detaches and
//! moves queues is in [`steps`].

mod allowance;
mod attached;
mod bridge;
mod capture;
mod credit;
mod directory;
mod engine;
mod forward;
pub mod gauge;
mod inbox;
mod inspect;
#[cfg(all(test, feature = "loom"))]
mod interleavings;
mod limits;
mod outbox;
mod roster;
mod share;
mod slot;
mod source;
pub mod state;
pub mod steps;
mod sync;
mod wait;

pub use attached::{Attached, AttachedParts};
pub use bridge::{Arrivals, BridgePort};
pub use capture::{Capture, CapturedFrame, Passage};
pub use credit::Credit;
pub use directory::{Directory, Forwarding, QueueAddress};
pub use engine::{Engine, Failure};
pub use gauge::Gauge;
pub use inbox::{Inbox, Parcel};
pub use inspect::Whereabouts;
pub use limits::{Limits, egress_credit, segment_credit};
pub use roster::{Move, Placed, Roster};
pub use share::{Stations, Weight};
pub use slot::SlotId;
pub use wait::{IfIdle, Wait};
