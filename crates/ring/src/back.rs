//! The backend's half of a ring.

use core::marker::PhantomData;
use core::num::Wrapping;
use core::sync::atomic::{Ordering, compiler_fence};

use ringway_sys::SharedPages;
use ringway_wire::ring::{PAGE_END, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS, slot_count};

use crate::{Index, Layout, Notify, Page, RingFault, RingMemory, Waiting, ahead, slot_offset};

/// Where the backend notes in the page how far it has overwritten requests with responses. The
/// frontend accesses nothing in this cache line, so the line stays with the backend's CPU. A note
/// beside the indices would take their line from the frontend once more for each batch.
const NOTE: usize = PAGE_END;

/// Consumes requests and produces one response for each, in the request's own slot.
///
/// ```text
/// ring.peek_requests(&mut window)?;      // by value, nothing consumed yet
/// ... decide how many to serve ...
/// ring.consume(served);
/// ring.begin_responses();                // one note for all of them
/// for each of them { ring.push_response(..) }
/// if ring.publish_responses() == Notify::Peer { event.notify() }
/// ```
///
/// A backend may be killed after it has written responses and before it has published them. Their
/// requests are gone then, and nothing in the protocol shows that. So a note at the end of the page
/// says how far responses go, for the next backend ([`interrupted`](BackRing::interrupted)).
/// The peer can write that note, too, but with it changes only the responses to its own requests.
#[derive(Debug)]
pub struct BackRing<L: Layout, M = SharedPages> {
    page: Page<M>,
    req_cons: Index,
    rsp_prod_pvt: Index,
    rsp_prod_published: Index,
    /// Every slot before this index may hold a response, as the page notes.
    noted: Index,
    layout: PhantomData<L>,
}

impl<L: Layout, M: RingMemory> BackRing<L, M> {
    /// Attaches to a ring page at its shared indices, which are zero for a new ring.
    ///
    /// Requests that an earlier backend consumed without a response are served again
    /// (`BACK_RING_ATTACH`), so a backend can restart under traffic. First call
    /// [`interrupted`](BackRing::interrupted).
    ///
    /// # Errors
    /// [`RingFault`] if the indices cannot belong to a ring.
    pub fn attach(page: M) -> Result<BackRing<L, M>, RingFault> {
        const { assert!(SLOTS + slot_count(L::SLOT_LEN) * L::SLOT_LEN <= NOTE) };
        let page = Page(page);
        //= netif.h:back-ring-attach
        let responses = page.load(RSP_PROD, Ordering::Acquire);
        let waiting = ahead::<L>(page.load(REQ_PROD, Ordering::Acquire), responses, L::SLOTS)?;
        let noted = noted_after(page.0.load(NOTE, Ordering::Relaxed), responses);
        let overwritten = noted.filter(|count| *count <= waiting).unwrap_or(0);
        Ok(BackRing {
            page,
            req_cons: responses,
            rsp_prod_pvt: responses,
            rsp_prod_published: responses,
            noted: responses + Wrapping(overwritten),
            layout: PhantomData,
        })
    }

    /// How many of the first requests after [`attach`](BackRing::attach) cannot be served, because
    /// an earlier backend wrote responses over them, or over their first bytes, and was killed
    /// before it published these.
    ///
    /// They need responses again, and their slots show what a [`Layout::Response`] has left of
    /// them. Call it before anything is consumed: it counts down as responses are pushed.
    #[must_use = "these slots hold no requests"]
    pub fn interrupted(&self) -> usize {
        usize::try_from((self.noted - self.rsp_prod_pvt).0).expect("a slot count is small")
    }

    /// How many requests are waiting.
    ///
    /// # Errors
    /// [`RingFault`] if the peer's index is invalid.
    #[inline]
    pub fn pending(&self) -> Result<u32, RingFault> {
        // Acquire: orders this load before our reads of the slots it covers.
        let produced = self.page.load(REQ_PROD, Ordering::Acquire);
        // Slots that we consumed without a response cannot hold new requests.
        let outstanding = (self.req_cons - self.rsp_prod_pvt).0;
        ahead::<L>(produced, self.req_cons, L::SLOTS - outstanding)
    }

    /// Copies waiting requests into `into`, from the first on and as many as fit, without consuming
    /// them. Returns how many were copied, and how many are waiting.
    ///
    /// # Errors
    /// As [`pending`](BackRing::pending).
    #[inline]
    pub fn peek_requests(&self, into: &mut [L::Request]) -> Result<(usize, usize), RingFault> {
        let waiting = usize::try_from(self.pending()?).expect("a slot count is small");
        let count = waiting.min(into.len());
        self.page.read::<L, _>(self.req_cons, &mut into[..count]);
        Ok((count, waiting))
    }

