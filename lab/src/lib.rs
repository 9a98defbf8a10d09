//! The lab: measures what many queues achieve on this machine, for comparison with published
//! figures.
//!
//! A [`study`] describes a measurement, [`setup`] defines the parameters of one of its cells, a
//! [`plan`] selects the next run, [`topology`] builds the network for it, [`runner`] makes the runs
//! with existing tools, [`record`] holds the results, [`journal`] stores them, and [`analysis`]
//! evaluates them and compares them with a model. A [`cost`] in instructions says what a change of
//! code brings. The far end can be on another machine, the [`peer`]. Namespaces, child processes
//! and tools come from [`ringway_rig`]. No figure is invented: what is not in the records is
//! reported as not measured.
//!
//! Read first: `studies/transmit.toml`, then [`study::Study`] and [`record::Run`].

pub mod analysis;
pub mod assert;
pub mod compare;
pub mod cost;
pub mod counters;
pub mod journal;
pub mod metric;
pub mod part;
pub mod peer;
pub mod placement;
pub mod plan;
pub mod preflight;
mod progress;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod runner;
pub mod setup;
pub mod study;
pub mod table;
pub mod topology;
pub mod value;
pub mod word;
