//! The vhost-user protocol: how a virtual machine monitor (the front-end) hands the rings of its
//! guest to another process (the back-end), over a Unix socket.
//!
//! A message is a [`Header`] followed by `size` bytes; file descriptors travel beside its first
//! byte. Integers are in the host's byte order: the protocol never leaves a machine. Names and
//! numbers are those of QEMU's `docs/interop/vhost-user.rst`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::operations::operations;

/// The header of every message in both directions (`VhostUserHeader`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// An [`Op`]; unchecked when it comes from a peer. A reply has the number of its request.
    pub request: u32,
    /// [`VERSION`], and `VHOST_USER_*_MASK` bits.
    pub flags: u32,
    /// Bytes that follow; at most [`PAYLOAD_MAX`] in messages that this module knows.
    pub size: u32,
}

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The version of the protocol, in the bits of [`VERSION_MASK`].
pub const VERSION: u32 = 1;
/// The bits of [`Header::flags`] that hold the version.
pub const VERSION_MASK: u32 = 3;
/// The message is a reply.
pub const REPLY_MASK: u32 = 1 << 2;
/// The sender wants a [`u64`] in reply even where the request has none: zero for success.
pub const NEED_REPLY_MASK: u32 = 1 << 3;
/// The most bytes that may follow a header: a memory table with all its regions.
pub const PAYLOAD_MAX: usize = size_of::<MemoryHeader>() + REGIONS_MAX * size_of::<MemoryRegion>();
/// Regions in one memory table, and thus descriptors in one message
/// (`VHOST_MEMORY_BASELINE_NREGIONS`).
pub const REGIONS_MAX: usize = 8;
/// The most regions that QEMU uses (`VHOST_USER_MAX_RAM_SLOTS`, less its own): the number that a
/// back-end offers if it takes regions one by one.
pub const MEM_SLOTS_MAX: u64 = 509;

/// Defines the requests, and their names.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $number:literal $spelling:literal,)*) => {
        operations! {
            /// A front-end's requests (`VHOST_USER_*`), which [`Header::request`] has.
            pub enum Op { $($(#[$doc])* $name = $number,)* }
        }

        impl Op {
            /// Its name in the specification, without `VHOST_USER_`.
            pub const fn name(self) -> &'static str {
                match self { $(Op::$name => $spelling,)* }
            }
        }
    };
}

