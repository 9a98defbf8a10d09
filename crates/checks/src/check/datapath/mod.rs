//! What frames go through: drivers, switches, their versions.

// A module for each check of this folder: `build.rs` finds them.
datapath_checks!();
