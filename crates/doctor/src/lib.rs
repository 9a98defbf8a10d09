//! The doctor: what slows a host's guest networking, and how that shows.
//!
//! [`evidence`] collects what a host says of itself, or opens what another one said; [`parse`]
//! reads it; a [`fact`] is something typed that is known of a host, and names the pieces of
//! evidence that it is read from. [`check`] holds the catalogue: a check says which facts it needs,
//! and is a pure function from these to [`finding`]s; [`report`] shows them. [`collect`] takes what
//! all facts name, so no check reads what is not recorded. None of these changes a host: a finding
//! proposes [`finding::Change`]s, which only [`mend`] makes, and takes back. [`watch`] serves
//! what is found as metrics.
//!
//! Read first: `check/processors/backlog.rs`, a check in full.

pub mod check;
pub mod coverage;
pub mod evidence;
pub mod fact;
pub mod finding;
mod live;
pub mod mend;
mod number;
pub mod parse;
pub mod probe;
pub mod report;
pub mod watch;

pub use live::{collect, collect_with_paths};