requests! {
    /// The virtio features of the back-end; a [`u64`] in reply.
    GetFeatures = 1 "GET_FEATURES",
    /// The negotiated virtio features: a [`u64`].
    SetFeatures = 2 "SET_FEATURES",
    /// The front-end is the owner of the session.
    SetOwner = 3 "SET_OWNER",
    /// Deprecated, without effect.
    ResetOwner = 4 "RESET_OWNER",
    /// All memory: a [`MemoryHeader`], its regions, and a descriptor for each.
    SetMemTable = 5 "SET_MEM_TABLE",
    /// The dirty log: a [`LogArea`] and its descriptor. Always has a reply.
    SetLogBase = 6 "SET_LOG_BASE",
    /// A descriptor that is signalled when the log changes.
    SetLogFd = 7 "SET_LOG_FD",
    /// The size of a ring: a [`VringState`].
    SetVringNum = 8 "SET_VRING_NUM",
    /// Where a ring is: a [`VringAddr`].
    SetVringAddr = 9 "SET_VRING_ADDR",
    /// The available index to continue from: a [`VringState`].
    SetVringBase = 10 "SET_VRING_BASE",
    /// Stop a ring: a [`VringState`]; the reply has its available index.
    GetVringBase = 11 "GET_VRING_BASE",
    /// The descriptor by which the guest notifies: a [`u64`] with the ring.
    SetVringKick = 12 "SET_VRING_KICK",
    /// The descriptor by which the guest is notified: a [`u64`] with the ring.
    SetVringCall = 13 "SET_VRING_CALL",
    /// The descriptor by which errors are reported: a [`u64`] with the ring.
    SetVringErr = 14 "SET_VRING_ERR",
    /// The protocol features of the back-end; a [`u64`] in reply.
    GetProtocolFeatures = 15 "GET_PROTOCOL_FEATURES",
    /// The negotiated protocol features: a [`u64`].
    SetProtocolFeatures = 16 "SET_PROTOCOL_FEATURES",
    /// The most queues: a [`u64`] in reply; pairs of rings for a network device.
    GetQueueNum = 17 "GET_QUEUE_NUM",
    /// Whether a ring is used: a [`VringState`] with 0 or 1.
    SetVringEnable = 18 "SET_VRING_ENABLE",
    /// Announce a guest to the network: its Ethernet address in the low 6 bytes of a [`u64`].
    SendRarp = 19 "SEND_RARP",
    /// The MTU of the guest: a [`u64`].
    NetSetMtu = 20 "NET_SET_MTU",
    /// A channel for requests of the back-end.
    SetBackendReqFd = 21 "SET_BACKEND_REQ_FD",
    /// Translations of an IOMMU.
    IotlbMsg = 22 "IOTLB_MSG",
    /// The byte order of a ring.
    SetVringEndian = 23 "SET_VRING_ENDIAN",
    /// Read configuration space.
    GetConfig = 24 "GET_CONFIG",
    /// Write configuration space.
    SetConfig = 25 "SET_CONFIG",
    /// For cryptographic devices.
    CreateCryptoSession = 26 "CREATE_CRYPTO_SESSION",
    /// For cryptographic devices.
    CloseCryptoSession = 27 "CLOSE_CRYPTO_SESSION",
    /// Memory will come after the guest runs.
    PostcopyAdvise = 28 "POSTCOPY_ADVISE",
    /// Memory arrives after the guest runs.
    PostcopyListen = 29 "POSTCOPY_LISTEN",
    /// All memory has arrived.
    PostcopyEnd = 30 "POSTCOPY_END",
    /// Make an inflight area: an [`Inflight`]; the reply adds a descriptor.
    GetInflightFd = 31 "GET_INFLIGHT_FD",
    /// Use an inflight area: an [`Inflight`] with its descriptor.
    SetInflightFd = 32 "SET_INFLIGHT_FD",
    /// For graphics.
    GpuSetSocket = 33 "GPU_SET_SOCKET",
    /// Stop all rings and return to the initial state.
    ResetDevice = 34 "RESET_DEVICE",
    /// A notification as a message.
    VringKick = 35 "VRING_KICK",
    /// The most regions: a [`u64`] in reply.
    GetMaxMemSlots = 36 "GET_MAX_MEM_SLOTS",
    /// Add a region: a [`SingleRegion`] with its descriptor.
    AddMemReg = 37 "ADD_MEM_REG",
    /// Remove a region: a [`SingleRegion`].
    RemMemReg = 38 "REM_MEM_REG",
    /// The device status of virtio: a [`u64`].
    SetStatus = 39 "SET_STATUS",
    /// The device status of virtio, in reply.
    GetStatus = 40 "GET_STATUS",
    /// For shared buffers.
    GetSharedObject = 41 "GET_SHARED_OBJECT",
    /// A descriptor for the state of the device.
    SetDeviceStateFd = 42 "SET_DEVICE_STATE_FD",
    /// Whether the transfer of the state succeeded.
    CheckDeviceState = 43 "CHECK_DEVICE_STATE",
}

/// A number for a ring (`vhost_vring_state`): its size, an index, or whether it is used.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VringState {
    /// The ring.
    pub index: u32,
    /// The number.
    pub num: u32,
}

/// Where a ring is, in the front-end's own address space (`vhost_vring_addr`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VringAddr {
    /// The ring.
    pub index: u32,
    /// [`VHOST_VRING_F_LOG`].
    pub flags: u32,
    /// The descriptor table.
    pub descriptor: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring's guest address, under which writes to it are logged.
    pub log: u64,
}

