//! A guest that does no more work than testpmd: its frames are in granted pages, and it never
//! copies one.
//!
//! `netfront` copies frames to and from a TAP device. A kernel's frontend grants the pages of its
//! socket buffers instead, and so does this one, because the comparison is about the backend and
//! the ring, not the guest.

use std::io;

use ringway_datapath::QueueDown;
use ringway_hypervisor::{Access, Direction, EventChannel, GrantTable, GrantedPages, QueueEvents};
use ringway_ring::{FrontRing, Notify, Rx, Tx, Waiting};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    RX_RING_SLOTS, RxRequest, RxResponse, TX_RING_SLOTS, TxRequest, TxResponse,
};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use super::work::{BURST, Header};

/// Buffers of one queue: both rings full.
const PAGES: usize = TX_RING_SLOTS + RX_RING_SLOTS;
/// Pages of one queue, for sizing the domain.
pub(crate) const QUEUE_PAGES: usize = PAGES + 2;

/// One queue of such a guest.
pub(crate) struct BareQueue<E> {
    tx: FrontRing<Tx>,
    rx: FrontRing<Rx>,
    events: QueueEvents<E>,
    pages: SharedPages,
    grefs: Vec<GrantRef>,
    /// Pages that are in neither ring; the one used last is used first.
    free: Vec<u16>,
    header: Header,
    tx_responses: [TxResponse; TX_RING_SLOTS],
    rx_responses: [RxResponse; BURST],
}

impl<E: EventChannel> BareQueue<E> {
    /// Creates the rings and posts all receive buffers; also returns the grants of the two rings.
    pub(crate) fn new(
        grants: &mut impl GrantTable,
        backend: DomId,
        events: QueueEvents<E>,
    ) -> io::Result<(BareQueue<E>, [GrantRef; 2])> {
        let GrantedPages { pages, grefs, .. } =
            grants.share(backend, QUEUE_PAGES, Access::ReadWrite)?;
        let rings = [grefs[PAGES], grefs[PAGES + 1]];
        let ring = |page: usize| pages.slice(page * PAGE_SIZE..(page + 1) * PAGE_SIZE);
        let mut queue = BareQueue {
            tx: FrontRing::new(ring(PAGES)),
            rx: FrontRing::new(ring(PAGES + 1)),
            events,
            pages: pages.slice(0..PAGES * PAGE_SIZE),
            grefs,
            free: (0..PAGES).map(|page| u16::try_from(page).expect("few pages")).collect(),
            header: Header::udp(),
            tx_responses: [TxResponse::default(); TX_RING_SLOTS],
            rx_responses: [RxResponse::default(); BURST],
        };
        for _ in 0..RX_RING_SLOTS {
            let page = queue.free.pop().expect("there are more pages than slots");
            queue.post(page);
        }
        // The event channel has no other end yet.
        let _ = queue.rx.publish_requests();
        Ok((queue, rings))
    }

    /// The event channels, whose ports the backend needs.
    pub(crate) fn events(&self) -> &QueueEvents<E> {
        &self.events
    }

    /// Sends frames with these headers from now on.
    pub(crate) fn set_header(&mut self, header: Header) {
        self.header = header;
    }

    /// Sends up to a burst of frames of `len` bytes, writing the headers of each.
    pub(crate) fn send(&mut self, len: usize) -> Result<usize, QueueDown> {
        self.send_at_most(BURST, len)
    }

    /// As [`send`](BareQueue::send), up to `limit` frames.
    pub(crate) fn send_at_most(&mut self, limit: usize, len: usize) -> Result<usize, QueueDown> {
        self.reap()?;
        let size = u16::try_from(len).expect("a frame is at most 1500 bytes");
        let count = limit.min(self.free.len()).min(self.tx.free());
        for _ in 0..count {
            let page = self.free.pop().expect("counted above");
            let (number, offset) = (usize::from(page), offset_of(page));
            self.pages.copy_from(number * PAGE_SIZE + usize::from(offset), self.header.bytes(len));
            let gref = self.grefs[number].0;
            self.tx.push_request(TxRequest { gref, offset, flags: 0, id: page, size });
        }
        self.publish_tx()?;
        Ok(count)
    }

    /// Receives up to a burst of frames and returns their pages at once.
    pub(crate) fn receive(&mut self) -> Result<usize, QueueDown> {
        let count = self.rx.peek_responses(&mut self.rx_responses).map_err(QueueDown::peer)?;
        self.rx.consume(count);
        for index in 0..count {
            self.post(self.rx_responses[index].id);
        }
        self.publish_rx()?;
        Ok(count)
    }

    /// Receives up to a burst of frames and sends them back from the same pages.
    pub(crate) fn bounce(&mut self) -> Result<usize, QueueDown> {
        self.reap()?;
        let room = self.free.len().min(self.tx.free()).min(BURST);
        let count =
            self.rx.peek_responses(&mut self.rx_responses[..room]).map_err(QueueDown::peer)?;
        self.rx.consume(count);
        for index in 0..count {
            let RxResponse { id, offset, status, .. } = self.rx_responses[index];
            let gref = self.grefs[usize::from(id)].0;
            let size = u16::try_from(status).unwrap_or(0);
            self.tx.push_request(TxRequest { gref, offset, flags: 0, id, size });
            let page = self.free.pop().expect("counted above");
            self.post(page);
        }
        self.publish_tx()?;
        self.publish_rx()?;
        Ok(count)
    }

    /// Takes the events that have come; true if there was one.
    pub(crate) fn is_woken(&self) -> Result<bool, QueueDown> {
        Ok(self.events.ack()?)
    }

    /// Requests an event for the next response of each ring.
    pub(crate) fn sleep(&mut self) -> Waiting {
        match self.tx.arm(1) {
            Waiting::TooFew => self.rx.arm(1),
            Waiting::Enough => Waiting::Enough,
        }
    }

    fn post(&mut self, page: u16) {
        let gref = self.grefs[usize::from(page)].0;
        self.rx.push_request(RxRequest { id: page, pad: 0, gref });
    }

    fn reap(&mut self) -> Result<(), QueueDown> {
        let count = self.tx.peek_responses(&mut self.tx_responses).map_err(QueueDown::peer)?;
        self.tx.consume(count);
        self.free.extend(self.tx_responses[..count].iter().map(|response| response.id));
        Ok(())
    }

    fn publish_tx(&mut self) -> Result<(), QueueDown> {
        match self.tx.publish_requests() {
            Notify::Peer => Ok(self.events.notify(Direction::Tx)?),
            Notify::None => Ok(()),
        }
    }

    fn publish_rx(&mut self) -> Result<(), QueueDown> {
        match self.rx.publish_requests() {
            Notify::Peer => Ok(self.events.notify(Direction::Rx)?),
            Notify::None => Ok(()),
        }
    }
}

/// Where in its page a frame starts. The offset varies: the first bytes of all pages would compete
/// for one set of the L1 cache, unlike those of socket buffers and testpmd's mbufs.
fn offset_of(page: u16) -> u16 {
    page % 16 * 128
}
