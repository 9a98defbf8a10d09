//! TCP and the limits of sockets.

pub(super) mod conntrack;
pub(super) mod full_sockets;
pub(super) mod harmful_settings;
pub(super) mod held_connections;
pub(super) mod late_completions;
pub(super) mod losses;
pub(super) mod near_bbr;
pub(super) mod path_queue;
pub(super) mod ports;
pub(super) mod small_window;
pub(super) mod stuck;
