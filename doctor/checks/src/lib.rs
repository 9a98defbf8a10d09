//! The doctor's checks: what can be wrong, as pure functions from facts to findings.
//!
//! [`check`] holds the catalogue; [`finding`] is what a check says, with the [`finding::Change`]s
//! that it proposes; [`report`] puts findings together for programs and people, and [`explain`] has
//! what is explained but not checked. Nothing here reads a file, runs a program or asks the kernel:
//! `cargo xtask tidy` refuses it. Facts come from `ringway-evidence`.
//!
//! Read first: `check/processors/backlog.rs`, a check in full.

pub mod check;
pub mod explain;
pub mod finding;
#[cfg(test)]
mod hosts;
pub mod report;
