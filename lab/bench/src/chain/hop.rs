//! Frames from one process to the next, in memory that both have: a ring of the buffers that are
//! filled, and the buffers.
//!
//! Each side asks to be woken at a number of frames, as the rings of Xen do, and not otherwise.

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use ringway_sys::SharedPages;
use ringway_wire::vnet::VirtioNetHdr;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Buffers of a hop, and slots of its ring: with fewer, or with many more, the chain is slower.
pub(super) const BUFFERS: usize = 8;
/// [`BUFFERS`] as an index counts them: a power of two.
const COUNT: u32 = 8;
/// Larger than any frame with its header.
const BUFFER_LEN: usize = 68 << 10;
/// Where a frame is in its buffer, behind its header.
const FRAME_AT: usize = 64;

/// How many frames the producer has filled in. Each index has a cache line of its own.
const FILLED: usize = 0;
/// At how many it has to wake the consumer.
const FILLED_EVENT: usize = 64;
/// How many the consumer has emptied.
const EMPTIED: usize = 128;
/// At how many it has to wake the producer.
const EMPTIED_EVENT: usize = 192;
/// A buffer's number and the length of its frame for each slot.
const SLOTS_AT: usize = 256;
const BUFFERS_AT: usize = 4096;
const MEMORY_BYTES: usize = BUFFERS_AT + BUFFERS * BUFFER_LEN;

/// Memory of a hop, for both sides.
pub(super) fn memory() -> io::Result<OwnedFd> {
    let file = memfd_create("hop", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, u64::try_from(MEMORY_BYTES).unwrap_or(u64::MAX))?;
    Ok(file)
}

/// The side that fills buffers.
pub(super) struct Producer {
    pages: SharedPages,
    filled: u32,
    published: u32,
    emptied: u32,
    /// Empty buffers; the one emptied last is used first.
    free: Vec<u32>,
    /// The buffer in each slot.
    used: [u32; BUFFERS],
}

/// The side that empties them.
pub(super) struct Consumer {
    pages: SharedPages,
    emptied: u32,
}

/// What was put into a buffer: the header of a frame, and the frame's length.
pub(super) type Read = (VirtioNetHdr, usize);

