//! The Toeplitz hash and its mapping table, as a frontend sets them over netif's control ring.
//!
//! The hash is a matrix product over bits: input bit `i` contributes the 32 bits of the key that
//! start at bit `i`. A table computed from the key holds the contribution of each half byte of the
//! input. It takes 4.5 KiB and fits into the first-level cache; a table per whole byte would take
//! 36 KiB.
//!
//! Unlike the default hash, it is symmetric only if the key is.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use ringway_datapath::headers::{Headers, IpVersion, Transport, parse};
use ringway_wire::netif::{HASH_TYPE_IPV4, HASH_TYPE_IPV4_TCP, HASH_TYPE_IPV6, HASH_TYPE_IPV6_TCP};

use crate::{FlowTuple, QueueIndex};

/// Bytes in the longest key (netif.h: a longer one is refused).
pub const KEY_LEN_MAX: usize = 40;
/// Entries in the longest mapping table, the number that Linux offers.
pub const MAPPING_LEN_MAX: usize = 128;

/// Which fields of a packet were hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashType {
    /// The addresses of IPv4.
    Ipv4,
    /// Addresses and ports of TCP over IPv4.
    Ipv4Tcp,
    /// The addresses of IPv6.
    Ipv6,
    /// Addresses and ports of TCP over IPv6.
    Ipv6Tcp,
}

impl HashType {
    /// All of them, in the order of their bits.
    pub const ALL: [HashType; 4] =
        [HashType::Ipv4, HashType::Ipv4Tcp, HashType::Ipv6, HashType::Ipv6Tcp];

    /// Its number in netif.
    pub const fn number(self) -> u8 {
        match self {
            HashType::Ipv4 => HASH_TYPE_IPV4,
            HashType::Ipv4Tcp => HASH_TYPE_IPV4_TCP,
            HashType::Ipv6 => HASH_TYPE_IPV6,
            HashType::Ipv6Tcp => HASH_TYPE_IPV6_TCP,
        }
    }

    /// Its bit in the mask of types.
    pub const fn mask(self) -> u32 {
        1 << self.number()
    }
}

/// The mask of all known types: the response to "get hash flags".
pub const HASH_TYPES_KNOWN: u32 = 0b1111;

/// Why a setting was refused; the previous setting stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettingRefused {
    /// The key is too long.
    #[error("a key of {len} bytes, the longest has {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// An unknown type.
    #[error("hash types {mask:#x}, known are {HASH_TYPES_KNOWN:#x}")]
    UnknownType {
        /// The mask as requested.
        mask: u32,
    },
    /// The mapping table is too long.
    #[error("a mapping of {len} entries, the longest has {MAPPING_LEN_MAX}")]
    MappingTooLong {
        /// Entries requested.
        len: u32,
    },
    /// Entries beyond the table's current size.
    #[error("{count} entries at {offset} of a mapping that has {len}")]
    OutsideMapping {
        /// Index of the first.
        offset: u32,
        /// How many.
        count: usize,
        /// The size.
        len: usize,
    },
    /// An entry that names a queue that does not exist.
    #[error("a mapping to queue {queue}, there are {queues}")]
    NoSuchQueue {
        /// The entry.
        queue: u32,
        /// The number of queues.
        queues: u16,
    },
}

/// A Toeplitz hash with its key.
#[derive(Debug, Clone)]
pub struct Toeplitz {
    /// By input byte, then its upper and lower half, then the half's value.
    table: [[[u32; 16]; 2]; INPUT_LEN_MAX],
}

impl Toeplitz {
    /// The hash with `key`; a shorter key is padded with zeros.
    ///
    /// # Errors
    /// [`SettingRefused::KeyTooLong`].
    pub fn new(key: &[u8]) -> Result<Toeplitz, SettingRefused> {
        // Read in words of 64 bits, so that 32 bits can start at any bit of a byte.
        let mut padded = [0; KEY_LEN_MAX + 8];
        match padded.get_mut(..key.len()) {
            Some(start) if key.len() <= KEY_LEN_MAX => start.copy_from_slice(key),
            _ => return Err(SettingRefused::KeyTooLong { len: key.len() }),
        }
        let mut table = [[[0; 16]; 2]; INPUT_LEN_MAX];
        for (byte, word) in table.iter_mut().zip(padded.windows(8)) {
            let word = word.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            for (half, sums) in byte.iter_mut().enumerate() {
                for (value, sum) in sums.iter_mut().enumerate() {
                    for bit in (0..4).filter(|bit| value & (0b1000 >> bit) != 0) {
                        let window = (word << (half * 4 + bit)) >> 32;
                        *sum ^= u32::try_from(window).unwrap_or_default();
                    }
                }
            }
        }
        Ok(Toeplitz { table })
    }

