//! A backend that performs the handshake of an honest one, and writes anything into the rings.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use ringway_datapath::OffloadCaps;
use ringway_hypervisor::{Access, EventChannel, ForeignPage};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    CTRL_SLOT_LEN, CtrlRequest, NETIF_RSP_OKAY, RX_SLOT_LEN, RxRequest, RxResponse, TX_SLOT_LEN,
    TxRequest, TxResponse,
};
use ringway_wire::ring::{REQ_PROD, RSP_PROD, SLOTS, slot_count};
use ringway_wire::{GrantRef, PAGE_SIZE};
use ringway_xenbus::{EventPorts, Features, FrontendConfig, Offer, Vif, XenbusState};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::place::{Meanwhile, Place};
use crate::stage::Account;

/// The most queues that it offers.
const QUEUES_OFFERED: u16 = 4;
/// The part of its patience for which it waits whether a frontend leaves that may stay.
const NOTICED_DIVISOR: u32 = 50;

/// A key of the backend's directory and its bytes; `None` removes it.
pub type Key<'a> = (&'a str, Option<&'a [u8]>);

/// The keys of an honest backend.
const OFFER: [Key<'static>; 9] = [
    ("feature-rx-copy", Some(b"1")),
    ("feature-rx-flip", Some(b"0")),
    ("feature-sg", Some(b"1")),
    ("feature-gso-tcpv4", Some(b"1")),
    ("feature-gso-tcpv6", Some(b"1")),
    ("feature-ipv6-csum-offload", Some(b"1")),
    ("feature-split-event-channels", Some(b"0")),
    ("feature-ctrl-ring", Some(b"1")),
    ("multi-queue-max-queues", Some(b"4")),
];

/// A mapped ring, into which anything can be written.
pub struct Ring {
    /// Its page.
    pub page: SharedPages,
    /// The producer of responses, to be written to the ring next.
    pub produced: u32,
    slot_len: usize,
    bell: Rc<dyn EventChannel>,
    mapping: ForeignPage,
}

/// The rings of one queue.
pub struct Queue {
    /// What the frontend sends.
    pub tx: Ring,
    /// What it receives.
    pub rx: Ring,
}

/// The backend of one vif.
pub struct Liar<'a> {
    place: Box<dyn Place + 'a>,
    /// The vif.
    pub vif: Vif,
    /// The queues of the frontend that is connected.
    pub queues: Vec<Queue>,
    /// Its control ring, if it has one.
    pub control: Option<Ring>,
    /// Pages of earlier connections that it has never unmapped.
    kept: Vec<ForeignPage>,
    /// Its random choices, the same in each run.
    pub random: Rng,
    /// The results.
    pub account: Account,
}

impl Ring {
    /// Requests without a response.
    pub fn waiting(&self) -> u32 {
        self.page.load(REQ_PROD, Ordering::Acquire).wrapping_sub(self.produced)
    }

    /// The request that the next response is for.
    pub fn request<T: FromBytes>(&self) -> T {
        self.page.read(self.next_slot())
    }

    /// Writes any value into the next slot.
    pub fn push<T: IntoBytes + Immutable>(&mut self, response: T) {
        self.page.write(self.next_slot(), response);
        self.produced = self.produced.wrapping_add(1);
    }

    /// Publishes all pushed responses, and sends an event.
    pub fn publish(&self) {
        self.page.store(RSP_PROD, self.produced, Ordering::Release);
        self.ring();
    }

    /// Sends an event.
    pub fn ring(&self) {
        // A frontend that has left no longer listens.
        let _ = self.bell.notify();
    }

    fn next_slot(&self) -> usize {
        let produced = usize::try_from(self.produced).unwrap_or(0);
        SLOTS + produced % slot_count(self.slot_len) * self.slot_len
    }
}

impl Queue {
    /// Responds to the next page for a received frame.
    pub fn receive(&mut self, offset: u16, flags: u16, status: i16) {
        let RxRequest { id, .. } = self.rx.request();
        self.rx.push(RxResponse { id, offset, flags, status });
    }

    /// Publishes the responses of both rings.
    pub fn publish(&self) {
        self.tx.publish();
        self.rx.publish();
    }
}

impl<'a> Liar<'a> {
    /// The backend of a vif that a toolstack has made.
    pub fn new(place: Box<dyn Place + 'a>, vif: Vif, seed: u64) -> Liar<'a> {
        let (queues, control, kept) = (Vec::new(), None, Vec::new());
        let (random, account) = (Rng::with_seed(seed), Account::default());
        Liar { place, vif, queues, control, kept, random, account }
    }

    /// Counts something.
    pub fn count(&mut self, what: &str) {
        *self.account.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Writes its state, which need not be one.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn set_state(&mut self, state: impl AsRef<[u8]>) -> Result<()> {
        let node = self.vif.backend_state();
        self.place.write(&node, Some(state.as_ref()))
    }

    /// Writes keys, whatever they are.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn write(&mut self, keys: &[Key<'_>]) -> Result<()> {
        let dir = self.vif.backend_dir();
        keys.iter().try_for_each(|(key, value)| self.place.write(&format!("{dir}/{key}"), *value))
    }

    /// The frontend's state.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn frontend_state(&mut self) -> Result<XenbusState> {
        let found = self.place.read(&self.vif.frontend_state())?;
        let text = found.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(XenbusState::parse(text.as_deref()))
    }

