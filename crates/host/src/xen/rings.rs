//! Rings and event channels of a guest: how they are mapped and bound, and why that fails.

use std::io;
use std::sync::Arc;

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, Hypervisor, QueueEvents};
use ringway_netback::{FrontendFeatures, Headroom, MulticastControl, QueueParts};
use ringway_wire::{DomId, EvtchnPort, GrantRef};
use ringway_xenbus::{EventPorts, QueueConfig, Vif};
use rustix::io::Errno;

use crate::world::{EventOf, MemoryOf, World};

/// A failed attachment, and its reason.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
struct AttachError {
    what: String,
    source: io::Error,
}

impl AttachError {
    fn of(what: String, source: io::Error) -> io::Error {
        io::Error::new(source.kind(), AttachError { what, source })
    }
}

/// Whether this host lacks a resource that any guest needs: memory, descriptors, entries in a table
/// of the kernel or the hypervisor.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<AttachError>());
    let error = inner.map_or(error, |unattached| &unattached.source);
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(
            errno,
            Some(
                Errno::NOMEM
                    | Errno::MFILE
                    | Errno::NFILE
                    | Errno::NOSPC
                    | Errno::AGAIN
                    | Errno::NOBUFS
            )
        )
}

/// Maps the rings of a queue of a guest, and binds its event channels.
pub(super) fn queue_parts<W: World>(
    hypervisor: &W::Hypervisor,
    vif: Vif,
    queue: &QueueConfig,
    features: FrontendFeatures,
    (multicast, headroom): (Option<Arc<MulticastControl>>, Arc<Headroom>),
) -> io::Result<QueueParts<MemoryOf<W>, EventOf<W>>> {
    let peer = vif.frontend;
    let mut memory = hypervisor.memory()?;
    let mut map = |gref| map_ring(&mut memory, peer, gref);
    let rings = [map(queue.tx_ring_ref)?, map(queue.rx_ring_ref)?];
    let bind = |port| bind(hypervisor, peer, port);
    let events = match queue.events {
        EventPorts::Split { tx, rx } => QueueEvents::Split { tx: bind(tx)?, rx: bind(rx)? },
        EventPorts::Single(both) => QueueEvents::Single(bind(both)?),
    };
    let parts = QueueParts::new(peer, memory, rings, events, features);
    Ok(QueueParts { multicast, headroom, ..parts })
}

/// Maps a page of a guest that is a ring.
pub(super) fn map_ring(
    memory: &mut impl ForeignMemory,
    peer: DomId,
    gref: GrantRef,
) -> io::Result<ForeignPage> {
    let mapped = memory.map(peer, gref, Access::ReadWrite);
    mapped.map_err(|error| AttachError::of(format!("ring page with grant {gref}"), error))
}

/// Binds to an event channel that a guest has offered.
pub(super) fn bind<H: Hypervisor>(
    hypervisor: &H,
    peer: DomId,
    port: EvtchnPort,
) -> io::Result<H::Event> {
    let bound = hypervisor.bind_interdomain(peer, port);
    bound.map_err(|error| AttachError::of(format!("event channel {port}"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_what_any_guest_needs_is_no_refusal() {
        let both = |errno: Errno| {
            let wrapped = AttachError::of("ring page with grant 8".to_owned(), errno.into());
            [io::Error::from(errno), wrapped]
        };
        for errno in
            [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::AGAIN, Errno::NOBUFS]
        {
            assert!(both(errno).iter().all(is_shortage), "{errno}");
        }
        assert!(is_shortage(&io::ErrorKind::OutOfMemory.into()));
        for errno in [Errno::INVAL, Errno::PERM, Errno::NOENT] {
            assert!(!both(errno).iter().any(is_shortage), "{errno}");
        }
        assert!(!is_shortage(&io::Error::other("a ring is broken")));
        let named = AttachError::of("event channel 5".to_owned(), Errno::MFILE.into()).to_string();
        assert!(named.starts_with("event channel 5: "), "{named}");
    }
}
