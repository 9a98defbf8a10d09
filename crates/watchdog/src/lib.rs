//! Distinguishes threads that are stuck from threads that are starved.
//!
//! Wall time alone says nothing about a thread: on a host that is short of CPUs a healthy one may
//! do nothing for a minute, and ending its process makes that worse. So each watched thread shows
//! its progress in a [`Pulse`]. A thread of its own, the [`Watch`], judges those without progress
//! by the kernel's data on them: one that has used its limit of CPU time is in a loop, one that has
//! slept for the limit where it may not sleep is blocked, and one that waits for a CPU, or is
//! stopped, is neither. It also reports a long time in which it did not run itself: a [`Pause`].
//!
//! It ends nothing. The caller decides what follows from a finding.
//!
//! To read first: [`Pulse`], then `detector.rs`.

mod detector;
mod pause;
mod pulse;
mod thread;
mod watch;

pub use detector::Stuck;
pub use pause::Pause;
pub use pulse::{Pulse, Waiting};
pub use watch::{Finding, Roster, Watch, WatchConfig};
