//! A peer's protocol violations, with messages for administrators.

use std::fmt;

use ringway_wire::vhost_user::{Op, VERSION};
use ringway_wire::virtio::Features;

use crate::RING_SIZE_MAX;

/// A request in messages: its name, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name(pub u32);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Op::from_number(self.0) {
            Some(op) => f.write_str(op.name()),
            None => write!(f, "request {}", self.0),
        }
    }
}

impl From<Op> for Name {
    fn from(op: Op) -> Name {
        Name(op.number())
    }
}

/// A protocol violation by a peer: its connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another protocol, or an unknown version of it.
    #[error("{request} has version {found}, expected {VERSION}")]
    Version {
        /// The message.
        request: Name,
        /// Its version.
        found: u32,
    },
    /// More bytes than any valid message has.
    #[error("{request} announces {size} bytes, expected at most {max}")]
    TooLong {
        /// The message.
        request: Name,
        /// Its announcement.
        size: u32,
        /// The limit.
        max: usize,
    },
    /// More descriptors than any valid message has, or descriptors without the start of a message.
    #[error("a message has {found} descriptors, expected at most {max}")]
    TooManyFiles {
        /// Descriptors so far.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// An unknown request number.
    #[error("request {0} is unknown")]
    Unknown(u32),
    /// A request of a feature that was not offered or not negotiated.
    #[error("{request} belongs to a protocol feature that is not in use")]
    NotNegotiated {
        /// The request.
        request: Name,
    },
    /// Post-copy: memory that arrives after the guest runs.
    #[error("{request}: postcopy is not supported; migrate without it")]
    Postcopy {
        /// The request.
        request: Name,
    },
    /// The payload has the wrong length.
    #[error("{request} has {found} bytes, expected {expected}")]
    Size {
        /// The message.
        request: Name,
        /// Its bytes.
        found: usize,
        /// The expected length in bytes.
        expected: usize,
    },
    /// The wrong number of descriptors.
    #[error("{request} has {found} descriptors, expected {expected}")]
    Files {
        /// The message.
        request: Name,
        /// Its descriptors.
        found: usize,
        /// The expected number.
        expected: usize,
    },
    /// A ring that does not exist.
    #[error("{request} is for ring {ring}, expected one of {rings}: there are {pairs} queues of \
             two rings each", pairs = rings / 2)]
    Ring {
        /// The request.
        request: Name,
        /// Its ring.
        ring: u64,
        /// The number of rings.
        rings: usize,
    },
    /// An invalid ring size.
    #[error("ring {ring} has {size} entries, expected a power of two up to {RING_SIZE_MAX}")]
    RingSize {
        /// The ring.
        ring: u16,
        /// Its size.
        size: u32,
    },
    /// A number out of range.
    #[error("{request} has {found}, expected {expected}")]
    Value {
        /// The request.
        request: Name,
        /// Its number.
        found: u64,
        /// The valid range.
        expected: &'static str,
    },
    /// A request that only a stopped ring may get.
    #[error("{request} for ring {ring}, which is running")]
    RingRunning {
        /// The request.
        request: Name,
        /// The ring.
        ring: u16,
    },
    /// Features that were not offered.
    #[error("{request} sets {}, which was not offered", names(*found))]
    Features {
        /// The request.
        request: Name,
        /// Those that were not offered.
        found: Features,
    },
    /// Protocol features that were not offered.
    #[error("SET_PROTOCOL_FEATURES sets {found:#x}, which was not offered")]
    Protocol {
        /// Those that were not offered.
        found: u64,
    },
    /// A region without bytes, or one beyond the last address.
    #[error("a region of {size:#x} bytes at guest address {guest_address:#x} does not fit")]
    RegionRange {
        /// Its first address.
        guest_address: u64,
        /// Its bytes.
        size: u64,
    },
    /// Two regions have addresses in common.
    #[error("regions at {space} addresses {one:#x} and {other:#x} overlap")]
    Overlap {
        /// Where they overlap.
        space: Space,
        /// The first address of one of them.
        one: u64,
        /// That of the other.
        other: u64,
    },
    /// A part of a ring at an address that such a part cannot have.
    #[error(
        "SET_VRING_ADDR for ring {ring}: the {part} is at {address:#x}, expected a multiple of \
         {alignment}"
    )]
    Misaligned {
        /// The ring.
        ring: u16,
        /// The part.
        part: &'static str,
        /// Its address.
        address: u64,
        /// The alignment that virtio requires, in bytes.
        alignment: u64,
    },
    /// More regions than were offered.
    #[error("there are {found} regions of memory, expected at most {max}")]
    TooManyRegions {
        /// Regions.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A reply without a request, or to another request.
    #[error("{found} is replied to, expected {}", awaited(*expected))]
    UnsolicitedReply {
        /// What came.
        found: Name,
        /// The request whose reply is awaited.
        expected: Option<Name>,
    },
    /// A reply with an error.
    #[error("the back-end could not do {request}: it replied {code}")]
    Refused {
        /// The request.
        request: Name,
        /// Its number.
        code: u64,
    },
    /// The peer lacks a feature that is required.
    #[error("the back-end lacks {0}")]
    MissingFeature(&'static str),
}

/// A space of addresses in which a region of memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// That of the guest.
    Guest,
    /// That of the front-end (user addresses).
    FrontEnd,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Guest => "guest",
            Space::FrontEnd => "front-end (user)",
        })
    }
}

fn awaited(expected: Option<Name>) -> String {
    expected.map_or("no reply".to_owned(), |it| format!("a reply to {it}"))
}

fn names(features: Features) -> String {
    let mut names: Vec<String> = features.names().map(str::to_owned).collect();
    let named = features.names().filter_map(Features::named).fold(Features::NONE, Features::or);
    let unnamed = features.without(named);
    if unnamed != Features::NONE || names.is_empty() {
        names.push(format!("{:#x}", unnamed.0));
    }
    names.join(" ")
}
