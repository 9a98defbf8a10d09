//! The doctor: what slows a host's guest networking, and how that shows.
//!
//! [`evidence`] collects what a host says of itself, or opens what another one said; [`parse`]
//! reads it; a [`fact`] is something typed that is known of a host, and names the pieces of
//! evidence that it is read from. [`check`] holds the catalogue: a check says which facts it needs,
//! and is a pure function from these to [`finding`]s; [`report`] shows them. None of these changes
//! a host: a finding proposes [`finding::Change`]s, which only [`changes`] makes, and takes back.
//!
//! Those are crates of their own. Here is what needs them together: [`collect`] takes what all
//! facts name, so no check reads what is not recorded, and [`watch`] serves what is found as
//! metrics.
//!
//! Read first: `crates/checks/src/check/processors/backlog.rs`, a check in full.

mod live;
pub mod watch;

pub use ringway_changes as changes;
pub use ringway_checks::{check, coverage, finding, report};
pub use ringway_evidence as evidence;
pub use ringway_evidence::{fact, parse, probe};

pub use live::{collect, collect_with_paths};
