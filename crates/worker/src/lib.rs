//! Workers: the threads that run engines, and the control thread's view of them.
//!
//! A worker gives its [`Engine`](ringway_engine::Engine) what an engine lacks: a clock, descriptors
//! to wait for, and commands. An idle worker polls for a short, adaptive time, then sleeps until a
//! descriptor wakes it; an armed queue costs nothing.
//!
//! [`Workers`] starts threads, attaches and detaches ports, and decides which worker owns which
//! queue. It moves a queue only in a way that keeps the order of every flow.
//!
//! Read `thread.rs` first.

mod bulk;
mod idle;
mod placement;
mod pool;
mod thread;

pub use idle::Polling;
pub use placement::{Placement, Policy};
pub use pool::{OnPanic, WORKERS_MAX, Workers, WorkersConfig};
pub use ringway_engine::steps::Attachment;
pub use ringway_engine::{
    Capture, CapturedFrame, Credit, Failure, Forwarding, Limits, Passage, Stations, Weight,
    egress_credit, segment_credit,
};
