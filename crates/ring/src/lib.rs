//! The two halves of a shared ring (`ring.h`), without I/O.
//!
//! A ring is one page: four indices that run freely over 32 bits, and a power of two of slots in
//! which a response replaces its request. The frontend produces requests and consumes responses
//! ([`FrontRing`]), the backend the reverse ([`BackRing`]).
//!
//! Each half keeps its own indices in private memory (`*_pvt` and `*_cons`). From the page it uses
//! only the peer's producer index, which it reads once per decision and checks. Slots are read by
//! value. There is no lock, and no read-modify-write of an index.
//!
//! The crate needs a heap, but no standard library. To use your own kernel's memory for pages,
//! implement [`RingMemory`]; [`SharedPages`] are pages of Linux or of the heap.
//!
//! # Example
//!
//! Both ends share a page, like two domains:
//!
//! ```
//! use ringway_ring::{BackRing, FrontRing, Notify, SharedPages, Tx, Waiting};
//! use ringway_wire::PAGE_SIZE;
//! use ringway_wire::netif::{NETIF_RSP_OKAY, TxRequest, TxResponse};
//!
//! let page = SharedPages::zeroed(PAGE_SIZE)?;
//! let mut front = FrontRing::<Tx>::new(page.clone());
//! let mut back = BackRing::<Tx>::attach(page)?;
//! assert_eq!(back.arm(1), Waiting::TooFew, "the backend may sleep");
//!
//! front.push_request(TxRequest { id: 7, gref: 8, size: 60, ..TxRequest::default() });
//! assert_eq!(front.publish_requests(), Notify::Peer, "and is woken");
//!
//! let mut window = [TxRequest::default(); 16];
//! let (count, _) = back.peek_requests(&mut window)?;
//! back.consume(count);
//! for request in &window[..count] {
//!     back.push_response(TxResponse { id: request.id, status: NETIF_RSP_OKAY });
//! }
//! let _ = back.publish_responses();
//!
//! let mut responses = [TxResponse::default(); 16];
//! let count = front.peek_responses(&mut responses)?;
//! assert_eq!(responses[..count], [TxResponse { id: 7, status: NETIF_RSP_OKAY }]);
//! front.consume(count);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), no_std)]

#[cfg(all(feature = "canary", debug_assertions))]
extern crate std;

mod back;
#[cfg(all(feature = "canary", debug_assertions))]
pub mod canary;
mod fault;
mod front;
mod memory;

use core::num::Wrapping;
use core::sync::atomic::Ordering;

pub use back::BackRing;
pub use fault::RingFault;
pub use front::FrontRing;
pub use memory::RingMemory;
pub use ringway_sys::{OutOfMemory, SharedPages};
use ringway_wire::netif::{
    CTRL_RING_SLOTS, CTRL_SLOT_LEN, CtrlRequest, CtrlResponse, RX_RING_SLOTS, RX_SLOT_LEN,
    RxRequest, RxResponse, TX_RING_SLOTS, TX_SLOT_LEN, TxRequest, TxResponse,
};
use ringway_wire::{PAGE_SIZE, ring};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What the slots of a ring hold.
pub trait Layout {
    /// The frontend's entries.
    type Request: FromBytes + IntoBytes + Immutable + Copy;
    /// The backend's entries.
    type Response: FromBytes + IntoBytes + Immutable + Copy;
    /// Bytes from one slot to the next.
    const SLOT_LEN: usize;
    /// Slots in the ring, a power of two.
    const SLOTS: u32;
    /// The name of the ring, for messages.
    const NAME: &'static str;
}

/// The ring on which a guest transmits.
#[derive(Debug)]
pub struct Tx;
/// The ring on which a guest receives.
#[derive(Debug)]
pub struct Rx;

/// The ring on which a guest says how it wants to be served.
#[derive(Debug)]
pub struct Control;

impl Layout for Tx {
    type Request = TxRequest;
    type Response = TxResponse;
    const SLOT_LEN: usize = TX_SLOT_LEN;
    const SLOTS: u32 = slots(TX_RING_SLOTS);
    const NAME: &'static str = "tx";
}

impl Layout for Rx {
    type Request = RxRequest;
    type Response = RxResponse;
    const SLOT_LEN: usize = RX_SLOT_LEN;
    const SLOTS: u32 = slots(RX_RING_SLOTS);
    const NAME: &'static str = "rx";
}

impl Layout for Control {
    type Request = CtrlRequest;
    type Response = CtrlResponse;
    const SLOT_LEN: usize = CTRL_SLOT_LEN;
    const SLOTS: u32 = slots(CTRL_RING_SLOTS);
    const NAME: &'static str = "control";
}

