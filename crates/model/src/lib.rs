//! A small model of what many queues achieve, and the odds behind it. It does no I/O.
//!
//! [`placement`] says how flows fall on queues by chance. The lab compares what it measures with
//! these odds, and the doctor uses them to distinguish chance from a fault.

pub mod placement;
