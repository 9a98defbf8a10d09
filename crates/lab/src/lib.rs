//! The lab: what many queues do on this machine, measured as others published it.
//!
//! A [`study`] says what is measured, [`setup`] what one of its cells means, a [`plan`] what to run
//! next, [`topology`] builds what it needs, [`runner`] makes the runs with the tools of others,
//! [`record`] is what was measured, [`journal`] keeps it, and [`analysis`] says what that means.
//! Namespaces, child processes and tools are those of [`ringway_rig`].
//! Nothing here invents a figure: what is not in the records is reported as not measured.
//!
//! Read first: `studies/transmit.toml`, then [`study::Study`] and [`record::Run`].

pub mod analysis;
pub mod assert;
pub mod compare;
pub mod counters;
pub mod journal;
pub mod metric;
pub mod part;
pub mod placement;
pub mod plan;
pub mod preflight;
mod progress;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod runner;
pub mod setup;
pub mod stats;
pub mod study;
pub mod table;
pub mod topology;
pub mod value;
pub mod word;