/// Writes to the used ring are to be logged.
pub const VHOST_VRING_F_LOG: u32 = 1;
/// The ring number in the [`u64`] of `SET_VRING_KICK`, `CALL` and `ERR`.
pub const VRING_INDEX_MASK: u64 = 0xff;
/// The bit of that [`u64`] that says that there is no descriptor.
pub const VRING_NOFD_MASK: u64 = 1 << 8;

/// The header of the regions of a memory table.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MemoryHeader {
    /// How many regions follow; at most [`REGIONS_MAX`].
    pub count: u32,
    /// Unused.
    pub padding: u32,
}

/// A region of the guest's memory, and its location in a file.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MemoryRegion {
    /// Its first address as the guest sees it.
    pub guest_address: u64,
    /// Its bytes.
    pub size: u64,
    /// Its first address in the front-end's address space, which ring addresses refer to.
    pub user_address: u64,
    /// Its byte offset in the file.
    pub mmap_offset: u64,
}

/// A region that is added or removed.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SingleRegion {
    /// Unused.
    pub padding: u64,
    /// The region.
    pub region: MemoryRegion,
}

/// The dirty log: a bit for each page of 4096 bytes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LogArea {
    /// Its bytes.
    pub size: u64,
    /// Its byte offset in the file.
    pub offset: u64,
}

/// An area that records chains in flight.
///
/// The specification ends the structure after `queue_size`. QEMU, DPDK and rust-vmm send and expect
/// the four bytes of padding that C adds.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Inflight {
    /// Its bytes.
    pub mmap_size: u64,
    /// Its byte offset in the file.
    pub mmap_offset: u64,
    /// Rings.
    pub num_queues: u16,
    /// Entries of each.
    pub queue_size: u16,
    /// Unused.
    pub padding: u32,
}

/// Bytes of an [`Inflight`] without its padding.
pub const INFLIGHT_LEN_MIN: usize = size_of::<Inflight>() - size_of::<u32>();

/// Byte offsets in a split queue's part of an inflight area (`QueueRegionSplit`).
pub mod inflight_split {
    /// Features, 64 bits: no bit has a meaning.
    pub const FEATURES: usize = 0;
    /// 1, or 0 if nothing was recorded yet.
    pub const VERSION: usize = 8;
    /// The number of descriptors that there is room for.
    pub const DESC_NUM: usize = 10;
    /// The chain that was used last.
    pub const LAST_BATCH_HEAD: usize = 12;
    /// The used index as of the last batch whose marks are cleared.
    pub const USED_IDX: usize = 14;
    /// The first descriptor (`DescStateSplit`).
    pub const DESC: usize = 16;
    /// Bytes of each.
    pub const DESC_LEN: usize = 16;
    /// In a descriptor: 1 while the chain that begins there is in flight; 8 bits.
    pub const INFLIGHT: usize = 0;
    /// In a descriptor: the chain that was used before this one.
    pub const NEXT: usize = 6;
    /// In a descriptor: the chain's number in the order of taking; 64 bits.
    pub const COUNTER: usize = 8;

    /// Bytes of the part of a queue with `size` descriptors.
    pub const fn len(size: usize) -> usize {
        (DESC + DESC_LEN * size).next_multiple_of(super::INFLIGHT_ALIGNMENT)
    }
}