    /// The hash of the first 36 bytes of `input`: no type has more.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.hash_at(0, input)
    }

    /// The contribution of `input` after `offset` other bytes.
    #[inline]
    fn hash_at(&self, offset: usize, input: &[u8]) -> u32 {
        let tables = self.table.get(offset..).unwrap_or_default();
        let halves = input.iter().zip(tables).map(|(byte, [upper, lower])| {
            upper[usize::from(byte >> 4)] ^ lower[usize::from(byte & 0x0f)]
        });
        halves.fold(0, |hash, sum| hash ^ sum)
    }
}

/// All settings of a frontend for one vif: key, types, mapping.
///
/// The control plane changes a copy and gives it to the workers as a whole, so no frame is steered
/// by half a change.
#[derive(Debug, Clone)]
pub struct ToeplitzSteering {
    toeplitz: Toeplitz,
    types: u32,
    mapping: ArrayVec<u16, MAPPING_LEN_MAX>,
}

impl Default for ToeplitzSteering {
    fn default() -> Self {
        ToeplitzSteering::new()
    }
}

impl ToeplitzSteering {
    /// An all-zero key, no types, no mapping: the state after the algorithm was chosen.
    pub fn new() -> ToeplitzSteering {
        let toeplitz = Toeplitz { table: [[[0; 16]; 2]; INPUT_LEN_MAX] };
        ToeplitzSteering { toeplitz, types: 0, mapping: ArrayVec::new() }
    }

    /// Replaces the key; a shorter one is padded with zeros (netif.h, "set hash key").
    ///
    /// # Errors
    /// [`SettingRefused::KeyTooLong`].
    pub fn set_key(&mut self, key: &[u8]) -> Result<(), SettingRefused> {
        self.toeplitz = Toeplitz::new(key)?;
        Ok(())
    }

    /// Selects the types that may be hashed, as a mask of [`HashType::mask`] (netif.h, "set hash
    /// flags").
    ///
    /// # Errors
    /// [`SettingRefused::UnknownType`].
    pub fn set_types(&mut self, mask: u32) -> Result<(), SettingRefused> {
        if mask & !HASH_TYPES_KNOWN != 0 {
            return Err(SettingRefused::UnknownType { mask });
        }
        self.types = mask;
        Ok(())
    }

    /// The mask of types.
    pub fn types(&self) -> u32 {
        self.types
    }

    /// The queue of each hash, modulo the length; empty if there is no mapping.
    pub fn mapping(&self) -> &[u16] {
        &self.mapping
    }

    /// Creates a mapping of `len` zeros; 0 removes it (netif.h, "set hash mapping size").
    ///
    /// # Errors
    /// [`SettingRefused::MappingTooLong`].
    pub fn set_mapping_size(&mut self, len: u32) -> Result<(), SettingRefused> {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        if size > MAPPING_LEN_MAX {
            return Err(SettingRefused::MappingTooLong { len });
        }
        self.mapping = core::iter::repeat_n(0, size).collect();
        Ok(())
    }

    /// Whether the mapping has this part.
    ///
    /// # Errors
    /// [`SettingRefused::OutsideMapping`].
    pub fn check_part(&self, offset: u32, count: usize) -> Result<(), SettingRefused> {
        let len = self.mapping.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        match start.checked_add(count) {
            Some(end) if end <= len => Ok(()),
            _ => Err(SettingRefused::OutsideMapping { offset, count, len }),
        }
    }

