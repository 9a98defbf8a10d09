//! The core of the data plane: an [`Engine`] owns queues of ports and moves batches of frames
//! between them.
//!
//! In a round, it takes in a batch from each of its queues, decides for each frame by which port it
//! leaves, and sends the frames that wait. It sends to a queue of another engine through that
//! engine's [`Inbox`]. An engine has no clock, descriptor or thread: time, readiness and commands
//! are arguments, and a round returns how long the caller may wait. The thread that runs it is in
//! `ringway-worker`.
//!
//! * A queue belongs to one engine from attach to detach.
//! * Nothing here locks or allocates per frame.
//! * A full queue holds the sources that send to it ([`gauge`]), as long as that harms no other
//!   queue.
//! * Ports share an engine by the cost of their frames, not by their number of queues.
//!
//! Read `engine.rs` first, then the table in [`state`]. How a control plane attaches, detaches and
//! moves queues is in [`steps`].

mod ahead;
mod allowance;
mod announcement;
mod attached;
mod balance;
mod bridge;
mod capture;
mod credit;
mod directory;
mod engine;
mod forward;
pub mod gauge;
mod hops;
mod inbox;
mod inspect;
#[cfg(all(test, feature = "loom"))]
mod interleavings;
mod kept;
mod limits;
mod outbox;
mod parked;
mod release;
mod roster;
mod share;
mod slot;
mod source;
pub mod state;
mod steering;
pub mod steps;
mod sync;
mod visit;
mod wait;

pub use announcement::Announcement;
pub use attached::{Attached, AttachedParts};
pub use balance::Departure;
pub use bridge::{BridgeBackpressure, BridgePort};
pub use capture::{Capture, CapturedFrame, Passage};
pub use credit::Credit;
pub use directory::{Directory, Forwarding, QueueAddress};
pub use engine::{Engine, Failure};
pub use gauge::Gauge;
pub use hops::Hopped;
pub use inbox::{Inbox, Parcel};
pub use inspect::Whereabouts;
pub use limits::{Limits, egress_credit, segment_credit};
pub use roster::{Move, Placed, Roster, Work};
pub use share::{Stations, Weight};
pub use slot::SlotId;
pub use steering::PortSteering;
pub use wait::{IfIdle, Wait};