/// Byte offsets in a packed queue's part of an inflight area (`QueueRegionPacked`).
pub mod inflight_packed {
    /// Features, 64 bits: no bit has a meaning.
    pub const FEATURES: usize = 0;
    /// 1, or 0 if nothing was recorded yet.
    pub const VERSION: usize = 8;
    /// The number of descriptors that there is room for.
    pub const DESC_NUM: usize = 10;
    /// The first free descriptor.
    pub const FREE_HEAD: usize = 12;
    /// The first free descriptor before the last batch was used.
    pub const OLD_FREE_HEAD: usize = 14;
    /// The position of the next used descriptor.
    pub const USED_IDX: usize = 16;
    /// That position before the last batch.
    pub const OLD_USED_IDX: usize = 18;
    /// The wrap counter at `USED_IDX`; 8 bits.
    pub const USED_WRAP: usize = 20;
    /// The wrap counter at `OLD_USED_IDX`; 8 bits.
    pub const OLD_USED_WRAP: usize = 21;
    /// The first descriptor (`DescStatePacked`).
    pub const DESC: usize = 32;
    /// Bytes of each.
    pub const DESC_LEN: usize = 32;
    /// In a descriptor: 1 while the chain that begins there is in flight; 8 bits.
    pub const INFLIGHT: usize = 0;
    /// In a descriptor: the next one in its chain or in the free list.
    pub const NEXT: usize = 2;
    /// In the first descriptor of a chain: the last one.
    pub const LAST: usize = 4;
    /// In the first descriptor of a chain: the number of descriptors.
    pub const NUM: usize = 6;
    /// In the first descriptor of a chain: the chain's number in the order of taking; 64 bits.
    pub const COUNTER: usize = 8;
    /// In a descriptor, as in the ring: the id of its buffer.
    pub const ID: usize = 16;
    /// In a descriptor, as in the ring: its flags.
    pub const FLAGS: usize = 18;
    /// In a descriptor, as in the ring: its length; 32 bits.
    pub const LEN: usize = 20;
    /// In a descriptor, as in the ring: its address; 64 bits.
    pub const ADDR: usize = 24;

    /// Bytes of the part of a queue with `size` descriptors.
    pub const fn len(size: usize) -> usize {
        (DESC + DESC_LEN * size).next_multiple_of(super::INFLIGHT_ALIGNMENT)
    }
}

/// The alignment of each queue's part of an inflight area, in bytes.
pub const INFLIGHT_ALIGNMENT: usize = 64;

/// More than one queue.
pub const VHOST_USER_PROTOCOL_F_MQ: u64 = 1 << 0;
/// The dirty log is shared memory, passed by descriptor.
pub const VHOST_USER_PROTOCOL_F_LOG_SHMFD: u64 = 1 << 1;
/// `SEND_RARP`.
pub const VHOST_USER_PROTOCOL_F_RARP: u64 = 1 << 2;
/// Any request may ask for a reply.
pub const VHOST_USER_PROTOCOL_F_REPLY_ACK: u64 = 1 << 3;
/// `NET_SET_MTU`.
pub const VHOST_USER_PROTOCOL_F_NET_MTU: u64 = 1 << 4;
/// Post-copy: memory arrives after the guest runs.
pub const VHOST_USER_PROTOCOL_F_PAGEFAULT: u64 = 1 << 8;
/// `GET_INFLIGHT_FD` and `SET_INFLIGHT_FD`.
pub const VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD: u64 = 1 << 12;
/// `RESET_DEVICE`.
pub const VHOST_USER_PROTOCOL_F_RESET_DEVICE: u64 = 1 << 13;
/// `GET_MAX_MEM_SLOTS`, `ADD_MEM_REG` and `REM_MEM_REG`.
pub const VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// `SET_STATUS` and `GET_STATUS`.
pub const VHOST_USER_PROTOCOL_F_STATUS: u64 = 1 << 16;

/// Protocol features with their usual names, the lowest bit first.
pub const PROTOCOL_FEATURE_NAMES: &[(u64, &str)] = &[
    (VHOST_USER_PROTOCOL_F_MQ, "mq"),
    (VHOST_USER_PROTOCOL_F_LOG_SHMFD, "log_shmfd"),
    (VHOST_USER_PROTOCOL_F_RARP, "rarp"),
    (VHOST_USER_PROTOCOL_F_REPLY_ACK, "reply_ack"),
    (VHOST_USER_PROTOCOL_F_NET_MTU, "net_mtu"),
    (VHOST_USER_PROTOCOL_F_PAGEFAULT, "pagefault"),
    (VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD, "inflight_shmfd"),
    (VHOST_USER_PROTOCOL_F_RESET_DEVICE, "reset_device"),
    (VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, "configure_mem_slots"),
    (VHOST_USER_PROTOCOL_F_STATUS, "status"),
];

