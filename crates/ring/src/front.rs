//! The frontend's half of a ring.

use core::marker::PhantomData;
use core::num::Wrapping;
use core::sync::atomic::Ordering;

use ringway_sys::SharedPages;
use ringway_wire::ring::{REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD};

use crate::{Index, Layout, Notify, Page, RingFault, RingMemory, Waiting, ahead, slot_offset};

/// Produces requests and consumes their responses.
#[derive(Debug)]
pub struct FrontRing<L: Layout, M = SharedPages> {
    page: Page<M>,
    req_prod_pvt: Index,
    req_prod_published: Index,
    rsp_cons: Index,
    layout: PhantomData<L>,
}

impl<L: Layout, M: RingMemory> FrontRing<L, M> {
    /// Initializes a page as a new ring (`SHARED_RING_INIT`).
    pub fn new(page: M) -> FrontRing<L, M> {
        Self::starting_at(page, 0)
    }

    /// Initializes a page as a new ring with every index at `start` (`FRONT_RING_ATTACH`). Indices
    /// run freely, so a ring may begin at any, also just before they wrap around.
    pub fn starting_at(page: M, start: u32) -> FrontRing<L, M> {
        page.clear();
        page.store(REQ_PROD, start, Ordering::Relaxed);
        page.store(RSP_PROD, start, Ordering::Relaxed);
        page.store(REQ_EVENT, start.wrapping_add(1), Ordering::Relaxed);
        page.store(RSP_EVENT, start.wrapping_add(1), Ordering::Release);
        let start = Wrapping(start);
        FrontRing {
            page: Page(page),
            req_prod_pvt: start,
            req_prod_published: start,
            rsp_cons: start,
            layout: PhantomData,
        }
    }

    /// How many requests can be pushed.
    #[inline]
    pub fn free(&self) -> usize {
        let used = (self.req_prod_pvt - self.rsp_cons).0;
        usize::try_from(L::SLOTS - used).expect("a slot count is small")
    }

    /// The slot that the next request goes to.
    #[inline]
    pub fn next_slot(&self) -> u16 {
        slot_number::<L>(self.req_prod_pvt)
    }

    /// The slot of the next response.
    #[inline]
    pub fn response_slot(&self) -> u16 {
        slot_number::<L>(self.rsp_cons)
    }

    /// Writes a request, or an extra in place of one, into the next slot.
    ///
    /// # Panics
    /// If the ring is full: check [`free`](FrontRing::free) first.
    #[inline]
    pub fn push_request<T>(&mut self, request: T)
    where
        T: zerocopy::IntoBytes + zerocopy::Immutable,
    {
        const { assert!(size_of::<T>() <= L::SLOT_LEN) };
        assert!(self.free() > 0, "a request for a full ring");
        self.page.0.write(slot_offset::<L>(self.req_prod_pvt), request);
        self.req_prod_pvt += 1;
    }

    /// Writes requests into the next slots, as [`push_request`](FrontRing::push_request) does for
    /// each, with one check for all of them.
    ///
    /// # Panics
    /// If the ring has fewer free slots.
    #[inline]
    pub fn push_requests<T>(&mut self, requests: impl ExactSizeIterator<Item = T>)
    where
        T: zerocopy::IntoBytes + zerocopy::Immutable,
    {
        const { assert!(size_of::<T>() <= L::SLOT_LEN) };
        let count = requests.len();
        assert!(count <= self.free(), "{count} requests for {} slots", self.free());
        let end = self.req_prod_pvt + Wrapping(u32::try_from(count).expect("a ring is small"));
        for request in requests {
            assert!(self.req_prod_pvt != end, "more requests than there should be");
            self.page.0.write(slot_offset::<L>(self.req_prod_pvt), request);
            self.req_prod_pvt += 1;
        }
    }

    /// Makes the pushed requests visible to the peer.
    #[inline]
    pub fn publish_requests(&mut self) -> Notify {
        let (old, new) = (self.req_prod_published, self.req_prod_pvt);
        if old == new {
            return Notify::None;
        }
        self.req_prod_published = new;
        self.page.publish(REQ_PROD, REQ_EVENT, old, new)
    }

    /// How many responses are waiting.
    ///
    /// # Errors
    /// [`RingFault`] if the backend has written more responses than there are requests.
    #[inline]
    pub fn pending(&self) -> Result<u32, RingFault> {
        // Acquire: orders this load before our reads of the slots it covers.
        let produced = self.page.load(RSP_PROD, Ordering::Acquire);
        let outstanding = (self.req_prod_published - self.rsp_cons).0;
        ahead::<L>(produced, self.rsp_cons, outstanding)
    }

    /// Copies waiting responses into `into`, from the first on and as many as fit, without
    /// consuming them. Returns how many were copied.
    ///
    /// # Errors
    /// As [`pending`](FrontRing::pending).
    #[inline]
    pub fn peek_responses(&self, into: &mut [L::Response]) -> Result<usize, RingFault> {
        let waiting = usize::try_from(self.pending()?).expect("a slot count is small");
        let count = waiting.min(into.len());
        self.page.read::<L, _>(self.rsp_cons, &mut into[..count]);
        Ok(count)
    }

    /// Consumes responses that were peeked, which frees their slots.
    ///
    /// # Panics
    /// If fewer requests are outstanding, which is an error of the caller.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        let count = u32::try_from(count).expect("responses are counted by the ring");
        assert!(count <= (self.req_prod_published - self.rsp_cons).0);
        self.rsp_cons += count;
    }

    /// Requests an event for when `count` responses are waiting, and checks once more whether they
    /// are.
    pub fn arm(&mut self, count: u32) -> Waiting {
        self.page.arm(RSP_PROD, RSP_EVENT, self.rsp_cons, count.clamp(1, L::SLOTS))
    }
}

fn slot_number<L: Layout>(index: Index) -> u16 {
    u16::try_from(index.0 & (L::SLOTS - 1)).expect("a slot number is small")
}
