//! Capabilities: removes all except those of a role, from every set.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Bits of a set. No kernel has more capabilities.
const CAPABILITIES_MAX: u32 = 64;

/// Makes the process unable to gain others.
pub(crate) fn bound(keep: CapabilitySet) -> io::Result<()> {
    // Only a process with this capability may change the bounding set. A process without it was
    // started with few rights by a user who saw to that, and has no way to gain any: set-uid
    // programs give nothing after PR_SET_NO_NEW_PRIVS, and execve is not on the list of calls.
    if capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        reduce_bounding_set(keep)?;
    }
    Ok(clear_ambient_capability_set()?)
}

/// Gives up others, and makes those that are kept effective.
pub(crate) fn reduce(keep: CapabilitySet) -> io::Result<()> {
    let had = capabilities(None)?;
    let kept = had.permitted & keep;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}

/// Gives up others, and lets programs that are started later have those that are kept.
pub(crate) fn reduce_with_programs(keep: CapabilitySet) -> io::Result<()> {
    let kept = capabilities(None)?.permitted & keep;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    set_capabilities(None, sets)?;
    for capability in kept.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

fn reduce_bounding_set(keep: CapabilitySet) -> io::Result<()> {
    let each = (0..CAPABILITIES_MAX).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    for capability in each.filter(|capability| !keep.contains(*capability)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The kernel has no such capability, and none after it.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
