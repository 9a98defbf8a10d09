//! Tells threads that are stuck from threads that are starved.
//!
//! Wall time says nothing of a thread: on a host that is short of CPUs a healthy one may do nothing
//! for a minute, and to end its process makes that worse. So each watched thread shows a
//! [`Pulse`] as it gets on, and a thread of its own, the [`Watch`], judges those that do not by
//! what the kernel says of them: one that has used its limit of CPU time is in a loop, one that
//! has slept for the limit where it may not sleep is blocked, and one that waits for a CPU, or is
//! stopped, is neither.
//!
//! It ends nothing. What follows from a finding is for the caller.
//!
//! To read first: [`Pulse`], then `judge.rs`.

mod judge;
mod pulse;
mod thread;
mod watch;

pub use judge::Stuck;
pub use pulse::{Pulse, Waiting};
pub use watch::{Finding, Roster, Watch, WatchConfig};
