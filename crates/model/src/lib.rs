//! A small model of what many queues achieve, and the odds behind it. It does no I/O.
//!
//! [`placement`] says how flows fall on queues by chance. The lab compares what it measures with
//! these odds, and the doctor uses them to distinguish chance from a fault. [`predict`] adds what a
//! queue carries, what busy queues cost each other ([`contention`]), what all flows share, by the
//! framing of a [`line`] and the use of stations, and the window of each flow ([`closed`]). [`fit`]
//! finds these parameters in measurements, and [`plan`] what a target needs. [`fill`] shares queues
//! among flows of different rates. [`published`] compares the model with its sources.
//!
//! Rates are in bit/s, sizes in bytes, times in seconds.

pub mod closed;
pub mod contention;
pub mod estimate;
pub mod fill;
pub mod fit;
pub mod line;
pub mod placement;
pub mod plan;
pub mod predict;
pub mod published;
mod search;
