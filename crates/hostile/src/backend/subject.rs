//! ringway's own frontend, as the subject of a trial: two vifs, each of another backend, whose
//! handshakes and queues are those of the program. What it receives and says is noted.

use std::sync::Arc;

use anyhow::{Context, Result};
use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, OffloadCaps, PoolBudget, PortQueue, QueueDown, Woken,
};
use ringway_hypervisor::{Hypervisor, QueueEvents};
use ringway_loopback::{LoopbackDomain, LoopbackEvent, LoopbackGrants};
use ringway_netfront::{HashWish, VifQueue};
use ringway_vif_shell::{FrontendEnd, FrontendProcess, Note, Released};
use ringway_wire::DomId;
use ringway_xenbus::frontend::{Allocated, Allocation, Input, Preferences, QueueCount};
use ringway_xenbus::{Features, Keys, Vif, XenbusState};
use ringway_xenstore::{Client, LocalStore, LocalTransport, Lost, Watched};

use crate::backend::place::Meanwhile;

/// Bytes of the frames that it sends.
const FRAME_LEN: usize = 60;
/// What the frames of the first vif consist of; those of the second, of the next byte. A backend
/// has that byte from the vif's own pages only.
pub(crate) const FILLING: u8 = 0xe0;
/// Memory for frames.
const POOL_BYTES: usize = 16 << 20;
/// Watch events that are handled in a turn.
const EVENTS_PER_TURN: usize = 64; // not a limit: of an experiment

/// The frontend.
pub(crate) struct Subject {
    store: Client<LocalTransport>,
    pool: FramePool,
    interfaces: Vec<Interface>,
}

struct Interface {
    end: FrontendEnd,
    card: Card,
}

/// Everything of a vif except its handshake.
pub(crate) struct Card {
    backend: DomId,
    domain: LoopbackDomain,
    queues: Vec<VifQueue<LoopbackGrants, LoopbackEvent>>,
    caps: OffloadCaps,
    filling: u8,
    is_up: bool,
    /// How often it was connected.
    pub(crate) connections: usize,
    /// Frames that it has received.
    pub(crate) received: usize,
    /// Frames with bytes that its backend has not sent.
    pub(crate) strange: usize,
    /// Why it was disconnected, or could not be connected.
    pub(crate) reasons: Vec<String>,
}

fn preferences() -> Preferences {
    let features = Features::from(OffloadCaps::ALL);
    Preferences { queues: QueueCount::AtMost(2), features }
}

impl Subject {
    /// A frontend of these vifs, which a toolstack has made.
    pub(crate) fn new(
        domain: &LoopbackDomain,
        store: &LocalStore,
        vifs: &[Vif],
    ) -> Result<Subject> {
        let mut store = store.connect(domain.domid()).context("a session")?;
        let mut interfaces = Vec::new();
        for (vif, filling) in vifs.iter().zip(FILLING..) {
            let mut card = Card {
                backend: vif.backend,
                domain: domain.clone(),
                queues: Vec::new(),
                caps: OffloadCaps::NONE,
                filling,
                is_up: false,
                connections: 0,
                received: 0,
                strange: 0,
                reasons: Vec::new(),
            };
            let mut end = FrontendEnd::new(*vif, preferences());
            end.watch(&mut store)?;
            end.start(&mut store, &mut card, XenbusState::Initialising)?;
            interfaces.push(Interface { end, card });
        }
        let pool = FramePool::new(PoolBudget::new(POOL_BYTES));
        Ok(Subject { store, pool, interfaces })
    }

    /// What is known of the vif with this handle.
    pub(crate) fn card(&self, handle: usize) -> &Card {
        &self.interfaces[handle].card
    }

    /// One turn of its control thread, and one of its worker.
    pub(crate) fn work(&mut self, how: Meanwhile) -> Result<(), Lost> {
        let Subject { store, pool, interfaces } = self;
        if let (Meanwhile::Restart, Some(Interface { end, card })) = (how, interfaces.first_mut()) {
            end.reconnect(store, card, preferences())?;
        }
        for _ in 0..EVENTS_PER_TURN {
            let Some(watched) = store.next_watch()? else { break };
            for Interface { end, card } in &mut *interfaces {
                let is_other = matches!(&watched, Watched::Node(it) if it.token != end.token());
                if !is_other {
                    end.backend_changed(store, card)?;
                }
            }
        }
        for Interface { end, card } in interfaces {
            if let Err(down) = card.move_frames(pool) {
                card.reasons.push(down.to_string());
                end.recover(store, card, preferences(), down.to_string())?;
            }
        }
        Ok(())
    }