/// The names of the known protocol features in a set, the lowest first.
pub fn protocol_names(set: u64) -> impl Iterator<Item = &'static str> {
    PROTOCOL_FEATURE_NAMES.iter().filter(move |(bit, _)| set & bit != 0).map(|(_, name)| *name)
}

const _: () = {
    assert!(HEADER_LEN == 12);
    assert!(size_of::<VringState>() == 8 && size_of::<VringAddr>() == 40);
    assert!(size_of::<MemoryRegion>() == 32 && size_of::<SingleRegion>() == 40);
    assert!(size_of::<LogArea>() == 16 && size_of::<Inflight>() == 24);
    assert!(PAYLOAD_MAX == 264 && INFLIGHT_LEN_MIN == 20);
    assert!(Op::from_number(0).is_none() && Op::from_number(44).is_none());
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a little-endian machine.
    fn golden(words: &[&[u8]]) -> Vec<u8> {
        words.concat()
    }

    #[test]
    fn every_request_survives_the_wire() {
        for &op in Op::ALL {
            assert_eq!(Op::from_number(op.number()), Some(op));
        }
        assert_eq!(Op::ALL.len(), 43);
        assert_eq!(Op::AddMemReg.number(), 37);
        assert_eq!(Op::AddMemReg.name(), "ADD_MEM_REG");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_header_has_the_bytes_of_the_protocol() {
        let header = Header { request: 18, flags: VERSION | NEED_REPLY_MASK, size: 8 };
        let bytes = golden(&[&[18, 0, 0, 0], &[9, 0, 0, 0], &[8, 0, 0, 0]]);
        assert_eq!(header.as_bytes(), bytes);
        assert_eq!(Header::read_from_bytes(&bytes).ok(), Some(header));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_address_of_a_ring_has_the_bytes_of_the_protocol() {
        let address = VringAddr {
            index: 3,
            flags: VHOST_VRING_F_LOG,
            descriptor: 0x1000,
            used: 0x3000,
            available: 0x2000,
            log: 0x4000,
        };
        let bytes = golden(&[
            &[3, 0, 0, 0, 1, 0, 0, 0],
            &[0, 0x10, 0, 0, 0, 0, 0, 0],
            &[0, 0x30, 0, 0, 0, 0, 0, 0],
            &[0, 0x20, 0, 0, 0, 0, 0, 0],
            &[0, 0x40, 0, 0, 0, 0, 0, 0],
        ]);
        assert_eq!(address.as_bytes(), bytes);
        assert_eq!(VringAddr::read_from_bytes(&bytes).ok(), Some(address));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn regions_have_the_bytes_of_the_protocol() {
        let region = MemoryRegion {
            guest_address: 0xc_0000,
            size: 0x1ff4_0000,
            user_address: 0x7f00_000c_0000,
            mmap_offset: 0xc_0000,
        };
        let bytes = [
            [0, 0, 0x0c, 0, 0, 0, 0, 0],
            [0, 0, 0xf4, 0x1f, 0, 0, 0, 0],
            [0, 0, 0x0c, 0, 0, 0x7f, 0, 0],
            [0, 0, 0x0c, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(region.as_bytes(), bytes);
        let single = SingleRegion { padding: 0, region };
        assert_eq!(single.as_bytes(), golden(&[&[0; 8], &bytes]));
        let header = MemoryHeader { count: 2, padding: 0 };
        assert_eq!(header.as_bytes(), [2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn numbers_logs_and_areas_have_the_bytes_of_the_protocol() {
        let state = VringState { index: 1, num: 256 };
        assert_eq!(state.as_bytes(), [1, 0, 0, 0, 0, 1, 0, 0]);
        let log = LogArea { size: 0x8000, offset: 1 };
        assert_eq!(log.as_bytes(), [0, 0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let area = Inflight { mmap_size: 2, num_queues: 4, queue_size: 256, ..Inflight::default() };
        assert_eq!(area.as_bytes()[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(area.as_bytes()[16..], [4, 0, 0, 1, 0, 0, 0, 0]);
    }
}