    /// Lets the frontend work.
    pub fn pause(&mut self) {
        self.place.let_work(Meanwhile::Pause);
    }

    /// Has the frontend started again, if it has refused this backend.
    pub fn restart_frontend(&mut self) {
        self.place.let_work(Meanwhile::Restart);
    }

    /// Waits until the frontend is in one of these states.
    ///
    /// # Errors
    /// If it takes too long; the error names its state.
    pub fn wait_for_frontend(&mut self, states: &[XenbusState]) -> Result<()> {
        let mut found = self.frontend_state()?;
        for _ in 0..self.place.patience() {
            if states.contains(&found) {
                return Ok(());
            }
            self.pause();
            found = self.frontend_state()?;
        }
        bail!("the frontend's state is {found}, expected one of {states:?}")
    }

    /// Releases the frontend, as an honest backend does, and makes an offer with changes.
    ///
    /// # Errors
    /// If the frontend does not close.
    pub fn offer(&mut self, changes: &[Key<'_>]) -> Result<()> {
        use XenbusState::{Closed, Initialising, Unknown};
        self.let_go();
        if self.place.read(&self.vif.backend_state())?.is_some_and(|state| state != b"1") {
            self.set_state(Closed.value())?;
            self.wait_for_frontend(&[Closed, Initialising, Unknown])?;
        }
        self.write(&OFFER)?;
        self.write(changes)?;
        self.set_state(XenbusState::InitWait.value())
    }

    /// Makes an honest offer, and connects to the frontend that accepts it.
    ///
    /// # Errors
    /// If the frontend does not connect.
    pub fn connect(&mut self, changes: &[Key<'_>]) -> Result<()> {
        self.offer(changes)?;
        let connected = [XenbusState::Initialised, XenbusState::Connected];
        if self.wait_for_frontend(&connected).is_err() {
            self.restart_frontend();
            self.offer(changes)?;
            self.wait_for_frontend(&connected)?;
        }
        self.attach()?;
        self.set_state(XenbusState::Connected.value())?;
        self.pause();
        Ok(())
    }

    /// Maps the rings of the frontend and binds to its ports.
    ///
    /// # Errors
    /// If its keys are not those of an honest frontend.
    pub fn attach(&mut self) -> Result<()> {
        let offer = Offer {
            queues_max: QUEUES_OFFERED,
            split_event_channels: false,
            control_ring: true,
            multicast_control: false,
            xdp_headroom: false,
            features: Features::from(OffloadCaps::ALL),
        };
        let keys = self.place.frontend_keys(&self.vif.frontend_dir(), QUEUES_OFFERED)?;
        let config = FrontendConfig::read(&keys, &offer).context("the frontend's keys")?;
        for queue in &config.queues {
            let (tx, rx) = match queue.events {
                EventPorts::Split { tx, rx } => (self.bind(tx)?, self.bind(rx)?),
                EventPorts::Single(port) => {
                    let both = self.bind(port)?;
                    (Rc::clone(&both), both)
                }
            };
            let tx = self.map_ring(queue.tx_ring_ref, TX_SLOT_LEN, tx)?;
            let rx = self.map_ring(queue.rx_ring_ref, RX_SLOT_LEN, rx)?;
            self.queues.push(Queue { tx, rx });
        }
        if let Some(control) = config.control {
            let bell = self.bind(control.event)?;
            self.control = Some(self.map_ring(control.ring_ref, CTRL_SLOT_LEN, bell)?);
        }
        Ok(())
    }

    fn bind(&mut self, port: ringway_wire::EvtchnPort) -> Result<Rc<dyn EventChannel>> {
        Ok(Rc::from(self.place.bind(self.vif.frontend, port)?))
    }

    fn map_ring(
        &mut self,
        gref: GrantRef,
        slot_len: usize,
        bell: Rc<dyn EventChannel>,
    ) -> Result<Ring> {
        let mapping = self.place.map(self.vif.frontend, gref, Access::ReadWrite)?;
        let page = mapping.pages().clone();
        Ok(Ring { page, produced: 0, slot_len, bell, mapping })
    }

    /// Unmaps and unbinds everything.
    pub fn let_go(&mut self) {
        self.queues.clear();
        self.control = None;
    }

    /// Unbinds everything, and keeps the rings mapped, and a page of each queue to receive into.
    ///
    /// # Errors
    /// If a page is not granted.
    pub fn keep_pages(&mut self) -> Result<()> {
        for index in 0..self.queues.len() {
            let posted: RxRequest = self.queues[index].rx.request();
            let page = self.map(GrantRef(posted.gref), Access::ReadWrite)?;
            self.kept.push(page);
        }
        let rings = self.queues.drain(..).flat_map(|queue| [queue.tx, queue.rx]);
        self.kept.extend(rings.chain(self.control.take()).map(|ring| ring.mapping));
        Ok(())
    }

    /// The first queue.
    ///
    /// # Errors
    /// If no frontend is connected, which is an error of the lie.
    pub fn queue(&mut self) -> Result<&mut Queue> {
        self.queues.first_mut().context("no frontend is connected")
    }

    /// Waits until so many requests of the frontend's tx have no response, and returns the first.
    ///
    /// # Errors
    /// If it sends too little.
    pub fn sent(&mut self, count: u32) -> Result<TxRequest> {
        for _ in 0..self.place.patience() {
            let tx = &self.queue()?.tx;
            if tx.waiting() >= count {
                return Ok(tx.request());
            }
            self.pause();
        }
        bail!("the frontend sends nothing")
    }

    /// Waits until the frontend has asked something over its control ring. `None` if it does not,
    /// which the account then says.
    pub fn asked(&mut self) -> Option<CtrlRequest> {
        for _ in 0..self.place.patience() {
            match &self.control {
                Some(control) if control.waiting() > 0 => return Some(control.request()),
                Some(_) => self.pause(),
                None => break,
            }
        }
        self.account.skipped = Some("the frontend uses no control ring".to_owned());
        None
    }

    /// Connects, lies, and expects the frontend to leave.
    ///
    /// # Errors
    /// If it does not.
    pub fn provoke(&mut self, lie: impl FnOnce(&mut Queue)) -> Result<()> {
        self.connect(&[])?;
        self.sent(1)?;
        lie(self.queue()?);
        self.expect_to_leave()
    }

    /// Connects, lies, and gives the frontend time to notice. It may stay or leave.
    ///
    /// # Errors
    /// If it does not connect.
    pub fn try_out(&mut self, lie: impl FnOnce(&mut Queue)) -> Result<()> {
        self.connect(&[])?;
        self.sent(1)?;
        lie(self.queue()?);
        self.settle()
    }

    /// Gives the frontend time, and notes whether it is still connected.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn settle(&mut self) -> Result<()> {
        (0..self.place.patience() / NOTICED_DIVISOR).for_each(|_| self.pause());
        self.account.is_served = self.frontend_state()? == XenbusState::Connected;
        if !self.account.is_served {
            self.note_left()?;
        }
        Ok(())
    }

    /// Waits until the frontend has left.
    ///
    /// # Errors
    /// If it stays.
    pub fn expect_to_leave(&mut self) -> Result<()> {
        use XenbusState::{Closed, Closing, Initialising, Unknown};
        self.wait_for_frontend(&[Closing, Closed, Initialising, Unknown])?;
        self.note_left()
    }

    fn note_left(&mut self) -> Result<()> {
        self.account.is_served = false;
        // A toolstack need not let a backend read that node.
        let why = self.place.read(&self.vif.frontend_error()).ok().flatten();
        let why = why.map(|why| String::from_utf8_lossy(&why).into_owned());
        let state = self.frontend_state()?;
        self.account.closed.push(why.unwrap_or_else(|| format!("its state is {state}")));
        Ok(())
    }

    /// Honestly responds to everything that was sent, and sends back what is one short frame.
    /// Returns the number of frames sent back.
    ///
    /// # Errors
    /// If the frontend's pages cannot be used.
    pub fn serve(&mut self) -> Result<usize> {
        let mut echoed = 0;
        for index in 0..self.queues.len() {
            while self.queues[index].tx.waiting() > 0 {
                let request: TxRequest = self.queues[index].tx.request();
                let from = self.map(GrantRef(request.gref), Access::ReadOnly)?;
                let mut bytes = vec![0; usize::from(request.size).min(PAGE_SIZE)];
                let (rx, offset) = (&self.queues[index].rx, usize::from(request.offset));
                if rx.waiting() > 0 && offset + bytes.len() <= PAGE_SIZE {
                    let posted: RxRequest = rx.request();
                    let to = self.map(GrantRef(posted.gref), Access::ReadWrite)?;
                    from.pages().copy_to(offset, &mut bytes);
                    to.pages().copy_from(0, &bytes);
                    let len = i16::try_from(bytes.len()).unwrap_or(0);
                    self.queues[index].receive(0, 0, len);
                    echoed += 1;
                }
                let response = TxResponse { id: request.id, status: NETIF_RSP_OKAY };
                self.queues[index].tx.push(response);
            }
            self.queues[index].publish();
        }
        Ok(echoed)
    }

    /// Maps a page of the frontend.
    ///
    /// # Errors
    /// If it is not granted.
    pub fn map(&mut self, gref: GrantRef, access: Access) -> Result<ForeignPage> {
        Ok(self.place.map(self.vif.frontend, gref, access)?)
    }
}