    /// Consumes requests that were peeked.
    ///
    /// # Panics
    /// If the ring does not hold that many, which is an error of the caller.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        let count = u32::try_from(count).expect("requests are counted by the ring");
        let outstanding = (self.req_cons - self.rsp_prod_pvt).0;
        assert!(outstanding + count <= L::SLOTS, "consuming more requests than the ring holds");
        self.req_cons += count;
    }

    /// The free-running index of the next request to consume, for messages.
    pub fn consumer(&self) -> u32 {
        self.req_cons.0
    }

    /// The free-running index of the next response to push.
    #[inline]
    pub fn producer(&self) -> u32 {
        self.rsp_prod_pvt.0
    }

    /// Notes in the page that responses to all consumed requests follow. Otherwise each push makes
    /// a note for its own slot, which is one store more.
    #[inline]
    pub fn begin_responses(&mut self) {
        // After an interruption the note may cover more.
        let is_noted = (self.noted - self.rsp_prod_pvt).0 >= (self.req_cons - self.rsp_prod_pvt).0;
        if !is_noted {
            self.note_until(self.req_cons);
        }
    }

    #[inline]
    fn note_until(&mut self, end: Index) {
        self.noted = end;
        self.page.0.store(NOTE, note(end), Ordering::Relaxed);
        // The note precedes the slots. That must hold for a killed thread only, whose stores reach
        // memory up to an instruction: the compiler alone could exchange them.
        compiler_fence(Ordering::SeqCst);
    }

    /// Writes the response to the oldest request without one, into its slot (`netif.h`: the peer
    /// pairs rx requests and responses by slot alone).
    ///
    /// `T` is the response, or an extra in place of one.
    ///
    /// # Panics
    /// If every consumed request has its response, which is an error of the caller.
    #[inline]
    pub fn push_response<T>(&mut self, response: T)
    where
        T: zerocopy::IntoBytes + zerocopy::Immutable,
    {
        const { assert!(size_of::<T>() <= L::SLOT_LEN) };
        assert!(self.rsp_prod_pvt != self.req_cons, "a response without a request");
        if self.noted == self.rsp_prod_pvt {
            self.note_until(self.rsp_prod_pvt + Wrapping(1));
        }
        //= netif.h:rx-same-slot
        //= netif.h:one-response-per-request
        self.page.0.write(slot_offset::<L>(self.rsp_prod_pvt), response);
        self.rsp_prod_pvt += 1;
    }

    /// Writes the responses to as many of the oldest requests without one, as
    /// [`push_response`](BackRing::push_response) does for each, with one check for all of them.
    ///
    /// # Panics
    /// If there are fewer such requests, which is an error of the caller.
    #[inline]
    pub fn push_responses<T>(&mut self, responses: impl ExactSizeIterator<Item = T>)
    where
        T: zerocopy::IntoBytes + zerocopy::Immutable,
    {
        const { assert!(size_of::<T>() <= L::SLOT_LEN) };
        let count = u32::try_from(responses.len()).expect("responses are counted by the ring");
        let unanswered = (self.req_cons - self.rsp_prod_pvt).0;
        assert!(count <= unanswered, "{count} responses to {unanswered} requests");
        let end = self.rsp_prod_pvt + Wrapping(count);
        if (self.noted - self.rsp_prod_pvt).0 < count {
            self.note_until(end);
        }
        for response in responses {
            assert!(self.rsp_prod_pvt != end, "more responses than there should be");
            self.page.0.write(slot_offset::<L>(self.rsp_prod_pvt), response);
            self.rsp_prod_pvt += 1;
        }
    }

    /// Makes the pushed responses visible to the peer.
    #[inline]
    pub fn publish_responses(&mut self) -> Notify {
        let (old, new) = (self.rsp_prod_published, self.rsp_prod_pvt);
        if old == new {
            return Notify::None;
        }
        self.rsp_prod_published = new;
        self.page.publish(RSP_PROD, RSP_EVENT, old, new)
    }

    /// Requests an event for when `count` requests are waiting, and checks once more whether they
    /// are.
    pub fn arm(&mut self, count: u32) -> Waiting {
        self.page.arm(REQ_PROD, REQ_EVENT, self.req_cons, count.clamp(1, L::SLOTS))
    }
}

/// The note that slots before this index may hold responses: the lower half of the index, and its
/// complement, so that a page that was not cleared has no valid note.
///
/// A note is out of date once a backend that writes none has served the ring, or a frontend has
/// made another ring in the page and left its end as it was. If the ring is then nearly a multiple
/// of 65,536 slots ahead, up to a ring of requests gets responses unserved.
fn note(index: Index) -> u32 {
    let half = index.0 & 0xFFFF;
    half | !half << 16
}

/// How many slots after this index the note covers; `None` if it is not a note.
fn noted_after(word: u32, index: Index) -> Option<u32> {
    let half = word & 0xFFFF;
    (word == note(Wrapping(half))).then(|| half.wrapping_sub(index.0) & 0xFFFF)
}
