//! Chains that the device has.

use std::collections::VecDeque;

use crate::UsedFault;

/// A chain that the device has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// The number that `push` returned for it.
    pub id: u16,
    /// Bytes that the device wrote.
    pub len: u32,
}

/// The chains that the device has, by number.
#[derive(Debug)]
pub(crate) struct Outstanding {
    chains: Box<[Posted]>,
    /// The next descriptor of the same chain. A private copy, because the peer may change the
    /// table.
    links: Box<[u16]>,
    /// The chains in the order in which they were made available; empty unless they are used in
    /// order.
    order: VecDeque<u16>,
    in_order: bool,
    completed: Completed,
}

#[derive(Debug, Clone, Copy, Default)]
struct Posted {
    /// Bytes that the device may write.
    room: u32,
    slots: u16,
    last_slot: u16,
    is_out: bool,
}

/// The chains that one used entry covers.
#[derive(Debug, Clone, Copy, Default)]
struct Completed {
    count: u16,
    id: u16,
    len: u32,
}

impl Outstanding {
    pub(crate) fn new(size: u16, in_order: bool) -> Outstanding {
        let count = usize::from(size);
        Outstanding {
            chains: vec![Posted::default(); count].into(),
            links: vec![0; count].into(),
            order: VecDeque::with_capacity(if in_order { count } else { 0 }),
            in_order,
            completed: Completed::default(),
        }
    }

    /// Adds a descriptor to chain `id`, which is named after its first descriptor.
    #[inline]
    pub(crate) fn add_slot(&mut self, id: u16, index: u16) {
        let chain = &mut self.chains[usize::from(id)];
        if chain.slots > 0 {
            self.links[usize::from(chain.last_slot)] = index;
        }
        chain.slots += 1;
        chain.last_slot = index;
    }

    /// Adds `count` consecutive descriptors, in a packed queue.
    #[inline]
    pub(crate) fn add_slots(&mut self, id: u16, count: u16) {
        self.chains[usize::from(id)].slots = count;
    }

    #[inline]
    pub(crate) fn begin(&mut self, id: u16, room: u64) {
        let chain = &mut self.chains[usize::from(id)];
        chain.room = u32::try_from(room).unwrap_or(u32::MAX);
        chain.is_out = true;
        if self.in_order {
            self.order.push_back(id);
        }
    }

    /// Records a used entry. With in-order use it also covers the chains before it, at most `limit`
    /// in all.
    #[inline]
    pub(crate) fn record_used(&mut self, id: u32, len: u32, limit: u16) -> Result<(), UsedFault> {
        let posted = usize::try_from(id).ok().and_then(|index| self.chains.get(index));
        let Some(posted) = posted.filter(|posted| posted.is_out) else {
            return Err(UsedFault::Unknown { id });
        };
        let room = posted.room;
        let id = u16::try_from(id).expect("the queue has as many chains");
        if len > room {
            return Err(UsedFault::TooManyBytes { id, len, room });
        }
        let count = match self.in_order {
            false => 1,
            true => {
                let before = self.order.iter().position(|known| *known == id);
                let before = before.expect("a chain that is out is in the order");
                u16::try_from(before + 1).expect("a queue is small")
            }
        };
        if count > limit {
            let id = u32::from(id);
            return Err(UsedFault::Unknown { id });
        }
        self.completed = Completed { count, id, len };
        Ok(())
    }

    /// Whether the used entry covers chains that the driver has not collected yet.
    #[inline]
    pub(crate) fn has_more_completed(&self) -> bool {
        self.completed.count > 0
    }

    /// The next chain that the used entry covers, and its number of descriptors.
    #[inline]
    pub(crate) fn next_completed(&mut self) -> Option<(Used, u16)> {
        self.completed.count = self.completed.count.checked_sub(1)?;
        let completed = self.completed;
        let id = match self.in_order {
            true => self.order.pop_front().expect("as many chains as were completed are out"),
            false => completed.id,
        };
        let chain = &mut self.chains[usize::from(id)];
        let slots = chain.slots;
        *chain = Posted::default();
        let len = if completed.count == 0 { completed.len } else { 0 };
        Some((Used { id, len }, slots))
    }

    /// Frees the descriptors of a chain of a split queue.
    #[inline]
    pub(crate) fn give_back(&self, id: u16, slots: u16, free: &mut VecDeque<u16>) {
        let mut index = id;
        for _ in 0..slots {
            free.push_back(index);
            index = self.links[usize::from(index)];
        }
    }
}
