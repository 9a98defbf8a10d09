//! What frames go through: drivers, switches, their versions.

// A module for each check of this folder: `build.rs` finds them.
include!(concat!(env!("OUT_DIR"), "/datapath.rs"));
