//! A page of a guest that a message of its control ring names.

use ringway_datapath::QueueDown;
use ringway_hypervisor::{ForeignMemory, GrantCopy, GrantStatus};
use ringway_wire::{DomId, GrantRef};

/// Copies the beginning of the page, once.
pub(crate) fn read<M: ForeignMemory>(
    memory: &mut M,
    (peer, gref): (DomId, GrantRef),
    into: &mut [u8],
) -> Result<GrantStatus, QueueDown> {
    let mut copy = [copy_of(gref, into.len())];
    memory.copy_from_peer(peer, &mut copy, &mut [into])?;
    Ok(copy[0].status)
}

/// Writes the beginning of the page.
pub(crate) fn write<M: ForeignMemory>(
    memory: &mut M,
    (peer, gref): (DomId, GrantRef),
    bytes: &[u8],
) -> Result<GrantStatus, QueueDown> {
    let mut copy = [copy_of(gref, bytes.len())];
    memory.copy_to_peer(peer, &mut copy, &[bytes])?;
    Ok(copy[0].status)
}

fn copy_of(gref: GrantRef, len: usize) -> GrantCopy {
    let len = u16::try_from(len).expect("a key, a mapping and a list fit a page");
    let status = GrantStatus::GeneralError;
    GrantCopy { gref, offset: 0, len, local: 0, local_offset: 0, status }
}
