//! The control ring of a vif, which the first of its queues serves.
//!
//! A guest says by it how frames to it should be steered. The settings are those of the vif: they
//! outlive the connection, as a guest that returns may rely on them. Each call carries out one
//! message at most, in place of the guest's own frames, so that a guest which sends nothing but
//! messages costs the others no more than one that sends frames. Those that map pages take several
//! calls (`mapper.rs`).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ringway_datapath::QueueDown;
use ringway_hypervisor::{EventChannel, ForeignMemory, ForeignPage, GrantStatus};
use ringway_ring::{BackRing, Control, Notify, RingFault, Waiting};
use ringway_steering::control::{HashControl, Unreadable};
use ringway_wire::netif::{
    CTRL_RING_SLOTS, CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_SUCCESS,
    CTRL_TYPE_ADD_GREF_MAPPING, CTRL_TYPE_DEL_GREF_MAPPING, CTRL_TYPE_GET_GREF_MAPPING_SIZE,
    CTRL_TYPE_GET_HASH_FLAGS, CTRL_TYPE_GET_HASH_MAPPING_SIZE, CtrlRequest, CtrlResponse,
};
use ringway_wire::{DomId, GrantRef};

use crate::changes::{ChangeNumber, Changes};
use crate::mapper::{Mapper, Step};
use crate::message_page;
use crate::staging::{StagedPages, Staging};

/// What a queue has to do with its vif's control ring.
#[derive(Debug)]
pub enum ControlRole<E> {
    /// The vif has none.
    Absent,
    /// Another queue serves it. These of this queue's pages stay mapped, if any may.
    ServedByAnother(Option<Arc<StagedPages>>),
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
    /// its response: to steer by them.
    pub publish: Publish,
    /// Has each change noted.
    pub changes: Arc<Changes>,
    /// The pages that the guest may have mapped for good, those of this queue first; `None` if it
    /// may have none mapped.
    pub staging: Option<Staging>,
}

/// Takes over settings.
pub type Publish = Box<dyn FnMut(&HashControl) + Send>;

impl<E> fmt::Debug for ControlParts<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlParts").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// Whether a message was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// One, or a part of it.
    Message,
    /// There was none.
    Nothing,
}

/// The control ring of a vif, and what its messages change.
pub(crate) struct ControlRing<E> {
    ring: BackRing<Control>,
    /// The response to a change that is to be noted first.
    unnoted: Option<(CtrlResponse, ChangeNumber)>,
    /// Maps pages of the guest, if it may have any mapped.
    mapper: Option<Mapper>,
    // Dropped last, so that the ring stops using the page before its grant ends.
    parts: ControlParts<E>,
}

impl<E: EventChannel> ControlRing<E> {
    /// Takes over the ring at its shared indices, and kicks the guest.
    pub(crate) fn attach(mut parts: ControlParts<E>) -> Result<ControlRing<E>, QueueDown> {
        let mut ring = BackRing::attach(parts.ring.pages().clone()).map_err(QueueDown::peer)?;
        publish_interrupted(&mut ring).map_err(QueueDown::peer)?;
        let mapper = parts.staging.take().map(Mapper::new);
        let mut control = ControlRing { ring, unnoted: None, mapper, parts };
        control.publish();
        control.kick()?;
        Ok(control)
    }

    /// Responds to the last message, if that is noted by now, or carries out the next one.
    pub(crate) fn serve<M: ForeignMemory>(
        &mut self,
        peer: DomId,
        memory: &mut M,
    ) -> Result<Served, QueueDown> {
        let response = match self.unnoted {
            Some((_, change)) if !self.parts.changes.is_noted(change) => {
                return Ok(Served::Nothing);
            }
            Some((response, _)) => {
                self.unnoted = None;
                response
            }
            None => match self.carry_out(peer, memory)? {
                None => return Ok(Served::Nothing),
                Some(Step::GoesOn) => return Ok(Served::Message),
                Some(Step::Done(response)) => response,
            },
        };
        self.ring.push_response(response);
        if self.ring.publish_responses() == Notify::Peer {
            self.kick()?;
        }
        Ok(Served::Message)
    }

    /// Goes on with the message that was begun, or begins the next one, if there is one.
    fn carry_out<M: ForeignMemory>(
        &mut self,
        peer: DomId,
        memory: &mut M,
    ) -> Result<Option<Step>, QueueDown> {
        if let Some(mapper) = self.mapper.as_mut().filter(|mapper| mapper.is_busy()) {
            return Ok(Some(mapper.go_on(peer, memory)));
        }
        let mut request = [CtrlRequest::default()];
        let (count, _) = self.ring.peek_requests(&mut request).map_err(QueueDown::peer)?;
        if count == 0 {
            return Ok(None);
        }
        self.ring.consume(count);
        let [request] = request;
        if let Some(mapper) = self.mapper.as_mut().filter(|_| is_of_mapping(request.kind)) {
            return mapper.begin(request, peer, memory).map(Some);
        }
        let read = |gref, into: &mut [u8]| message_page::read(memory, (peer, gref), into);
        let response = self.respond(request, read)?;
        if response.status == CTRL_STATUS_SUCCESS && !is_question(response.kind) {
            self.publish();
            self.unnoted = Some((response, self.parts.changes.add()));
            return Ok(Some(Step::GoesOn));
        }
        Ok(Some(Step::Done(response)))
    }

    fn respond(
        &self,
        request: CtrlRequest,
        mut read: impl FnMut(GrantRef, &mut [u8]) -> Result<GrantStatus, QueueDown>,
    ) -> Result<CtrlResponse, QueueDown> {
        let mut failed = None;
        let mut settings = self.parts.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let response =
            settings.handle(request, self.parts.queues, |gref, into| match read(gref, into) {
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
        let settings = self.parts.settings.lock().unwrap_or_else(PoisonError::into_inner);
        (self.parts.publish)(&settings);
    }

    fn kick(&self) -> Result<(), QueueDown> {
        match self.parts.event.notify() {
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(()),
            done => Ok(done?),
        }
    }

    pub(crate) fn event(&self) -> &E {
        &self.parts.event
    }

    pub(crate) fn arm(&mut self) -> Waiting {
        match self.unnoted {
            None if self.mapper.as_ref().is_some_and(Mapper::is_busy) => Waiting::Enough,
            None => self.ring.arm(1),
            Some((_, change)) if self.parts.changes.is_noted(change) => Waiting::Enough,
            // The control plane has the queue polled again.
            Some(_) => Waiting::TooFew,
        }
    }
}

/// Whether a message only asks for something.
fn is_question(kind: u16) -> bool {
    matches!(kind, CTRL_TYPE_GET_HASH_FLAGS | CTRL_TYPE_GET_HASH_MAPPING_SIZE)
}

/// Whether a message is about pages that stay mapped.
fn is_of_mapping(kind: u16) -> bool {
    matches!(
        kind,
        CTRL_TYPE_GET_GREF_MAPPING_SIZE | CTRL_TYPE_ADD_GREF_MAPPING | CTRL_TYPE_DEL_GREF_MAPPING
    )
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
