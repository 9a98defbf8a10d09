//! Who does the work: CPUs, interrupts, threads.

// A module for each check of this folder: `build.rs` finds them.
processors_checks!();
