//! Facts: typed statements about a host, read from evidence. A fact names its pieces of evidence
//! and can read no others; a check declares the facts that it needs and receives them. So the
//! collected evidence is the union of what facts name, and no check can depend on anything that is
//! not recorded.
//!
//! Read first: `named.rs`, where most facts are one file with a name.

/// Facts that keep the reader of their pieces, and read what they are asked for.
macro_rules! on_demand {
    ($($(#[$about:meta])* $name:ident = [$($piece:expr),* $(,)?];)*) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name(Reader);

        impl Fact for $name {
            const PIECES: &'static [Piece] = &[$($piece),*];

            fn read(at: &Reader) -> Result<Self, Gap> {
                Ok($name(at.clone()))
            }
        }
    )*};
}

mod backend;
mod counters;
mod interfaces;
mod irqs;
mod kind;
mod machines;
mod named;
mod paused;
mod power;
mod queues;
mod reader;
mod ringway;
mod routing;
mod scope;
mod stack;
mod switch;
mod thread_names;
mod waits;

pub use backend::{BackendThread, BackendThreads, BusyCpus, FULL, FullCpu, OnlineCpus, Served};
pub use counters::{
    Carriers, ClassCounters, Connections, DatagramSockets, Disciplines, DiskPressure, DropReasons,
    FilterCounters, Irqbalance, LegacyRules, MemoryPressure, Missed, NatPorts, NetCounters, Ports,
    SocketOwners, SwitchLookups,
};
pub use interfaces::{Interfaces, NicRole};
pub use irqs::{Layout, NetIrq, NetIrqs, Queue};
pub use kind::{HostKind, Kind};
pub use machines::{Defined, Machine, Machines};
pub use named::*;
pub use paused::PausedGuests;
pub use power::{CpuFrequencies, CpuSleeps, Frequency, Sleep};
pub use queues::QueueCounters;
pub use reader::{Basis, Host, Reader, Span};
pub use routing::{
    Blackholes, BridgeSettings, Limited, LinkDetails, Moved, NeighbourTables, OwnAddresses,
    ProgramOwners, Routing, Switches,
};
pub use scope::{CongestionControls, ListsInterfaces, Namespace, Remarks};
pub use stack::Stack;
pub use switch::{OvnClaims, OvnConnection, SwitchDatabase, SwitchSettings};
pub use waits::CpuWaits;

pub use crate::number::{float, share, sum};

use crate::{Gap, Piece};

/// Something that is known about a host.
pub trait Fact: Sized {
    /// The pieces that it is read from. Its reader refuses everything else.
    const PIECES: &'static [Piece];

    /// Reads the fact.
    ///
    /// # Errors
    /// A gap, if the evidence is missing or cannot be read; a check that needs the fact then
    /// reports the gap.
    fn read(at: &Reader) -> Result<Self, Gap>;
}

/// A fact that a check can do without, or needs only under some condition.
#[derive(Debug)]
pub struct Tried<T>(Result<T, Gap>);

impl<T> Tried<T> {
    /// The fact, if it turns out to be needed.
    ///
    /// # Errors
    /// Why it could not be read.
    pub fn get(&self) -> Result<&T, Gap> {
        self.0.as_ref().map_err(Gap::clone)
    }

    /// The fact, if it could be read.
    pub fn ok(&self) -> Option<&T> {
        self.0.as_ref().ok()
    }
}

impl<T: Fact> Fact for Tried<T> {
    const PIECES: &'static [Piece] = T::PIECES;

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(Tried(T::read(at)))
    }
}

/// Declares the facts that a check needs. They are read in order, and the check reports the first
/// that cannot be read; a fact that it can do without is [`Tried`].
#[macro_export]
macro_rules! facts {
    ($(#[$about:meta])* $visible:vis struct $name:ident {
        $($(#[$what:meta])* $field:ident: $fact:ty),* $(,)?
    }) => {
        $(#[$about])*
        $visible struct $name {
            $($(#[$what])* $field: $fact),*
        }

        impl $crate::fact::Fact for $name {
            const PIECES: &'static [$crate::Piece] =
                &[$($crate::Piece::All(<$fact as $crate::fact::Fact>::PIECES)),*];

            fn read(at: &$crate::fact::Reader) -> Result<Self, $crate::Gap> {
                Ok($name { $($field: at.fact::<$fact>()?),* })
            }
        }
    };
}
