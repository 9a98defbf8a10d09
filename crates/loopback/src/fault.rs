//! Faults at named points.

use ringway_wire::DomId;

/// A place in the hypervisor that can fail.
///
/// Each point is counted separately for the domain that its description names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultPoint {
    /// Another domain copies from or to pages of this one: the whole call fails, and no operation
    /// of it is carried out.
    CopyCall,
    /// One operation of such a call is refused with `GNTST_general_error`.
    Copy,
    /// Another domain maps a page of this one: refused.
    Map,
    /// Another domain copies or maps: this one is destroyed just before
    /// ([`Loopback::destroy_domain`](crate::Loopback::destroy_domain)).
    Death,
    /// This domain takes and grants pages: it has none left.
    Share,
    /// This domain offers a port: it has none left.
    OfferPort,
    /// Another domain binds to a port of this one: refused.
    BindPort,
    /// This domain sends an event: the call fails.
    Notify,
    /// An event to this domain never arrives.
    LostEvent,
    /// An event to this domain arrives again after it was cleared.
    DoubledEvent,
    /// An event to this domain arrives, and so does one that no domain sent, at the next open port
    /// of this domain.
    SpuriousEvent,
}

impl FaultPoint {
    /// All of them, in the order of their declaration.
    pub const ALL: [FaultPoint; 11] = [
        FaultPoint::CopyCall,
        FaultPoint::Copy,
        FaultPoint::Map,
        FaultPoint::Death,
        FaultPoint::Share,
        FaultPoint::OfferPort,
        FaultPoint::BindPort,
        FaultPoint::Notify,
        FaultPoint::LostEvent,
        FaultPoint::DoubledEvent,
        FaultPoint::SpuriousEvent,
    ];
}

/// One fault of a plan: a point fails when it is passed for the `nth` time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The domain that the point is counted for.
    pub domid: DomId,
    /// The point that fails.
    pub point: FaultPoint,
    /// Which passage fails, from 1, counted since the domain was created.
    pub nth: u64,
}

/// How often each point was passed for one domain.
#[derive(Debug, Clone, Default)]
pub(crate) struct Passages([u64; FaultPoint::ALL.len()]);

impl Passages {
    /// Counts a passage, and returns its number.
    pub(crate) fn pass(&mut self, point: FaultPoint) -> u64 {
        let count = &mut self.0[place(point)];
        *count += 1;
        *count
    }

    pub(crate) fn count(&self, point: FaultPoint) -> u64 {
        self.0[place(point)]
    }
}

fn place(point: FaultPoint) -> usize {
    let place = FaultPoint::ALL.iter().position(|other| *other == point);
    place.expect("every point is in the list")
}
