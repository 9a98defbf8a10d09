//! Cards, offloads, links.

// A module for each check of this folder: `build.rs` finds them.
links_checks!();
