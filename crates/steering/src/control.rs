//! The messages by which a frontend sets how frames to it are hashed and steered, from netif's
//! control ring: requests in, responses out.
//!
//! A message names a page of the frontend for what does not fit into it, a key or a part of the
//! mapping. The caller reads it: nothing here does I/O.

use core::fmt;

use arrayvec::ArrayVec;
use ringway_wire::GrantRef;
use ringway_wire::netif::{
    CTRL_STATUS_BUFFER_OVERFLOW, CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_NOT_SUPPORTED,
    CTRL_STATUS_SUCCESS, CTRL_TYPE_GET_HASH_FLAGS, CTRL_TYPE_GET_HASH_MAPPING_SIZE,
    CTRL_TYPE_SET_HASH_ALGORITHM, CTRL_TYPE_SET_HASH_FLAGS, CTRL_TYPE_SET_HASH_KEY,
    CTRL_TYPE_SET_HASH_MAPPING, CTRL_TYPE_SET_HASH_MAPPING_SIZE, CtrlRequest, CtrlResponse,
    HASH_ALGORITHM_NONE, HASH_ALGORITHM_TOEPLITZ,
};

use crate::toeplitz::{
    HASH_TYPES_KNOWN, KEY_LEN_MAX, MAPPING_LEN_MAX, SettingRefused, ToeplitzSteering,
};

/// What a frontend has set by its messages.
///
/// Its text, as of [`Display`](fmt::Display), is for a backend that is started again:
/// [`from_text`](HashControl::from_text) reads it.
#[derive(Debug, Clone, Default)]
pub struct HashControl {
    algorithm: Algorithm,
    /// Kept while no algorithm is selected, as by Linux' backend.
    steering: ToeplitzSteering,
    /// The key of `steering`.
    key: ArrayVec<u8, KEY_LEN_MAX>,
}

/// Bytes in the longest text of settings: two numbers, each byte of the key and each queue of the
/// mapping, with what separates them.
pub const TEXT_LEN_MAX: usize = 16 + 2 * KEY_LEN_MAX + 6 * MAPPING_LEN_MAX; // not a limit: our text

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Algorithm {
    #[default]
    None,
    Toeplitz,
}