    /// Writes a part of the mapping, for a vif of `queues` queues: all or nothing (netif.h, "set
    /// hash mapping").
    ///
    /// # Errors
    /// [`SettingRefused::OutsideMapping`] and [`SettingRefused::NoSuchQueue`].
    pub fn set_mapping(
        &mut self,
        offset: u32,
        entries: &[u32],
        queues: u16,
    ) -> Result<(), SettingRefused> {
        self.check_part(offset, entries.len())?;
        if let Some(&queue) = entries.iter().find(|&&queue| queue >= u32::from(queues)) {
            return Err(SettingRefused::NoSuchQueue { queue, queues });
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (slot, &queue) in self.mapping.iter_mut().skip(start).zip(entries) {
            *slot = u16::try_from(queue).or(Err(SettingRefused::NoSuchQueue { queue, queues }))?;
        }
        Ok(())
    }

    /// The hash of a frame by the most specific enabled type, and that type. `None` if no enabled
    /// type fits. UDP and fragments are hashed by addresses only (netif.h has no type for UDP).
    #[inline]
    pub fn flow_hash(&self, frame: &[u8]) -> Option<(u32, HashType)> {
        self.flow_hash_parsed(frame, &parse(frame)?)
    }

    /// [`flow_hash`](ToeplitzSteering::flow_hash) of a frame whose headers are known.
    #[inline]
    pub fn flow_hash_parsed(&self, frame: &[u8], headers: &Headers) -> Option<(u32, HashType)> {
        let ports = match headers.transport {
            Some(Transport::Tcp) => headers.ports(frame),
            _ => None,
        };
        self.hash_fields(headers.version, headers.addresses(frame), ports)
    }

    /// The hash of the addresses and ports of a flow, without a frame, and its type.
    pub fn tuple_hash(&self, tuple: &FlowTuple) -> Option<(u32, HashType)> {
        let mut addresses = ArrayVec::<u8, 32>::new();
        let mut push = |end: SocketAddr| match end.ip().to_canonical() {
            IpAddr::V4(address) => addresses.extend(address.octets()),
            IpAddr::V6(address) => addresses.extend(address.octets()),
        };
        push(tuple.src);
        push(tuple.dst);
        let version = if addresses.len() == 8 { IpVersion::V4 } else { IpVersion::V6 };
        let ([s0, s1], [d0, d1]) = (tuple.src.port().to_be_bytes(), tuple.dst.port().to_be_bytes());
        let ports = (tuple.transport == Transport::Tcp).then_some([s0, s1, d0, d1]);
        self.hash_fields(version, &addresses, ports)
    }

    /// The queue of a frame with `hash` on a vif with `queues` queues; queue 0 without a hash. The
    /// result is less than `queues`, or 0 if that is 0, even if the mapping was set when there were
    /// more queues.
    #[inline]
    pub fn queue_of(&self, hash: Option<u32>, queues: u16) -> QueueIndex {
        let Some(hash) = hash else { return QueueIndex::FIRST };
        let modulo = |by: usize| {
            usize::try_from(hash).ok().and_then(|hash| hash.checked_rem(by)).unwrap_or_default()
        };
        let queue = match self.mapping.get(modulo(self.mapping.len())) {
            Some(&queue) => queue.checked_rem(queues).unwrap_or_default(),
            None => u16::try_from(modulo(usize::from(queues))).unwrap_or_default(),
        };
        QueueIndex(queue)
    }

    #[inline]
    fn hash_fields(
        &self,
        version: IpVersion,
        addresses: &[u8],
        ports: Option<[u8; 4]>,
    ) -> Option<(u32, HashType)> {
        //= netif.h:hash-input
        let (with_ports, without) = match version {
            IpVersion::V4 => (HashType::Ipv4Tcp, HashType::Ipv4),
            IpVersion::V6 => (HashType::Ipv6Tcp, HashType::Ipv6),
        };
        let is_enabled = |wanted: HashType| self.types & wanted.mask() != 0;
        match ports {
            Some(ports) if is_enabled(with_ports) => {
                let rest = self.toeplitz.hash_at(addresses.len(), &ports);
                Some((self.toeplitz.hash(addresses) ^ rest, with_ports))
            }
            _ => is_enabled(without).then(|| (self.toeplitz.hash(addresses), without)),
        }
    }
}

/// Addresses and ports of IPv6: with the 32 bits that the last input bit selects, 40 bytes of key.
const INPUT_LEN_MAX: usize = 36; // not a limit: the longest addresses

const _: () = assert!(INPUT_LEN_MAX + 4 == KEY_LEN_MAX && HashType::Ipv6Tcp.mask() == 1 << 3);