/// A frame in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) header: VirtioNetHdr,
    /// Where it begins in the pages.
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Producer {
    pub(super) fn new(memory: impl AsFd) -> io::Result<Producer> {
        let pages = SharedPages::map(memory, 0, MEMORY_BYTES)?;
        let (free, used) = ((0..COUNT).rev().collect(), [0; BUFFERS]);
        Ok(Producer { pages, filled: 0, published: 0, emptied: 0, free, used })
    }

    /// Buffers that can be filled.
    pub(super) fn room(&mut self) -> usize {
        let emptied = self.pages.load(EMPTIED, Ordering::Acquire);
        while self.emptied != emptied {
            self.free.push(self.used[slot(self.emptied)]);
            self.emptied = self.emptied.wrapping_add(1);
        }
        self.free.len()
    }

    /// Whether a buffer can be filled, as of the last call of `room`.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Fills a buffer, if there is one. `fill` gets the pages and the offset and the length of the
    /// space for the frame, and returns the header and the length of the frame, if there is one.
    /// False if nothing was filled.
    pub(super) fn fill(
        &mut self,
        fill: impl FnOnce(&SharedPages, (usize, usize)) -> io::Result<Option<Read>>,
    ) -> io::Result<bool> {
        let Some(buffer) = self.free.pop() else { return Ok(false) };
        let at = place(buffer);
        let Some((header, len)) = fill(&self.pages, (at + FRAME_AT, BUFFER_LEN - FRAME_AT))? else {
            self.free.push(buffer);
            return Ok(false);
        };
        self.pages.write(at, header);
        let slot = slot(self.filled);
        self.used[slot] = buffer;
        self.pages.store(SLOTS_AT + 8 * slot, buffer, Ordering::Relaxed);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.pages.store(SLOTS_AT + 8 * slot + 4, len, Ordering::Relaxed);
        self.filled = self.filled.wrapping_add(1);
        Ok(true)
    }

    /// Shows the consumer what was filled. True if it has to be woken for that.
    pub(super) fn publish(&mut self) -> bool {
        let before = mem::replace(&mut self.published, self.filled);
        if before == self.filled {
            return false;
        }
        // Release: the consumer reads slots and frames after the index.
        self.pages.store(FILLED, self.filled, Ordering::Release);
        fence(Ordering::SeqCst);
        has_passed(self.pages.load(FILLED_EVENT, Ordering::Relaxed), before, self.filled)
    }

    /// Has the consumer wake this process when it has emptied half of the buffers. Call it without
    /// room, and check for room again.
    pub(super) fn await_room(&self) {
        let event = self.emptied.wrapping_add(COUNT / 2);
        self.pages.store(EMPTIED_EVENT, event, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl Consumer {
    pub(super) fn new(memory: impl AsFd) -> io::Result<Consumer> {
        Ok(Consumer { pages: SharedPages::map(memory, 0, MEMORY_BYTES)?, emptied: 0 })
    }

    pub(super) fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Frames that wait.
    pub(super) fn waiting(&self) -> usize {
        // Acquire: slots and frames are read after the index.
        let filled = self.pages.load(FILLED, Ordering::Acquire);
        usize::try_from(filled.wrapping_sub(self.emptied)).unwrap_or(0)
    }

    /// A frame that waits, by its number from the first on.
    pub(super) fn frame(&self, number: u32) -> Filled {
        let slot = SLOTS_AT + 8 * slot(self.emptied.wrapping_add(number));
        let at = place(self.pages.load(slot, Ordering::Relaxed));
        let len = self.pages.load(slot + 4, Ordering::Relaxed);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Filled { header: self.pages.read(at), at: at + FRAME_AT, len }
    }

    /// Gives the buffers of the first frames back. True if the producer has to be woken for that.
    pub(super) fn release(&mut self, count: u32) -> bool {
        let before = self.emptied;
        self.emptied = before.wrapping_add(count);
        // Release: the producer fills buffers after it has read the index.
        self.pages.store(EMPTIED, self.emptied, Ordering::Release);
        fence(Ordering::SeqCst);
        has_passed(self.pages.load(EMPTIED_EVENT, Ordering::Relaxed), before, self.emptied)
    }

    /// Has the producer wake this process for the next frame. Check for frames again.
    pub(super) fn await_frames(&self) {
        self.pages.store(FILLED_EVENT, self.emptied.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Whether an index has come to `event` on its way from `before` to `now`.
fn has_passed(event: u32, before: u32, now: u32) -> bool {
    now.wrapping_sub(event) < now.wrapping_sub(before)
}

fn slot(index: u32) -> usize {
    usize::try_from(index % COUNT).unwrap_or(0)
}

fn place(buffer: u32) -> usize {
    BUFFERS_AT + BUFFER_LEN * usize::try_from(buffer).unwrap_or(usize::MAX / BUFFER_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(producer: &mut Producer, text: &[u8]) -> bool {
        let header = VirtioNetHdr { gso_size: 7, ..VirtioNetHdr::default() };
        let filled = producer.fill(|pages, (at, _)| {
            pages.copy_from(at, text);
            Ok(Some((header, text.len())))
        });
        filled.expect("nothing fails here")
    }

    #[test]
    fn a_frame_passes_with_its_header_and_its_buffer_comes_back() {
        let memory = memory().expect("there is memory");
        let mut producer = Producer::new(&memory).expect("a mapping");
        let mut consumer = Consumer::new(&memory).expect("a mapping");
        for round in 0..3 * COUNT {
            let text = format!("frame {round}");
            assert!(put(&mut producer, text.as_bytes()));
            assert_eq!(consumer.waiting(), 0, "it is not shown yet");
            producer.publish();
            assert_eq!(consumer.waiting(), 1);
            let frame = consumer.frame(0);
            let mut bytes = vec![0; frame.len];
            consumer.pages().copy_to(frame.at, &mut bytes);
            assert_eq!((bytes, frame.header.gso_size), (text.into_bytes(), 7));
            consumer.release(1);
            assert_eq!(producer.room(), BUFFERS);
        }
    }

    #[test]
    fn each_side_is_woken_only_for_what_it_awaits() {
        let memory = memory().expect("there is memory");
        let mut producer = Producer::new(&memory).expect("a mapping");
        let mut consumer = Consumer::new(&memory).expect("a mapping");
        assert!(put(&mut producer, b"a") && !producer.publish(), "the consumer is awake");
        consumer.release(1);
        consumer.await_frames();
        assert_eq!((consumer.waiting(), producer.room()), (0, BUFFERS));
        assert!(put(&mut producer, b"b") && producer.publish(), "it sleeps");
        while producer.room() > 0 {
            assert!(put(&mut producer, b"c"));
        }
        assert!(!put(&mut producer, b"d") && !producer.publish(), "one wake-up is enough");
        producer.await_room();
        let wakes: Vec<bool> = (0..COUNT).map(|_| consumer.release(1)).collect();
        assert_eq!(wakes.iter().position(|wakes| *wakes), Some(BUFFERS / 2 - 1));
        assert_eq!(wakes.iter().filter(|wakes| **wakes).count(), 1);
    }
}