/// What a frontend's page did not allow: its bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl HashControl {
    /// What frames are steered by; `None` if the backend may steer as it likes.
    pub fn steering(&self) -> Option<&ToeplitzSteering> {
        match self.algorithm {
            Algorithm::None => None,
            Algorithm::Toeplitz => Some(&self.steering),
        }
    }

    /// The key that frames are hashed with; octets that it lacks are zero.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Reads settings from their text, which may be followed by white space. A mapping may name
    /// queues that do not exist now: [`ToeplitzSteering::queue_of`] returns none of those.
    ///
    /// Returns `None` if it is damaged.
    pub fn from_text(text: &str) -> Option<HashControl> {
        let mut words = text.split_ascii_whitespace();
        let mut control = HashControl::default();
        control.set_algorithm(words.next()?.parse().ok()?).ok()?;
        control.steering.set_types(words.next()?.parse().ok()?).ok()?;
        let digits = words.next()?.strip_prefix("key=")?.as_bytes();
        for pair in digits.chunks(2) {
            let pair = core::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            control.key.try_push(u8::from_str_radix(pair, 16).ok()?).ok()?;
        }
        control.steering.set_key(&control.key).ok()?;
        let entries = words.next()?.strip_prefix("mapping=")?;
        let mut mapping = ArrayVec::<u32, MAPPING_LEN_MAX>::new();
        for entry in entries.split(',').filter(|entry| !entry.is_empty()) {
            mapping.try_push(entry.parse::<u16>().ok()?.into()).ok()?;
        }
        control.steering.set_mapping_size(u32::try_from(mapping.len()).ok()?).ok()?;
        control.steering.set_mapping(0, &mapping, u16::MAX).ok()?;
        words.next().is_none().then_some(control)
    }

    /// Carries out one message of a frontend with `queues` connected queues. `read` fills a buffer
    /// from the beginning of a page of the frontend.
    ///
    /// A message that is refused changes nothing.
    pub fn handle(
        &mut self,
        request: CtrlRequest,
        queues: u16,
        read: impl FnOnce(GrantRef, &mut [u8]) -> Result<(), Unreadable>,
    ) -> CtrlResponse {
        //= netif.h:ctrl-response
        let CtrlRequest { id, kind, data } = request;
        let outcome = match kind {
            CTRL_TYPE_SET_HASH_ALGORITHM => self.set_algorithm(data[0]),
            CTRL_TYPE_GET_HASH_FLAGS => self.types(),
            CTRL_TYPE_SET_HASH_FLAGS => self.set_types(data[0]),
            CTRL_TYPE_SET_HASH_KEY => self.set_key(data, read),
            CTRL_TYPE_GET_HASH_MAPPING_SIZE => Ok(mapping_entries_max()),
            CTRL_TYPE_SET_HASH_MAPPING_SIZE => done(self.steering.set_mapping_size(data[0])),
            CTRL_TYPE_SET_HASH_MAPPING => self.set_mapping(data, queues, read),
            _ => Err(CTRL_STATUS_NOT_SUPPORTED),
        };
        match outcome {
            Ok(data) => CtrlResponse { id, kind, status: CTRL_STATUS_SUCCESS, data },
            Err(status) => CtrlResponse { id, kind, status, data: 0 },
        }
    }

    fn set_algorithm(&mut self, algorithm: u32) -> Outcome {
        //= netif.h:hash-algorithm
        self.algorithm = match u8::try_from(algorithm) {
            Ok(HASH_ALGORITHM_NONE) => Algorithm::None,
            Ok(HASH_ALGORITHM_TOEPLITZ) => Algorithm::Toeplitz,
            _ => return Err(CTRL_STATUS_INVALID_PARAMETER),
        };
        Ok(0)
    }

    fn types(&self) -> Outcome {
        //= netif.h:hash-flags
        match self.algorithm {
            Algorithm::None => Err(CTRL_STATUS_NOT_SUPPORTED),
            Algorithm::Toeplitz => Ok(HASH_TYPES_KNOWN),
        }
    }

    fn set_types(&mut self, mask: u32) -> Outcome {
        //= netif.h:hash-flags
        match self.algorithm {
            Algorithm::None => Err(CTRL_STATUS_INVALID_PARAMETER),
            Algorithm::Toeplitz => done(self.steering.set_types(mask)),
        }
    }

    fn set_key(
        &mut self,
        [gref, len, _]: [u32; 3],
        read: impl FnOnce(GrantRef, &mut [u8]) -> Result<(), Unreadable>,
    ) -> Outcome {
        //= netif.h:hash-key
        let mut bytes = [0; KEY_LEN_MAX];
        let key = usize::try_from(len).ok().and_then(|len| bytes.get_mut(..len));
        let key = key.ok_or(CTRL_STATUS_BUFFER_OVERFLOW)?;
        if !key.is_empty() {
            read(GrantRef(gref), key).map_err(|Unreadable| CTRL_STATUS_INVALID_PARAMETER)?;
        }
        done(self.steering.set_key(key))?;
        self.key.clear();
        self.key.extend(key.iter().copied());
        Ok(0)
    }

    fn set_mapping(
        &mut self,
        [gref, count, offset]: [u32; 3],
        queues: u16,
        read: impl FnOnce(GrantRef, &mut [u8]) -> Result<(), Unreadable>,
    ) -> Outcome {
        //= netif.h:hash-mapping
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut bytes = [0; MAPPING_LEN_MAX * ENTRY_LEN];
        let mut entries = [0; MAPPING_LEN_MAX];
        let entries = entries.get_mut(..count).ok_or(CTRL_STATUS_BUFFER_OVERFLOW)?;
        // Judged before the page is read, too, as the size decides how much of it is.
        self.steering.check_part(offset, count).map_err(status_of)?;
        let bytes = &mut bytes[..count * ENTRY_LEN];
        if !bytes.is_empty() {
            read(GrantRef(gref), bytes).map_err(|Unreadable| CTRL_STATUS_INVALID_PARAMETER)?;
        }
        for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(ENTRY_LEN)) {
            *entry = bytes.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX);
        }
        done(self.steering.set_mapping(offset, entries, queues))
    }
}

impl fmt::Display for HashControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let algorithm = match self.algorithm {
            Algorithm::None => HASH_ALGORITHM_NONE,
            Algorithm::Toeplitz => HASH_ALGORITHM_TOEPLITZ,
        };
        write!(f, "{algorithm} {} key=", self.steering.types())?;
        self.key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(" mapping=")?;
        let mut separator = "";
        self.steering.mapping().iter().try_for_each(|queue| {
            write!(f, "{separator}{queue}")?;
            separator = ",";
            Ok(())
        })
    }
}

/// The data of a response, or its status.
type Outcome = Result<u32, u32>;

fn done(outcome: Result<(), SettingRefused>) -> Outcome {
    outcome.map(|()| 0).map_err(status_of)
}

fn status_of(refused: SettingRefused) -> u32 {
    match refused {
        SettingRefused::KeyTooLong { .. } => CTRL_STATUS_BUFFER_OVERFLOW,
        SettingRefused::UnknownType { .. }
        | SettingRefused::MappingTooLong { .. }
        | SettingRefused::OutsideMapping { .. }
        | SettingRefused::NoSuchQueue { .. } => CTRL_STATUS_INVALID_PARAMETER,
    }
}

/// Bytes of one entry of a mapping in the frontend's page.
const ENTRY_LEN: usize = size_of::<u32>();

//= netif.h:hash-mapping-size
fn mapping_entries_max() -> u32 {
    u32::try_from(MAPPING_LEN_MAX).unwrap_or(0)
}
