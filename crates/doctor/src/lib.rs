//! The doctor: what slows a host's guest networking, and how that shows.
//!
//! [`evidence`] collects what a host says of itself, or opens what another one said; [`parse`]
//! reads it; [`check`] holds the catalogue, whose checks turn it into [`finding`]s; [`report`]
//! shows them. None of these changes a host: a finding proposes [`finding::Change`]s, which only
//! [`mend`] makes, and takes back. [`watch`] serves what is found as metrics.
//!
//! Read first: `check/d18.rs`, a check in full.

pub mod check;
pub mod coverage;
pub mod evidence;
pub mod finding;
pub mod host;
pub mod mend;
mod number;
pub mod parse;
pub mod probe;
pub mod report;
pub mod watch;
