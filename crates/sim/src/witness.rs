//! What the backend reads from the pages of honest guests, and whether it still may.
//!
//! A guest may write to a page, or end its grant, as soon as the request for it has a response. In
//! this simulation no guest acts while an engine runs, so a page that is read too late still holds
//! the right bytes. The witness therefore compares each copy with the ring of the guest.
//!
//! As it knows these rings, it also takes back what a round published in them ([`Published`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_hypervisor::{Access, ForeignMemory, ForeignPage, GrantCopy, PageCopy};
use ringway_loopback::{Loopback, LoopbackMemory};
use ringway_sys::SharedPages;
use ringway_wire::netif::{CTRL_RING_SLOTS, CTRL_SLOT_LEN, TX_RING_SLOTS, TX_SLOT_LEN};
use ringway_wire::ring::{PAGE_END, REQ_PROD, RSP_PROD, SLOTS};
use ringway_wire::{DomId, GrantRef};

use crate::canary::Canary;

/// Clones refer to the same witness.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The rings of honest guests that a backend serves, those of each queue with a number. A guest
    /// stays here when it has none left: from then on, none of its pages may be read.
    rings: BTreeMap<DomId, Vec<(u64, Rings)>>,
    rings_shown: u64,
    reads: Reads,
    /// The first read that was not permitted.
    flaw: Option<String>,
}

/// The rings of a queue.
struct Rings {
    tx: SharedPages,
    rx: SharedPages,
    /// The control ring, if the queue serves it.
    control: Option<SharedPages>,
}

impl Rings {
    /// The pages that requests without a response name.
    fn requests(&self) -> impl Iterator<Item = u32> + '_ {
        requests(&self.tx, (TX_RING_SLOTS, TX_SLOT_LEN, 0)).chain(self.messages())
    }

    /// The pages of messages without a response.
    fn messages(&self) -> impl Iterator<Item = u32> + '_ {
        let named = |ring, at| requests(ring, (CTRL_RING_SLOTS, CTRL_SLOT_LEN, at));
        self.control
            .iter()
            .flat_map(move |ring| MESSAGE_PAGES.map(|at| named(ring, at)).into_iter().flatten())
    }
}

/// Where a message names its page: after its id and its type, and the number of a queue if it has
/// one.
const MESSAGE_PAGES: [usize; 2] = [4, 8];

/// What was read from pages that guests have lent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reads {
    /// Calls that copied from page to page.
    pub(crate) across: u64,
    /// Calls that completed a frame.
    pub(crate) completed: u64,
    /// Calls that found the lender dead.
    pub(crate) of_dead: u64,
}

/// Rings of which the witness knows, until this is dropped.
pub(crate) struct ShownRings {
    witness: Witness,
    peer: DomId,
    number: u64,
}

impl Witness {
    /// Shows it the rings of a queue of an honest guest.
    pub(crate) fn show(
        &self,
        peer: DomId,
        [tx, rx]: [&ForeignPage; 2],
        control: Option<&ForeignPage>,
    ) -> ShownRings {
        let mut seen = self.seen();
        seen.rings_shown += 1;
        let number = seen.rings_shown;
        let [tx, rx] = [tx, rx].map(|ring| ring.pages().clone());
        let rings = Rings { tx, rx, control: control.map(|ring| ring.pages().clone()) };
        seen.rings.entry(peer).or_default().push((number, rings));
        ShownRings { witness: self.clone(), peer, number }
    }

    /// How far the responses in each ring of honest guests are published now.
    pub(crate) fn published(&self) -> Published {
        let seen = self.seen();
        let rings = seen.rings.values().flatten();
        let rings = rings.flat_map(|(_, it)| [&it.tx, &it.rx].into_iter().chain(&it.control));
        let index = |ring: &SharedPages| (ring.clone(), ring.load(RSP_PROD, Ordering::Relaxed));
        Published(rings.map(index).collect())
    }

    /// Whether a message of a guest has no response yet.
    pub(crate) fn has_messages(&self) -> bool {
        let seen = self.seen();
        let mut rings = seen.rings.values().flatten().map(|(_, rings)| rings);
        rings.any(|rings| rings.messages().next().is_some())
    }

