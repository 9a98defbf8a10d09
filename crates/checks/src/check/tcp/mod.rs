//! TCP and the limits of sockets.

// A module for each check of this folder: `build.rs` finds them.
tcp_checks!();
