//! What this kernel lacks that a newer one has, and what is lost by that.

use anyhow::Result;
use ringway_sys::eventfd;

use crate::confine;

/// Says what is lost, at the start of a host or a guest. Returns whether files stay reachable for
/// confined processes, which has to be wanted: see [`confine::is_without_landlock`].
///
/// What only takes more time without the newer kernel is not named, such as another process's end
/// (`host/process_end.rs`) or long UDP datagrams that leave by a TAP device (Linux 6.2).
///
/// # Errors
/// There is no Landlock, and less confinement is not wanted.
pub(crate) fn check(is_without_landlock_wanted: bool) -> Result<bool> {
    if !eventfd::reads_without_waiting() {
        tracing::info!(
            "this kernel is older than Linux 5.8: the monitor of a virtio guest can block the \
             worker that serves it, and with that other vifs"
        );
    }
    confine::is_without_landlock(is_without_landlock_wanted)
}
