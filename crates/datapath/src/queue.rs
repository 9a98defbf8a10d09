//! [`PortQueue`]: one queue by which frames enter and leave the switch.
//!
//! A *port* of the switch is a set of such queues. The data path is generic over this trait; it is
//! implemented by a queue of a vif, at either end, and by a queue of a TAP device.

use core::error::Error;
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;

use crate::{BATCH, Ends, FrameBatch, FramePool, FrameQueue, OffloadCaps, Pending};

/// What a queue gives, or why it can no longer be used.
pub type Result<T = (), E = QueueDown> = core::result::Result<T, E>;

/// One queue of a port: of a vif, a TAP device or a test.
///
/// `ingress` and `egress` are the switch's directions. Calls move whole batches. A queue is owned
/// by one worker from attach to detach. No method has a default body, so that a forwarding type
/// cannot miss one.
pub trait PortQueue {
    /// Takes frames in: at most `budget.frames`, and none after the one that reaches
    /// `budget.bytes`, up to the room in `into`.
    ///
    /// If frames in `into` are [lent](crate::Frame::is_lent), [`settle`](PortQueue::settle) follows
    /// once none is any more, and no other `ingress` before it.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used. Frames already in `into` are valid.
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result;

    /// Gives the peer back what the queue holds for frames that are gone. It is called when no
    /// frame is lent any more, and when the queue has to wait instead of taking frames in.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    fn settle(&mut self, pool: &mut FramePool) -> Result;

    /// Sends frames from the front of `from`, in order. Frames that do not fit now stay there;
    /// frames that are sent or dropped are recycled, and the queue counts the drops.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result;

    /// Asks for an event when the next frame can enter and, if `egress` left any, when there is
    /// room for one to leave; then checks once more.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    fn arm(&mut self) -> Result<Pending>;

    /// Handles an event: the next `ingress` or `egress` may have work.
    ///
    /// # Errors
    /// [`QueueDown`] when the queue can no longer be used.
    fn woken(&mut self, by: Woken) -> Result;

    /// What does not change from attach to detach.
    fn describe(&self) -> QueueTraits;

    /// How many frames of `len` bytes could leave now; `None` if the queue cannot know. If there is
    /// no room for any, the next [`arm`](PortQueue::arm) asks for an event when there is.
    fn room_for(&mut self, len: usize) -> Option<usize>;

    /// How far the peer has come in what left by this queue; `None` if the queue cannot know. That
    /// of a frontend cannot: a response says that a frame was copied, not that it was forwarded.
    fn peer_progress(&mut self) -> Option<PeerProgress>;
}

/// A queue whose events are descriptors that a thread can wait for.
pub trait Wakers {
    /// Calls `visit` with each descriptor: when it becomes readable, [`PortQueue::woken`] is due.
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>));
}

/// Makes an enum a queue, each of whose variants holds one: workers then call it directly, without
/// a table of functions. `V` is the only type parameter, and a queue itself.
///
/// ```
/// use ringway_datapath::queue_of_variants;
///
/// enum Either<V> {
///     Plain(V),
///     Boxed(Box<V>),
/// }
/// queue_of_variants!(Either<V> { Plain, Boxed });
/// ```
#[macro_export]
macro_rules! queue_of_variants {
    ($name:ident<$v:ident> { $($variant:ident),+ $(,)? }) => {
        impl<$v: $crate::PortQueue> $crate::PortQueue for $name<$v> {
            #[inline]
            fn ingress(
                &mut self,
                budget: $crate::Budget,
                pool: &mut $crate::FramePool,
                into: &mut $crate::FrameBatch,
            ) -> $crate::Result {
                match self {
                    $($name::$variant(queue) => queue.ingress(budget, pool, into),)+
                }
            }

            fn settle(&mut self, pool: &mut $crate::FramePool) -> $crate::Result {
                match self {
                    $($name::$variant(queue) => queue.settle(pool),)+
                }
            }

            #[inline]
            fn egress(
                &mut self,
                from: &mut $crate::FrameQueue,
                pool: &mut $crate::FramePool,
            ) -> $crate::Result {
                match self {
                    $($name::$variant(queue) => queue.egress(from, pool),)+
                }
            }

            #[inline]
            fn arm(&mut self) -> $crate::Result<$crate::Pending> {
                match self {
                    $($name::$variant(queue) => queue.arm(),)+
                }
            }

            fn woken(&mut self, by: $crate::Woken) -> $crate::Result {
                match self {
                    $($name::$variant(queue) => queue.woken(by),)+
                }
            }

            fn describe(&self) -> $crate::QueueTraits {
                match self {
                    $($name::$variant(queue) => queue.describe(),)+
                }
            }

            #[inline]
            fn room_for(&mut self, len: usize) -> Option<usize> {
                match self {
                    $($name::$variant(queue) => queue.room_for(len),)+
                }
            }

            fn peer_progress(&mut self) -> Option<$crate::PeerProgress> {
                match self {
                    $($name::$variant(queue) => queue.peer_progress(),)+
                }
            }
        }

        impl<$v: $crate::Wakers> $crate::Wakers for $name<$v> {
            fn wakers(&self, visit: &mut dyn FnMut(::std::os::fd::BorrowedFd<'_>)) {
                match self {
                    $($name::$variant(queue) => queue.wakers(visit),)+
                }
            }
        }
    };
}

/// Which descriptor caused an event of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The descriptor with this index, from 0, in the order of [`Wakers::wakers`]: no other needs
    /// to be read.
    By(usize),
    /// Any of them.
    Unknown,
}

