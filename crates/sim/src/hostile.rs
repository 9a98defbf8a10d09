//! A hostile guest: it writes anything into its rings, names any grants, and sends any events and
//! frames. It has only the rights of a guest.

use std::sync::atomic::Ordering;

use ringway_datapath::MacAddr;
use ringway_hypervisor::{Access, EventChannel, GrantTable, GrantedPages, Hypervisor};
use ringway_loopback::{Loopback, LoopbackDomain, LoopbackEvent};
use ringway_ring::{FrontRing, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    NETTXF_CSUM_BLANK, NETTXF_EXTRA_INFO, NETTXF_MORE_DATA, RX_RING_SLOTS, RX_SLOT_LEN, RxRequest,
    TX_RING_SLOTS, TX_SLOT_LEN, TxRequest,
};
use ringway_wire::ring::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};
use ringway_wire::{DomId, PAGE_SIZE};

use crate::choices::Choices;
use crate::marks::Mark;
use crate::scenario::HOST;

/// Pages that it posts for frames.
const BUFFERS: usize = 8;
/// The most slots that it fills at once.
const SLOTS_MAX: usize = 24;

/// A hostile guest and its rings.
pub(crate) struct Hostile {
    pub(crate) domid: DomId,
    pub(crate) mac: MacAddr,
    pub(crate) domain: LoopbackDomain,
    rings: Option<Rings>,
}

/// The rings that it has shown to a backend. It never ends their grants.
struct Rings {
    tx: SharedPages,
    rx: SharedPages,
    pages: GrantedPages,
    buffers: GrantedPages,
    channel: LoopbackEvent,
    tx_produced: u32,
    rx_produced: u32,
}

impl Hostile {
    pub(crate) fn new(domid: DomId, mac: MacAddr, domain: LoopbackDomain) -> Hostile {
        Hostile { domid, mac, domain, rings: None }
    }

    /// Creates rings as an honest guest would, and returns their keys for XenStore.
    pub(crate) fn make_rings(&mut self) -> std::io::Result<[(&'static str, String); 3]> {
        let mut grants = self.domain.grants()?;
        let pages = grants.share(HOST, 2, Access::ReadWrite)?;
        let buffers = grants.share(HOST, BUFFERS, Access::ReadWrite)?;
        let page = |number| pages.pages.slice(number * PAGE_SIZE..(number + 1) * PAGE_SIZE);
        let (tx, rx) = (page(0), page(1));
        drop((FrontRing::<Tx>::new(tx.clone()), FrontRing::<Rx>::new(rx.clone())));
        let channel = self.domain.alloc_unbound(HOST)?;
        let keys = [
            ("tx-ring-ref", pages.grefs[0].to_string()),
            ("rx-ring-ref", pages.grefs[1].to_string()),
            ("event-channel", channel.port().to_string()),
        ];
        // The first buffer is its own broadcast; from the others it sends their current contents.
        buffers.pages.copy_from(0, &broadcast_of(self.mac));
        let (tx_produced, rx_produced) = (0, 0);
        self.rings = Some(Rings { tx, rx, pages, buffers, channel, tx_produced, rx_produced });
        Ok(keys)
    }

    /// Sends with another guest's address. Returns false if it has no rings.
    pub(crate) fn impersonate(&mut self, mac: MacAddr, choices: &mut Choices) -> bool {
        let Some(rings) = self.rings.as_mut() else { return false };
        rings.buffers.pages.copy_from(0, &broadcast_of(mac));
        rings.flood(choices);
        let _ = rings.channel.notify();
        true
    }

    /// Makes an attack on its rings, if it has some, and returns its mark.
    pub(crate) fn act(&mut self, machine: &Loopback, choices: &mut Choices) -> Option<Mark> {
        let domid = self.domid;
        let rings = self.rings.as_mut()?;
        let mark = match choices.below(16) {
            0..=4 => rings.flood(choices),
            5..=7 => rings.post(choices),
            8..=9 => rings.send_chain(choices),
            10..=11 => rings.send_bad_grants(choices),
            12 => rings.overwrite(choices),
            13 => rings.jump(choices),
            14 => {
                let pages = if choices.is_one_in(2) { &rings.pages } else { &rings.buffers };
                machine.revoke(domid, choices.pick(&pages.grefs));
                Mark::HostileRevoke
            }
            _ => Mark::HostileEvents,
        };
        // A missing other end is ignored.
        let _ = rings.channel.notify();
        let _ = rings.channel.ack();
        Some(mark)
    }
}

impl Rings {
    /// Frames that all others receive.
    fn flood(&mut self, choices: &mut Choices) -> Mark {
        for _ in 0..choices.from_to(1, SLOTS_MAX) {
            let size = u16::try_from(choices.from_to(14, 1500)).unwrap_or(14);
            self.push_tx(TxRequest {
                gref: self.buffers.grefs[0].0,
                offset: 0,
                flags: 0,
                id: choices.number_16(),
                size,
            });
        }
        self.publish_tx();
        Mark::HostileFlood
    }

