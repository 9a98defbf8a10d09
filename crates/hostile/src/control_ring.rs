//! The control ring of a hostile guest: a page that it writes freely, and pages that messages name.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, ensure};
use ringway_hypervisor::{Access, GrantedPages};
use ringway_ring::{Control, FrontRing};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    CTRL_RING_SLOTS, CTRL_SLOT_LEN, CTRL_STATUS_SUCCESS, CtrlRequest, CtrlResponse,
};
use ringway_wire::ring::{REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};
use ringway_wire::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};

use crate::machine::{Event, Machine, SOON};

/// The pages that messages may name.
const NAMED: usize = 4;

/// A message: its type (`CTRL_TYPE_*`), and what comes with it.
pub type Message = (u16, [u32; 3]);

/// A control ring without checks: everything that a caller produces goes into the ring.
#[derive(Debug)]
pub struct ControlRing {
    /// The page of the ring.
    pub ring: SharedPages,
    /// The ring's page, then those that messages name.
    granted: GrantedPages,
    event: Event,
    /// The producer, to be written to the ring next.
    pub produced: u32,
    taken: u32,
}

impl ControlRing {
    /// Creates a ring as an honest guest would.
    ///
    /// # Errors
    /// If pages, grants or ports run out.
    pub fn new(machine: &Machine, peer: DomId) -> io::Result<ControlRing> {
        let granted = machine.share(peer, 1 + NAMED, Access::ReadWrite)?;
        let ring = granted.pages.slice(0..PAGE_SIZE);
        drop(FrontRing::<Control>::new(ring.clone()));
        let event = machine.alloc_unbound(peer)?;
        Ok(ControlRing { ring, granted, event, produced: 0, taken: 0 })
    }

    /// The grant of the ring's page.
    pub fn ring_ref(&self) -> GrantRef {
        self.granted.grefs[0]
    }

    /// The port of its event channel.
    pub fn port(&self) -> EvtchnPort {
        self.event.port()
    }

    /// The grant of a page that messages may name, counted from 0 to 3.
    pub fn gref(&self, page: usize) -> u32 {
        self.granted.grefs[1 + page].0
    }

    /// Such a page.
    pub fn page(&self, page: usize) -> SharedPages {
        self.granted.pages.slice((1 + page) * PAGE_SIZE..(2 + page) * PAGE_SIZE)
    }

    /// Writes queues to such a page, as a part of a mapping.
    pub fn name(&self, page: usize, queues: &[u32]) {
        let bytes: Vec<u8> = queues.iter().flat_map(|queue| queue.to_le_bytes()).collect();
        self.page(page).copy_from(0, &bytes);
    }

    /// Releases everything.
    pub fn close(self, machine: &Machine) {
        machine.end(self.granted);
    }

    /// Writes a message into the next slot, with the number of messages before it as its id.
    pub fn push(&mut self, (kind, data): Message) {
        let index = usize::try_from(self.produced).unwrap_or(0) % CTRL_RING_SLOTS;
        let request = CtrlRequest { id: id_of(self.produced), kind, data };
        self.ring.write(SLOTS + index * CTRL_SLOT_LEN, request);
        self.produced = self.produced.wrapping_add(1);
    }

    /// Publishes all pushed messages, and sends an event.
    pub fn publish(&self) {
        self.ring.store(REQ_PROD, self.produced, Ordering::Release);
        self.event.notify();
    }

    /// Free slots, as an honest guest counts them.
    pub fn room(&self) -> usize {
        let used = self.produced.wrapping_sub(self.ring.load(RSP_PROD, Ordering::Acquire));
        CTRL_RING_SLOTS.saturating_sub(usize::try_from(used).unwrap_or(usize::MAX))
    }

    /// Waits for a response to the newest message, or for two milliseconds.
    pub fn rest(&self) {
        self.ring.store(RSP_EVENT, self.produced, Ordering::SeqCst);
        self.event.ack();
        if self.room() < CTRL_RING_SLOTS {
            self.event.rest();
        }
    }

    /// Takes the responses to all messages, which must be in the order of these.
    ///
    /// # Errors
    /// If they are not there within 60 seconds, or one is not for the message of its place.
    pub fn responses(&mut self) -> Result<Vec<CtrlResponse>> {
        let deadline = Instant::now() + SOON;
        while self.room() < CTRL_RING_SLOTS {
            ensure!(Instant::now() < deadline, "a control message without a response");
            self.rest();
        }
        let mut responses = Vec::new();
        while self.taken != self.produced {
            let index = usize::try_from(self.taken).unwrap_or(0) % CTRL_RING_SLOTS;
            let response: CtrlResponse = self.ring.read(SLOTS + index * CTRL_SLOT_LEN);
            let expected = id_of(self.taken);
            ensure!(response.id == expected, "{response:?}, expected one to message {expected}");
            responses.push(response);
            self.taken = self.taken.wrapping_add(1);
        }
        Ok(responses)
    }

    /// Sends messages, all of which the backend has to carry out.
    ///
    /// # Errors
    /// If it does not.
    pub fn ask(&mut self, messages: &[Message]) -> Result<()> {
        messages.iter().for_each(|message| self.push(*message));
        self.publish();
        let responses = self.responses()?;
        let is_done = |response: &CtrlResponse| response.status == CTRL_STATUS_SUCCESS;
        ensure!(responses.iter().all(is_done), "{responses:?} to {messages:?}");
        Ok(())
    }
}

fn id_of(message: u32) -> u16 {
    u16::try_from(message % (1 << 16)).unwrap_or(0)
}
