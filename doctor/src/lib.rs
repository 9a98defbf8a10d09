//! The doctor: finds what slows a host's guest networking, with evidence.
//!
//! [`evidence`] collects evidence of this host, or opens a record of another one; [`parse`] parses
//! it; a [`fact`] is a typed statement about a host that names the pieces of evidence it is read
//! from. [`check`] holds the catalogue: a check declares the facts that it needs, and is a pure
//! function from these to [`finding`]s; [`report`] shows them. None of these changes a host: a
//! finding proposes [`finding::Change`]s, which only [`changes`] makes and reverts.
//!
//! Those are separate crates. This crate combines them: [`collect`] collects all pieces that facts
//! name, so that no check reads unrecorded evidence, and [`watch`] turns findings into metrics.
//!
//! Read first: `doctor/checks/src/check/processors/backlog.rs`, a complete check.

mod live;
pub mod watch;

pub use ringway_changes as changes;
pub use ringway_checks::{check, explain, finding, report};
pub use ringway_evidence as evidence;
pub use ringway_evidence::{fact, parse, probe};

pub use live::{collect, collect_with_paths};
