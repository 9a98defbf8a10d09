//! The doctor: what slows a host's guest networking, and how that shows.
//!
//! [`evidence`] collects what a host says of itself, or opens what another one said; [`parse`]
//! reads it; [`check`] holds the catalogue, whose checks turn it into [`finding`]s; [`report`]
//! shows them. Nothing here changes a host: a finding proposes [`finding::Change`]s.
//!
//! Read first: `check/d18.rs`, a check in full.

pub mod check;
pub mod coverage;
pub mod evidence;
pub mod finding;
pub mod host;
pub mod parse;
pub mod report;
