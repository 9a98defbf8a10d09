//! How work is spread.

// A module for each check of this folder: `build.rs` finds them.
queues_checks!();
