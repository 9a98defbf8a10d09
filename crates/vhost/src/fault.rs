//! What a peer did against the protocol, in words for the person who runs it.

use std::fmt;

use ringway_wire::vhost_user::{Op, VERSION};
use ringway_wire::virtio::Features;

use crate::RING_SIZE_MAX;

/// A request as it is called in messages: its name where it has one.
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

/// A peer's fault: its connection is to be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another protocol, or another version of it.
    #[error("{request} has version {found}, expected {VERSION}")]
    Version {
        /// The message.
        request: Name,
        /// Its version.
        found: u32,
    },
    /// More bytes than any message has.
    #[error("{request} announces {size} bytes, expected at most {max}")]
    TooLong {
        /// The message.
        request: Name,
        /// Its announcement.
        size: u32,
        /// The limit.
        max: usize,
    },
    /// More descriptors than any message has, or some that no message was begun for.
    #[error("a message has {found} descriptors, expected at most {max}")]
    TooManyFiles {
        /// Descriptors so far.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A number that the protocol does not have.
    #[error("request {0} is unknown")]
    Unknown(u32),
    /// A request that belongs to a feature that was not offered, or not taken.
    #[error("{request} belongs to a protocol feature that is not in use")]
    NotAgreed {
        /// The request.
        request: Name,
    },
    /// Memory that comes after the guest runs.
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
        /// What is right.
        expected: usize,
    },
    /// The wrong number of descriptors.
    #[error("{request} has {found} descriptors, expected {expected}")]
    Files {
        /// The message.
        request: Name,
        /// Its descriptors.
        found: usize,
        /// What is right.
        expected: usize,
    },
    /// A ring that there is not.
    #[error("{request} is for ring {ring}, expected one of {rings}: there are {pairs} queues of \
             two rings each", pairs = rings / 2)]
    Ring {
        /// The request.
        request: Name,
        /// Its ring.
        ring: u64,
        /// Rings that there are.
        rings: usize,
    },
    /// A ring of an impossible size.
    #[error("ring {ring} has {size} entries, expected a power of two up to {RING_SIZE_MAX}")]
    RingSize {
        /// The ring.
        ring: u16,
        /// Its size.
        size: u32,
    },
    /// A number that is out of its range.
    #[error("{request} has {found}, expected {expected}")]
    Value {
        /// The request.
        request: Name,
        /// Its number.
        found: u64,
        /// What is right.
        expected: &'static str,
    },
    /// What may be set of a stopped ring only.
    #[error("{request} for ring {ring}, which runs")]
    Runs {
        /// The request.
        request: Name,
        /// The ring.
        ring: u16,
    },
    /// Features that were not offered.
    #[error("{request} takes {}, which was not offered", names(*found))]
    Features {
        /// The request.
        request: Name,
        /// Those that were not offered.
        found: Features,
    },
    /// Features of the protocol that were not offered.
    #[error("SET_PROTOCOL_FEATURES takes {found:#x}, which was not offered")]
    Protocol {
        /// Those that were not offered.
        found: u64,
    },
    /// A region without bytes, or beyond the last address.
    #[error("a region of {size:#x} bytes at guest address {guest_address:#x} does not fit")]
    RegionRange {
        /// Its first address.
        guest_address: u64,
        /// Its bytes.
        size: u64,
    },
    /// Two regions have addresses in common.
    #[error("regions at guest addresses {one:#x} and {other:#x} overlap")]
    Overlap {
        /// One of them.
        one: u64,
        /// The other.
        other: u64,
    },
    /// More regions than were offered.
    #[error("there are {found} regions of memory, expected at most {max}")]
    TooManyRegions {
        /// Regions.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A reply that was not asked for, or to another request.
    #[error("{found} is replied to, expected {}", awaited(*expected))]
    Unasked {
        /// What came.
        found: Name,
        /// What is waited for.
        expected: Option<Name>,
    },
    /// A reply with a number that says no.
    #[error("the back-end could not do {request}: it replied {code}")]
    Refused {
        /// The request.
        request: Name,
        /// Its number.
        code: u64,
    },
    /// The other end lacks something that is needed.
    #[error("the back-end lacks {0}")]
    Lacks(&'static str),
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