    /// Takes what was read since the last call, and the first read that was not permitted.
    pub(crate) fn take(&self) -> (Reads, Option<String>) {
        let mut seen = self.seen();
        (std::mem::take(&mut seen.reads), seen.flaw.take())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Checks that a request for each of these pages of `peer` has no response yet.
    fn check(&mut self, peer: DomId, grefs: impl Iterator<Item = GrantRef>) {
        let Some(rings) = self.rings.get(&peer) else { return };
        let unanswered: BTreeSet<u32> =
            rings.iter().flat_map(|(_, rings)| rings.requests()).collect();
        for gref in grefs.filter(|gref| !unanswered.contains(&gref.0)) {
            let of = match rings.is_empty() {
                true => "whose queue is detached",
                false => "whose request has a response",
            };
            self.flaw.get_or_insert_with(|| format!("page {gref} of domain {peer}, {of}, is read"));
        }
    }
}

/// The pages that requests without a response name. A response that is in its slot and not yet
/// published counts: the request is no longer there.
fn requests(
    ring: &SharedPages,
    (slots, slot_len, at): (usize, usize, usize),
) -> impl Iterator<Item = u32> + '_ {
    let [begin, end] = [RSP_PROD, REQ_PROD].map(|index| ring.load(index, Ordering::Acquire));
    let count = usize::try_from(end.wrapping_sub(begin)).map_or(0, |it| it.min(slots));
    let begin = usize::try_from(begin).expect("32 bits fit");
    (0..count).map(move |ahead| {
        let slot = begin.wrapping_add(ahead) % slots;
        ring.load(SLOTS + slot * slot_len + at, Ordering::Relaxed)
    })
}

impl Drop for ShownRings {
    fn drop(&mut self) {
        if let Some(rings) = self.witness.seen().rings.get_mut(&self.peer) {
            rings.retain(|(number, _)| *number != self.number);
        }
    }
}

/// How far the responses in each ring were published at some time.
pub(crate) struct Published(Vec<(SharedPages, u32)>);

impl Published {
    /// Takes back what was published since then: the responses are in their slots, as if the
    /// backend had been killed before it published them. Returns whether there were any. Events
    /// that it has sent stay sent.
    ///
    /// With the canary, the backend did not note that it wrote them.
    pub(crate) fn take_back(self, canary: Option<Canary>) -> bool {
        let mut has_any = false;
        for (ring, published) in self.0 {
            if ring.load(RSP_PROD, Ordering::Relaxed) != published {
                has_any = true;
                ring.store(RSP_PROD, published, Ordering::Relaxed);
                if canary == Some(Canary::UnnotedResponses) {
                    ring.store(PAGE_END, 0, Ordering::Relaxed);
                }
            }
        }
        has_any
    }
}

/// A backend's handle on the pages of its guests, with a witness.
pub(crate) struct WatchedMemory {
    memory: LoopbackMemory,
    machine: Loopback,
    witness: Witness,
    purpose: Purpose,
}

/// What a handle copies out of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Packets, as they are taken in.
    Packets,
    /// Ends of frames that must be completed.
    Ends,
}

impl WatchedMemory {
    pub(crate) fn new(
        memory: LoopbackMemory,
        machine: &Loopback,
        witness: &Witness,
    ) -> WatchedMemory {
        let (machine, witness) = (machine.clone(), witness.clone());
        WatchedMemory { memory, machine, witness, purpose: Purpose::Packets }
    }

    /// Makes this a handle to complete frames with.
    pub(crate) fn for_ends(self) -> WatchedMemory {
        WatchedMemory { purpose: Purpose::Ends, ..self }
    }
}

impl ForeignMemory for WatchedMemory {
    fn map(&mut self, peer: DomId, gref: GrantRef, access: Access) -> io::Result<ForeignPage> {
        self.memory.map(peer, gref, access)
    }

    fn copy_from_peer<L: AsMut<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &mut [L],
    ) -> io::Result<()> {
        self.witness.seen().check(peer, ops.iter().map(|op| op.gref));
        let copied = self.memory.copy_from_peer(peer, ops, locals);
        if self.purpose == Purpose::Ends {
            let reads = &mut self.witness.seen().reads;
            reads.completed += 1;
            reads.of_dead += u64::from(!self.machine.is_alive(peer));
        }
        copied
    }

    fn copy_to_peer<L: AsRef<[u8]>>(
        &mut self,
        peer: DomId,
        ops: &mut [GrantCopy],
        locals: &[L],
    ) -> io::Result<()> {
        self.memory.copy_to_peer(peer, ops, locals)
    }

    fn copy_between_peers(&mut self, to: DomId, ops: &mut [PageCopy]) -> io::Result<()> {
        for run in ops.chunk_by(|one, next| one.from == next.from) {
            self.witness.seen().check(run[0].from, run.iter().map(|op| op.from_gref));
        }
        let copied = self.memory.copy_between_peers(to, ops);
        let reads = &mut self.witness.seen().reads;
        reads.across += 1;
        reads.of_dead += u64::from(ops.iter().any(|op| !self.machine.is_alive(op.from)));
        copied
    }
}
