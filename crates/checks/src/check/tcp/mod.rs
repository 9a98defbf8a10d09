//! TCP and the limits of sockets.

pub(super) mod conntrack;
pub(super) mod harmful_settings;
pub(super) mod late_completions;
pub(super) mod losses;
pub(super) mod near_bbr;
pub(super) mod small_window;