/// How much one call of [`PortQueue::ingress`] may take in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Frames at most.
    pub frames: usize,
    /// Bytes after which no further frame is taken in, counted per
    /// [`Frame::work`](crate::Frame::work).
    pub bytes: usize,
}

impl Budget {
    /// A full batch.
    pub const BATCH: Budget = Budget { frames: BATCH, bytes: usize::MAX };
}

/// How far the peer of a ring has come in the buffers that were filled for it, as it shows by the
/// buffers that it makes available: while it does not have one back, its slot is taken. So this is
/// what it has taken at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerProgress {
    filled: u16,
    taken: u16,
}

impl PeerProgress {
    /// Of a ring with `size` slots, at most 2^15, of which `available` have empty buffers. `filled`
    /// counts the buffers that were filled, from any number on and wrapping.
    pub fn new(filled: u16, available: u16, size: u16) -> PeerProgress {
        PeerProgress { filled, taken: filled.wrapping_sub(size.saturating_sub(available)) }
    }

    /// A mark behind all that was filled.
    pub fn mark(self) -> u16 {
        self.filled
    }

    /// Whether the peer has taken what was filled before this mark. The mark is not older than 2^15
    /// buffers; of an older one it may seem that the peer has not.
    pub fn has_taken(self, mark: u16) -> bool {
        self.taken.wrapping_sub(mark) < 1 << 15
    }
}

/// Properties of a queue, fixed from attach to detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTraits {
    /// Offloads that frames leaving by this queue may still ask for.
    pub caps: OffloadCaps,
    /// The cost of polling an empty queue.
    pub probe: Probe,
    /// The interval at which a backlog is retried, if no event reports room.
    pub retry: Option<Duration>,
    /// The [ends](crate::End) of frames that may leave by this queue. Others are completed first.
    pub takes: Ends,
}

impl QueueTraits {
    /// Of a queue in memory that reports room by events. Frames leave it in one piece.
    pub const fn in_memory(caps: OffloadCaps) -> QueueTraits {
        let probe = Probe::Memory;
        QueueTraits { caps, probe, retry: None, takes: Ends::NONE }
    }
}

/// The cost of polling an idle queue for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// A memory read: worth polling for a while.
    Memory,
    /// A system call: it is better to wait for the descriptor.
    SystemCall,
}

/// Why a queue can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum QueueDown {
    /// The peer broke the protocol. The kind of port defines the fault; the message contains the
    /// numbers that prove it. The fault closes the peer's vif, is logged once and is written to the
    /// vif's XenStore `error` node.
    #[error(transparent)]
    Peer(Box<dyn Error + Send + Sync>),
    /// The host refused one of our requests.
    #[error(transparent)]
    Host(#[from] io::Error),
}

impl QueueDown {
    /// A peer fault that closes a queue. Allocates, once in the life of a queue.
    #[cold]
    pub fn peer(fault: impl Error + Send + Sync + 'static) -> QueueDown {
        QueueDown::Peer(Box::new(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_taken_what_it_makes_room_for() {
        for start in [0_u16, 100, 65_500] {
            let after = |filled: u16, available| {
                PeerProgress::new(start.wrapping_add(filled), available, 256)
            };
            let mark = after(10, 246).mark();
            assert!(!after(10, 246).has_taken(mark), "none of its slots is available again");
            assert!(!after(10, 255).has_taken(mark));
            assert!(after(10, 256).has_taken(mark));
            assert!(!after(200, 65).has_taken(mark), "it may still have one of the first");
            assert!(after(200, 66).has_taken(mark));
            assert!(after(266, 0).has_taken(mark), "its ring has no room for those and the first");
            assert!(after(30_000, 0).has_taken(mark));
        }
    }

    #[test]
    fn a_peer_that_makes_more_available_than_there_are_has_taken_all() {
        let progress = PeerProgress::new(7, 300, 256);
        assert!(progress.has_taken(progress.mark()));
    }
}
