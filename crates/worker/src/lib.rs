//! Workers: threads that own queues and move batches of frames between them.
//!
//! A worker runs rounds. In a round it takes a batch in from each of its active queues, decides
//! for each frame which port it leaves by, and sends what has gathered. A queue of another worker
//! is reached through that worker's [`Inbox`](inbox::Inbox). A worker with nothing to do polls for
//! a short, adaptive time, then arms its queues and sleeps; a queue that sleeps costs nothing.
//!
//! * A queue belongs to one worker from attach to detach; [`Workers`] moves it only in a way that
//!   keeps the order of every flow.
//! * Nothing here locks or allocates per packet.
//! * A full queue holds back those who send to it, for as long as it drains at all; one that stands
//!   still loses frames instead ([`gauge`]).
//!
//! Read `round.rs` first.

mod attached;
mod capture;
mod credit;
mod directory;
pub mod gauge;
mod idle;
pub mod inbox;
mod placement;
mod pool;
mod round;

pub use capture::{Capture, CapturedFrame, Passage};
pub use credit::Credit;
pub use directory::Forwarding;
pub use idle::Polling;
pub use placement::{Placement, Policy};
pub use pool::{Attachment, PortEvent, WORKERS_MAX, Workers, WorkersConfig};
