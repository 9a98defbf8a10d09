//! The messages by which a frontend has its backend hash and steer as it wishes.

use arrayvec::ArrayVec;
use ringway_wire::netif::{
    CTRL_STATUS_SUCCESS, CTRL_TYPE_SET_HASH_ALGORITHM, CTRL_TYPE_SET_HASH_FLAGS,
    CTRL_TYPE_SET_HASH_KEY, CTRL_TYPE_SET_HASH_MAPPING, CTRL_TYPE_SET_HASH_MAPPING_SIZE,
    CtrlRequest, CtrlResponse, HASH_ALGORITHM_TOEPLITZ,
};
use ringway_wire::{GrantRef, PAGE_SIZE};

use ringway_steering::toeplitz::{KEY_LEN_MAX, MAPPING_LEN_MAX};

/// How a frontend wishes to receive: by a Toeplitz hash.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HashWish {
    /// The key; octets that it lacks are zero.
    pub key: ArrayVec<u8, KEY_LEN_MAX>,
    /// The types of hash, as a mask of [`HashType::mask`].
    ///
    /// [`HashType::mask`]: ringway_steering::toeplitz::HashType::mask
    pub types: u32,
    /// The queue of each hash, modulo the length; empty for the remainder by the number of queues.
    pub mapping: ArrayVec<u16, MAPPING_LEN_MAX>,
}

/// The messages for a wish, one after the other, in the order of Windows' driver (`win-xenvif`):
/// the types come last, so that no frame is hashed by half of a wish.
#[derive(Debug, Clone)]
pub(crate) struct HashSetup {
    wish: HashWish,
    step: usize,
}

/// The backend refused a message of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the backend refused control message {kind} with status {status}")]
pub struct WishRefused {
    /// The type of the message.
    pub kind: u16,
    /// `CTRL_STATUS_*`.
    pub status: u32,
}

impl HashSetup {
    /// The messages for `wish`, of which none was sent.
    pub(crate) fn new(wish: HashWish) -> HashSetup {
        HashSetup { wish, step: 0 }
    }

    /// The next message, with this id, and the bytes that have to be in the page that it names;
    /// `None` if the backend has all.
    pub(crate) fn next(&self, id: u16, page: GrantRef) -> Option<(CtrlRequest, PageBytes)> {
        let kind = *MESSAGES.get(self.step)?;
        let mut bytes = PageBytes::new();
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mapping_len = count(self.wish.mapping.len());
        let data = match kind {
            CTRL_TYPE_SET_HASH_ALGORITHM => [HASH_ALGORITHM_TOEPLITZ.into(), 0, 0],
            CTRL_TYPE_SET_HASH_MAPPING_SIZE => [mapping_len, 0, 0],
            CTRL_TYPE_SET_HASH_MAPPING => {
                let entries = self.wish.mapping.iter();
                bytes.extend(entries.flat_map(|queue| u32::from(*queue).to_le_bytes()));
                [page.0, mapping_len, 0]
            }
            CTRL_TYPE_SET_HASH_KEY => {
                bytes.extend(self.wish.key.iter().copied());
                [page.0, count(self.wish.key.len()), 0]
            }
            _ => [self.wish.types, 0, 0],
        };
        Some((CtrlRequest { id, kind, data }, bytes))
    }

    /// Takes the response to the message that [`next`](HashSetup::next) returned.
    ///
    /// # Errors
    /// [`WishRefused`]: the messages after it make no sense any more.
    pub(crate) fn respond(&mut self, response: CtrlResponse) -> Result<(), WishRefused> {
        if response.status != CTRL_STATUS_SUCCESS {
            return Err(WishRefused { kind: response.kind, status: response.status });
        }
        self.step += 1;
        Ok(())
    }
}

/// What a message needs of its page.
pub(crate) type PageBytes = ArrayVec<u8, PAGE_SIZE>;

const MESSAGES: [u16; 5] = [
    CTRL_TYPE_SET_HASH_ALGORITHM,
    CTRL_TYPE_SET_HASH_MAPPING_SIZE,
    CTRL_TYPE_SET_HASH_MAPPING,
    CTRL_TYPE_SET_HASH_KEY,
    CTRL_TYPE_SET_HASH_FLAGS,
];
