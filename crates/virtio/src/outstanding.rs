//! Chains that a device has.

use std::collections::VecDeque;

use crate::UsedFault;

/// A chain that the device is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// What `push` returned for it.
    pub id: u16,
    /// Bytes that the device wrote.
    pub len: u32,
}

/// The chains that the device has, by their numbers.
#[derive(Debug)]
pub(crate) struct Outstanding {
    chains: Box<[Posted]>,
    /// The next descriptor of the same chain. What the table says may have been changed.
    links: Box<[u16]>,
    /// The chains in the order in which they were made available; empty unless they come back so.
    order: VecDeque<u16>,
    in_order: bool,
    ended: Ended,
}

#[derive(Debug, Clone, Copy, Default)]
struct Posted {
    /// Bytes that the device may write.
    room: u32,
    slots: u16,
    last_slot: u16,
    is_out: bool,
}

/// Chains that one used entry stands for.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
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
            ended: Ended::default(),
        }
    }

    /// Adds a descriptor to a chain that begins with the one that is its number.
    #[inline]
    pub(crate) fn add_slot(&mut self, id: u16, index: u16) {
        let chain = &mut self.chains[usize::from(id)];
        if chain.slots > 0 {
            self.links[usize::from(chain.last_slot)] = index;
        }
        chain.slots += 1;
        chain.last_slot = index;
    }

    /// Adds descriptors that follow each other, in a packed queue.
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

    /// Notes a used entry. Where chains come back in order, those before it have ended, too; at
    /// most `limit` chains have.
    #[inline]
    pub(crate) fn end(&mut self, id: u32, len: u32, limit: u16) -> Result<(), UsedFault> {
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
        self.ended = Ended { count, id, len };
        Ok(())
    }

    /// Whether a used entry stands for more chains than were taken back.
    #[inline]
    pub(crate) fn is_skipping(&self) -> bool {
        self.ended.count > 0
    }

    /// The next chain that has ended, and how many descriptors it had.
    #[inline]
    pub(crate) fn next_ended(&mut self) -> Option<(Used, u16)> {
        self.ended.count = self.ended.count.checked_sub(1)?;
        let ended = self.ended;
        let id = match self.in_order {
            true => self.order.pop_front().expect("as many chains as ended are out"),
            false => ended.id,
        };
        let chain = &mut self.chains[usize::from(id)];
        let slots = chain.slots;
        *chain = Posted::default();
        let len = if ended.count == 0 { ended.len } else { 0 };
        Some((Used { id, len }, slots))
    }

    /// Gives the descriptors of a chain of a split queue back.
    #[inline]
    pub(crate) fn give_back(&self, id: u16, slots: u16, free: &mut VecDeque<u16>) {
        let mut index = id;
        for _ in 0..slots {
            free.push_back(index);
            index = self.links[usize::from(index)];
        }
    }
}