    /// Pages to receive into, some of them twice.
    fn post(&mut self, choices: &mut Choices) -> Mark {
        for _ in 0..choices.from_to(1, SLOTS_MAX) {
            let gref = match choices.is_one_in(8) {
                true => choices.number_32(),
                false => choices.pick(&self.buffers.grefs[1..]).0,
            };
            let slot = usize::try_from(self.rx_produced).unwrap_or(0) % RX_RING_SLOTS;
            let request = RxRequest { id: choices.number_16(), pad: 0, gref };
            self.rx.write(SLOTS + slot * RX_SLOT_LEN, request);
            self.rx_produced = self.rx_produced.wrapping_add(1);
        }
        // It may post more than there is room for: the backend must detect that.
        self.rx.store(REQ_PROD, self.rx_produced, Ordering::Release);
        Mark::HostileGrant
    }

    /// Slots with invalid flags, sizes and extras.
    fn send_chain(&mut self, choices: &mut Choices) -> Mark {
        for _ in 0..choices.from_to(1, SLOTS_MAX) {
            let flags = choices.pick(&[
                0,
                NETTXF_MORE_DATA,
                NETTXF_EXTRA_INFO,
                NETTXF_MORE_DATA | NETTXF_EXTRA_INFO,
                NETTXF_CSUM_BLANK,
            ]);
            let sizes = [0, 1, 13, 14, 60, 1500, 4096, 4097, 65_535];
            self.push_tx(TxRequest {
                gref: self.buffers.grefs[0].0,
                offset: choices.pick(&[0, 0, 1, 4095, 4096, 65_535]),
                flags: if choices.is_one_in(8) { choices.number_16() } else { flags },
                id: choices.number_16(),
                size: choices.pick(&sizes),
            });
        }
        self.publish_tx();
        Mark::HostileChain
    }

    /// Slots whose grants do not exist or do not allow this access.
    fn send_bad_grants(&mut self, choices: &mut Choices) -> Mark {
        for _ in 0..choices.from_to(1, SLOTS_MAX) {
            let own = choices.pick(&[self.buffers.grefs[0].0, self.pages.grefs[0].0]);
            let gref = if choices.is_one_in(2) { own } else { u32::MAX - choices.number_32() % 8 };
            let id = choices.number_16();
            self.push_tx(TxRequest { gref, offset: 0, flags: 0, id, size: 60 });
        }
        self.publish_tx();
        Mark::HostileGrant
    }

    /// Any bytes, anywhere in a ring page.
    fn overwrite(&mut self, choices: &mut Choices) -> Mark {
        let page = if choices.is_one_in(2) { &self.tx } else { &self.rx };
        for _ in 0..choices.from_to(1, 8) {
            let word = SLOTS + 4 * choices.below((PAGE_SIZE - SLOTS) / 4);
            page.store(word, choices.number_32(), Ordering::Relaxed);
        }
        // An index that belongs to the backend, or an event index.
        let index = choices.pick(&[RSP_PROD, RSP_EVENT, REQ_EVENT]);
        page.store(index, choices.number_32(), Ordering::Release);
        Mark::HostileRing
    }

    /// An invalid producer index.
    fn jump(&mut self, choices: &mut Choices) -> Mark {
        let by = choices.pick(&[0, 1, 255, 256, 257, 1 << 31, u32::MAX]);
        if choices.is_one_in(2) {
            self.tx_produced = self.tx_produced.wrapping_add(by);
            self.publish_tx();
        } else {
            self.rx_produced = self.rx_produced.wrapping_add(by);
            self.rx.store(REQ_PROD, self.rx_produced, Ordering::Release);
        }
        Mark::HostileProducer
    }

    fn push_tx(&mut self, request: TxRequest) {
        let slot = usize::try_from(self.tx_produced).unwrap_or(0) % TX_RING_SLOTS;
        self.tx.write(SLOTS + slot * TX_SLOT_LEN, request);
        self.tx_produced = self.tx_produced.wrapping_add(1);
    }

    fn publish_tx(&self) {
        self.tx.store(REQ_PROD, self.tx_produced, Ordering::Release);
    }
}

fn broadcast_of(mac: MacAddr) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[0..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac.0);
    frame
}

/// Keys and values that may confuse a backend.
pub(crate) fn odd_key(choices: &mut Choices) -> (&'static str, &'static str) {
    let key = choices.pick(&[
        "state",
        "state",
        "state",
        "tx-ring-ref",
        "rx-ring-ref",
        "event-channel",
        "event-channel-tx",
        "multi-queue-num-queues",
        "request-rx-copy",
        "feature-rx-notify",
        "feature-sg",
        "xdp-headroom",
        "queue-0/tx-ring-ref",
        "state/below",
    ]);
    let value = choices.pick(&[
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "9",
        "256",
        "",
        "-1",
        "4294967296",
        "x\n",
    ]);
    (key, value)
}