#[expect(clippy::as_conversions, reason = "a constant context has no try_from; checked by assert")]
const fn slots(count: usize) -> u32 {
    assert!(count.is_power_of_two() && count <= PAGE_SIZE);
    count as u32
}

/// Whether publishing passed the index at which the peer wants to be notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a peer that is not notified sleeps on"]
pub enum Notify {
    /// The peer asked for an event: send one.
    Peer,
    /// The peer is polling, or was notified before.
    None,
}

/// The result of the check after requesting an event (`RING_FINAL_CHECK_FOR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a side that sleeps on enough entries is not woken for them"]
pub enum Waiting {
    /// Fewer entries wait than requested: an event will come.
    TooFew,
    /// Enough entries wait already, and an event may not come: poll again.
    Enough,
}

/// A free-running ring index.
type Index = Wrapping<u32>;

/// The page, and arithmetic that both halves share.
#[derive(Debug)]
struct Page<M>(M);

impl<M: RingMemory> Page<M> {
    fn load(&self, index: usize, order: Ordering) -> Index {
        Wrapping(self.0.load(index, order))
    }

    /// Copies the slots from `first` on into private memory, reading each byte once.
    fn read<L: Layout, T: FromBytes + IntoBytes>(&self, first: Index, into: &mut [T]) {
        if size_of::<T>() == L::SLOT_LEN {
            let until_wrap = (L::SLOTS - (first.0 & (L::SLOTS - 1))).try_into();
            let until_wrap: usize = until_wrap.expect("a slot count is small");
            let (head, tail) = into.split_at_mut(until_wrap.min(into.len()));
            self.0.copy_to(slot_offset::<L>(first), head.as_mut_bytes());
            self.0.copy_to(ring::SLOTS, tail.as_mut_bytes());
        } else {
            for (entry, distance) in into.iter_mut().zip(0..) {
                *entry = self.0.read(slot_offset::<L>(first + Wrapping(distance)));
            }
        }
    }

    /// Publishes a producer index and returns whether its move from `old` to `new` passed the
    /// peer's event index (`RING_PUSH_*_AND_CHECK_NOTIFY`).
    fn publish(&self, producer: usize, event: usize, old: Index, new: Index) -> Notify {
        // Release: orders our writes of slots before the index that covers them.
        self.0.store(producer, new.0, Ordering::Release);
        // Orders the store of the producer before the load of the event index. Its partner is the
        // fence in `arm`: one of the two sides sees the other's store, so no wake-up is lost.
        self.0.fence();
        let event = self.load(event, Ordering::Relaxed);
        //= netif.h:notify-when-crossed
        if (new - event).0 < (new - old).0 { Notify::Peer } else { Notify::None }
    }

    /// Requests an event for when `count` entries wait after `consumed`, and returns whether they
    /// do already (`RING_FINAL_CHECK_FOR_*`).
    fn arm(&self, producer: usize, event: usize, consumed: Index, count: u32) -> Waiting {
        self.0.store(event, (consumed + Wrapping(count)).0, Ordering::Relaxed);
        // Orders the store of the event index before the load of the producer; see `publish`.
        self.0.fence();
        let produced = self.load(producer, Ordering::Relaxed);
        // An invalid producer counts as work: the next poll reports the fault.
        if (produced - consumed).0 < count { Waiting::TooFew } else { Waiting::Enough }
    }
}

/// Byte offset of the slot of an index.
fn slot_offset<L: Layout>(index: Index) -> usize {
    let slot = usize::try_from(index.0 & (L::SLOTS - 1)).expect("a slot number is small");
    ring::SLOTS + slot * L::SLOT_LEN
}

/// The check that bounds every loop over a ring: a producer is never behind its consumer, and ahead
/// of it by at most the number of entries of the ring (XSA-39).
fn ahead<L: Layout>(produced: Index, consumed: Index, limit: u32) -> Result<u32, RingFault> {
    //= netif.h:producer-bound
    let ahead = (produced - consumed).0;
    if ahead > limit && !is_unchecked() {
        let (ring, produced, slots) = (L::NAME, produced.0, L::SLOTS);
        return Err(RingFault { ring, produced, ahead, slots });
    }
    Ok(ahead)
}

/// Whether the check above is disabled on purpose.
#[cfg(all(feature = "canary", debug_assertions))]
fn is_unchecked() -> bool {
    canary::are_producers_unchecked()
}

/// Never, in builds without the switch.
#[cfg(not(all(feature = "canary", debug_assertions)))]
const fn is_unchecked() -> bool {
    false
}
