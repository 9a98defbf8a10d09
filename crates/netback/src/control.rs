//! The control ring of a vif, which the first of its queues serves.
//!
//! A guest says by it how frames to it should be steered. The settings are those of the vif: they
//! outlive the connection, as a guest that returns may rely on them. Each call carries out one
//! message at most, in place of the guest's own frames, so that a guest which sends nothing but
//! messages costs the others no more than one that sends frames.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ringway_datapath::QueueDown;
use ringway_hypervisor::{EventChannel, ForeignMemory, ForeignPage, GrantCopy, GrantStatus};
use ringway_ring::{BackRing, Control, Notify, RingFault, Waiting};
use ringway_steering::control::{HashControl, Unreadable};
use ringway_wire::netif::{
    CTRL_RING_SLOTS, CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_SUCCESS, CtrlRequest, CtrlResponse,
};
use ringway_wire::{DomId, GrantRef};

/// What a queue has to do with its vif's control ring.
#[derive(Debug)]
pub enum ControlRole<E> {
    /// The vif has none.
    Absent,
    /// Another queue serves it.
    ServedByAnother,
    /// This queue serves it.
    Serves(ControlParts<E>),
}

/// The parts of a control ring, once both sides have negotiated.
pub struct ControlParts<E> {
    /// The mapped ring.
    pub ring: ForeignPage,
    /// Its event channel.
    pub event: E,
    /// What the guest has set so far.
    pub settings: Arc<Mutex<HashControl>>,
    /// The number of connected queues.
    pub queues: u16,
    /// Is given the settings, at once and whenever the guest changes them, before the guest has
    /// its response: to steer by them, and to note them for a backend that is started again.
    pub publish: Publish,
}

/// Takes note of settings.
pub type Publish = Box<dyn FnMut(&HashControl) + Send>;

impl<E> fmt::Debug for ControlParts<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlParts").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// Whether a message was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// One.
    Message,
    /// There was none.
    Nothing,
}

/// The control ring of a vif, and what its messages change.
pub(crate) struct ControlRing<E> {
    ring: BackRing<Control>,
    event: E,
    settings: Arc<Mutex<HashControl>>,
    queues: u16,
    publish: Publish,
    // Dropped last, so that the ring stops using the page before its grant ends.
    _page: ForeignPage,
}

impl<E: EventChannel> ControlRing<E> {
    /// Takes over the ring at its shared indices, and kicks the guest.
    pub(crate) fn attach(parts: ControlParts<E>) -> Result<ControlRing<E>, QueueDown> {
        let ControlParts { ring: page, event, settings, queues, publish } = parts;
        let mut ring = BackRing::attach(page.pages().clone()).map_err(QueueDown::peer)?;
        publish_interrupted(&mut ring).map_err(QueueDown::peer)?;
        let mut control = ControlRing { ring, event, settings, queues, publish, _page: page };
        control.publish();
        control.kick()?;
        Ok(control)
    }

    /// Carries out the next message, if there is one.
    pub(crate) fn serve<M: ForeignMemory>(
        &mut self,
        peer: DomId,
        memory: &mut M,
    ) -> Result<Served, QueueDown> {
        let mut request = [CtrlRequest::default()];
        let (count, _) = self.ring.peek_requests(&mut request).map_err(QueueDown::peer)?;
        if count == 0 {
            return Ok(Served::Nothing);
        }
        self.ring.consume(count);
        let response = self.respond(request[0], |gref, into| read(memory, peer, gref, into))?;
        self.ring.push_response(response);
        if response.status == CTRL_STATUS_SUCCESS {
            self.publish();
        }
        if self.ring.publish_responses() == Notify::Peer {
            self.kick()?;
        }
        Ok(Served::Message)
    }

    fn respond(
        &self,
        request: CtrlRequest,
        mut read: impl FnMut(GrantRef, &mut [u8]) -> Result<GrantStatus, QueueDown>,
    ) -> Result<CtrlResponse, QueueDown> {
        let mut failed = None;
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let response = settings.handle(request, self.queues, |gref, into| match read(gref, into) {
            Ok(GrantStatus::Okay) => Ok(()),
            Ok(_) => Err(Unreadable),
            Err(down) => {
                failed = Some(down);
                Err(Unreadable)
            }
        });
        failed.map_or(Ok(response), Err)
    }

    fn publish(&mut self) {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        (self.publish)(&settings);
    }

    fn kick(&self) -> Result<(), QueueDown> {
        match self.event.notify() {
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(()),
            done => Ok(done?),
        }
    }

    pub(crate) fn event(&self) -> &E {
        &self.event
    }

    pub(crate) fn arm(&mut self) -> Waiting {
        self.ring.arm(1)
    }
}

/// Copies the beginning of a guest's page.
fn read<M: ForeignMemory>(
    memory: &mut M,
    peer: DomId,
    gref: GrantRef,
    into: &mut [u8],
) -> Result<GrantStatus, QueueDown> {
    let len = u16::try_from(into.len()).expect("a key or a mapping fits a page");
    let status = GrantStatus::GeneralError;
    let mut copy = [GrantCopy { gref, offset: 0, len, local: 0, local_offset: 0, status }];
    memory.copy_from_peer(peer, &mut copy, &mut [into])?;
    Ok(copy[0].status)
}

/// Responds to messages whose responses an earlier backend wrote and did not publish. Their id and
/// type are still in their places; whether they were carried out is not known, so the guest has to
/// repeat them.
fn publish_interrupted(ring: &mut BackRing<Control>) -> Result<(), RingFault> {
    let mut requests = [CtrlRequest::default(); CTRL_RING_SLOTS];
    let (count, _) = ring.peek_requests(&mut requests[..ring.interrupted()])?;
    ring.consume(count);
    for CtrlRequest { id, kind, .. } in &requests[..count] {
        let status = CTRL_STATUS_INVALID_PARAMETER;
        ring.push_response(CtrlResponse { id: *id, kind: *kind, status, data: 0 });
    }
    // The guest is notified in any case.
    let _ = ring.publish_responses();
    Ok(())
}
