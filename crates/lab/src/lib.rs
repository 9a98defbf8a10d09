//! The lab: what many queues do on this machine, measured as others published it.
//!
//! A [`study`] says what is measured, [`record`] keeps what was measured. Nothing here invents a
//! figure: what is not in the records is reported as not measured.
//!
//! Read first: `studies/transmit.toml`, then [`study::Study`] and [`record::Run`].

pub mod metric;
pub mod record;
pub mod study;
pub mod value;