    /// Its vifs are removed.
    pub(crate) fn leave(&mut self) -> Result<(), Lost> {
        let Subject { store, interfaces, .. } = self;
        interfaces.iter_mut().try_for_each(|it| it.end.feed(store, &mut it.card, Input::Gone))
    }
}

impl Card {
    /// Takes in all frames, and sends one on each queue.
    fn move_frames(&mut self, pool: &mut FramePool) -> Result<(), QueueDown> {
        let queues = self.queues.iter_mut().filter(|_| self.is_up);
        for queue in queues {
            queue.woken(Woken::Unknown)?;
            let mut arrived = FrameBatch::new();
            queue.ingress(Budget::BATCH, pool, &mut arrived)?;
            for mut frame in arrived {
                let is_complete = pool.complete(&mut frame).is_ok();
                let is_own = |byte: &u8| [0, self.filling].contains(byte);
                self.received += 1;
                self.strange += usize::from(!is_complete || !frame.bytes().iter().all(is_own));
                pool.recycle(frame);
            }
            let mut leaving = FrameQueue::new();
            if let Some(mut frame) = pool.take(FRAME_LEN) {
                frame.bytes_mut().fill(self.filling);
                leaving.push_back(frame);
            }
            queue.egress(&mut leaving, pool)?;
            leaving.into_iter().for_each(|frame| pool.recycle(frame));
            queue.arm()?;
        }
        Ok(())
    }

    fn make_queue(&mut self, wanted: Allocation) -> std::io::Result<()> {
        let channel = || self.domain.alloc_unbound(self.backend);
        let events = match wanted.split_event_channels {
            true => QueueEvents::Split { tx: channel()?, rx: channel()? },
            false => QueueEvents::Single(channel()?),
        };
        let grants = self.domain.grants()?;
        let mut queue = VifQueue::new(grants, self.backend, events, Arc::default())?;
        queue.set_caps(self.caps);
        queue.receive_in_place()?;
        self.queues.push(queue);
        Ok(())
    }

    fn make_queues(&mut self, wanted: Allocation) -> std::io::Result<Allocated> {
        self.caps = wanted.backend.caps();
        (0..wanted.queues).try_for_each(|_| self.make_queue(wanted))?;
        let configs: Vec<_> = self.queues.iter().map(VifQueue::config).collect();
        let mut allocated = Allocated::from(configs);
        if let (true, Some(first)) = (wanted.control_ring, self.queues.first_mut()) {
            let event = self.domain.alloc_unbound(self.backend)?;
            allocated.control = Some(first.add_control(self.backend, event)?);
        }
        Ok(allocated)
    }
}

impl FrontendProcess for Card {
    fn allocate(&mut self, _: &Keys, wanted: Allocation) -> Result<Allocated, String> {
        self.make_queues(wanted).map_err(|error| error.to_string())
    }

    fn release(&mut self) -> Released {
        let closed = self.queues.drain(..).map(|queue| queue.close().is_ok());
        match closed.fold(true, |all, is_closed| all & is_closed) {
            true => Released::Free,
            false => Released::KeptByBackend,
        }
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        (self.is_up, self.connections) = (true, self.connections + 1);
        let wish =
            HashWish { key: [7; 40].into(), types: 15, mapping: [0, 1].into_iter().collect() };
        let pages = self.queues.iter().map(VifQueue::pages).collect();
        let Some(first) = self.queues.first_mut() else { return Ok(()) };
        first.wish(wish).and_then(|()| first.stage(pages)).map_err(|down| down.to_string())
    }

    fn carrier_down(&mut self) {
        self.is_up = false;
    }

    fn note(&mut self, note: Note<'_>) {
        if let Note::Closed(reason) | Note::Waits(reason) = note {
            self.reasons.push(reason.to_owned());
        }
    }
}
