//! The messages by which a frontend has its backend keep pages mapped (staging grants).
//!
//! A backend need not do so: what it does not map, it copies by its grant. So a message that is
//! refused ends the attempt, and nothing else. A backend that closes the vif ends all mappings,
//! before the grants end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringway_wire::GrantRef;
use ringway_wire::netif::{
    CTRL_STATUS_SUCCESS, CTRL_TYPE_ADD_GREF_MAPPING, CTRL_TYPE_GET_GREF_MAPPING_SIZE, CtrlRequest,
    CtrlResponse, GREF_READONLY, GREFS_PER_LIST, GrefEntry,
};
use zerocopy::IntoBytes;

use crate::setup::PageBytes;

/// The pages of a queue, in the order in which its backend should map them.
#[derive(Debug, Clone, Default)]
pub struct QueuePages(Vec<GrefEntry>);

/// How many pages of a vif its backend keeps mapped, as far as it has said so. A copy shows the
/// same, also when the queue is with another thread.
#[derive(Debug, Clone, Default)]
pub struct StagedCount(Arc<AtomicUsize>);

/// The messages for the queues of a vif, one after the other: for each how many pages its backend
/// maps, then those pages.
#[derive(Debug)]
pub(crate) struct StagingSetup {
    /// The queues that are not done, with their numbers.
    queues: VecDeque<(u32, QueuePages)>,
    /// How many pages of the first of them may be mapped, once that is known.
    room: Option<usize>,
    /// How many of its pages are mapped.
    done: usize,
    staged: StagedCount,
}

impl QueuePages {
    /// Adds pages that the backend reads and writes.
    pub(crate) fn add_writable(&mut self, grefs: impl Iterator<Item = GrantRef>) {
        self.0.extend(grefs.map(|gref| GrefEntry { gref: gref.0, flags: 0, status: 0 }));
    }

    /// Adds pages that the backend only reads.
    pub(crate) fn add_readable(&mut self, grefs: impl Iterator<Item = GrantRef>) {
        let flags = GREF_READONLY;
        self.0.extend(grefs.map(|gref| GrefEntry { gref: gref.0, flags, status: 0 }));
    }
}

impl StagedCount {
    /// How many there are.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl StagingSetup {
    /// The messages for these queues, of which none was sent.
    pub(crate) fn new(queues: Vec<QueuePages>, staged: StagedCount) -> StagingSetup {
        let queues = (0..).zip(queues).collect();
        StagingSetup { queues, room: None, done: 0, staged }
    }

    /// The next message, with this id, and the bytes that have to be in the page that it names;
    /// `None` if there is no more.
    pub(crate) fn next(&mut self, id: u16, page: GrantRef) -> Option<(CtrlRequest, PageBytes)> {
        loop {
            let (queue, pages) = self.queues.front()?;
            let Some(room) = self.room else {
                let kind = CTRL_TYPE_GET_GREF_MAPPING_SIZE;
                let request = CtrlRequest { id, kind, data: [*queue, 0, 0] };
                return Some((request, PageBytes::new()));
            };
            let list = list_of(pages, room, self.done);
            if !list.is_empty() {
                let count = u32::try_from(list.len()).expect("a list is in a page");
                let kind = CTRL_TYPE_ADD_GREF_MAPPING;
                let request = CtrlRequest { id, kind, data: [*queue, page.0, count] };
                return Some((request, list.as_bytes().iter().copied().collect()));
            }
            self.queues.pop_front();
            (self.room, self.done) = (None, 0);
        }
    }

    /// Takes the response to the message that [`next`](StagingSetup::next) returned. Returns
    /// whether there may be more.
    pub(crate) fn respond(&mut self, response: CtrlResponse) -> bool {
        let Some((_, pages)) = self.queues.front() else { return false };
        if response.status != CTRL_STATUS_SUCCESS {
            return false;
        }
        match self.room {
            None => self.room = Some(usize::try_from(response.data).unwrap_or(usize::MAX)),
            Some(room) => {
                let mapped = list_of(pages, room, self.done).len();
                self.done += mapped;
                self.staged.0.fetch_add(mapped, Ordering::Relaxed);
            }
        }
        true
    }
}

/// The pages of the next message for a queue of which so many are mapped.
fn list_of(pages: &QueuePages, room: usize, done: usize) -> &[GrefEntry] {
    let rest = pages.0.get(done..room.min(pages.0.len())).unwrap_or_default();
    &rest[..rest.len().min(GREFS_PER_LIST)]
}
