//! The lab: what many queues do on this machine, measured as others published it.
//!
//! A [`study`] says what is measured, a [`plan`] what to run next, [`record`] keeps what was
//! measured, and [`analysis`] says what that means. Nothing here invents a figure: what is not in
//! the records is reported as not measured.
//!
//! Read first: `studies/transmit.toml`, then [`study::Study`] and [`record::Run`].

pub mod analysis;
pub mod assert;
pub mod compare;
pub mod metric;
pub mod placement;
pub mod plan;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod stats;
pub mod study;
pub mod table;
pub mod value;
