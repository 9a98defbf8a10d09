//! The messages between a domain's process and the broker.
//!
//! One fixed-size request, one fixed-size reply, in the machine's byte order; descriptors travel
//! beside the reply. A process has at most one request outstanding. Nothing here does I/O.

use std::io::ErrorKind;

use ringway_wire::{DomId, EvtchnPort};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::domains::{DomainInfo, DomainState, NewDomain, Role};

/// The version of these messages; both ends come from one build, so they must be equal.
const VERSION: u16 = 1;

/// Descriptors beside one reply: memory and grant table, or one end of a channel.
pub(crate) const FDS_MAX: usize = 2; // not a limit: the protocol's

/// A request as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Request {
    version: u16,
    operation: u16,
    domid: u16,
    flags: u16,
    port: u32,
    zero: u32,
    bytes: u64,
}

/// A reply as it travels. A field that an operation does not fill is zero.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Reply {
    version: u16,
    status: u16,
    domid: u16,
    flags: u16,
    port: u32,
    zero: u32,
    bytes: u64,
    generation: u64,
}

const _: () = assert!(size_of::<Request>() == 24);
const _: () = assert!(size_of::<Reply>() == 32);

/// A request, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// The first request on every connection: which domain am I? The reply has its memory and grant
    /// table, if any.
    Hello,
    /// Domain 0 only.
    CreateDomain(NewDomain),
    /// Domain 0 only.
    DestroyDomain(DomId),
    /// Returns the first domain with this number or a higher one. Domain 0 only.
    NextDomain(DomId),
    /// Creates a port of this domain that `remote` may bind. The reply has our end.
    AllocUnbound { remote: DomId },
    /// Binds a new port of this domain to one of `remote`. The reply has our end.
    BindInterdomain { remote: DomId, port: EvtchnPort },
    /// Closes a port of this domain.
    ClosePort(EvtchnPort),
    /// Requests another domain's memory and grant table. Domain 0 and driver domains only.
    ForeignDomain(DomId),
}

const HELLO: u16 = 1;
const CREATE_DOMAIN: u16 = 2;
const DESTROY_DOMAIN: u16 = 3;
const NEXT_DOMAIN: u16 = 4;
const ALLOC_UNBOUND: u16 = 5;
const BIND_INTERDOMAIN: u16 = 6;
const CLOSE_PORT: u16 = 7;
const FOREIGN_DOMAIN: u16 = 8;

/// The domain may use other domains' grants.
const MAY_BACK: u16 = 1 << 0;
const RUNNING: u16 = 1 << 1;
const DEAD: u16 = 1 << 2;

/// The possible refusals; the status of one is its place in this list, counted from 1.
const REFUSALS: [ErrorKind; 7] = [
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::AddrInUse,
    ErrorKind::AlreadyExists,
    ErrorKind::QuotaExceeded,
    ErrorKind::InvalidInput,
    ErrorKind::OutOfMemory,
];

impl Call {
    pub(crate) fn encode(&self) -> Request {
        let blank = Request::read_from_bytes(&[0; size_of::<Request>()]);
        let blank = Request { version: VERSION, ..blank.expect("any bytes are a request") };
        match *self {
            Call::Hello => Request { operation: HELLO, ..blank },
            Call::CreateDomain(new) => Request {
                operation: CREATE_DOMAIN,
                domid: new.domid.map_or(0, |domid| domid.0),
                flags: if new.role == Role::DriverDomain { MAY_BACK } else { 0 },
                bytes: new.memory_bytes,
                ..blank
            },
            Call::DestroyDomain(domid) => {
                Request { operation: DESTROY_DOMAIN, domid: domid.0, ..blank }
            }
            Call::NextDomain(domid) => Request { operation: NEXT_DOMAIN, domid: domid.0, ..blank },
            Call::AllocUnbound { remote } => {
                Request { operation: ALLOC_UNBOUND, domid: remote.0, ..blank }
            }
            Call::BindInterdomain { remote, port } => {
                Request { operation: BIND_INTERDOMAIN, domid: remote.0, port: port.0, ..blank }
            }
            Call::ClosePort(port) => Request { operation: CLOSE_PORT, port: port.0, ..blank },
            Call::ForeignDomain(domid) => {
                Request { operation: FOREIGN_DOMAIN, domid: domid.0, ..blank }
            }
        }
    }

    /// `None` for anything that [`encode`](Call::encode) does not produce.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Call> {
        let request = Request::read_from_bytes(bytes).ok()?;
        let domid = DomId(request.domid);
        let port = EvtchnPort(request.port);
        let call = match request.operation {
            HELLO => Call::Hello,
            CREATE_DOMAIN => Call::CreateDomain(NewDomain {
                domid: Some(domid).filter(|domid| domid.0 != 0),
                memory_bytes: request.bytes,
                role: if request.flags == MAY_BACK { Role::DriverDomain } else { Role::Guest },
            }),
            DESTROY_DOMAIN => Call::DestroyDomain(domid),
            NEXT_DOMAIN => Call::NextDomain(domid),
            ALLOC_UNBOUND => Call::AllocUnbound { remote: domid },
            BIND_INTERDOMAIN => Call::BindInterdomain { remote: domid, port },
            CLOSE_PORT => Call::ClosePort(port),
            FOREIGN_DOMAIN => Call::ForeignDomain(domid),
            _ => return None,
        };
        (call.encode() == request).then_some(call)
    }
}

impl Reply {
    /// A success without data.
    pub(crate) fn done() -> Reply {
        Reply { version: VERSION, ..Reply::default() }
    }

    pub(crate) fn port(port: EvtchnPort) -> Reply {
        Reply { port: port.0, ..Reply::done() }
    }

    pub(crate) fn domid(domid: DomId) -> Reply {
        Reply { domid: domid.0, ..Reply::done() }
    }

    pub(crate) fn domain(info: DomainInfo, generation: u64) -> Reply {
        let role = if info.role == Role::DriverDomain { MAY_BACK } else { 0 };
        let state = match info.state {
            DomainState::Waiting => 0,
            DomainState::Running => RUNNING,
            DomainState::Dead => DEAD,
        };
        let bytes = info.memory_bytes;
        Reply { flags: role | state, bytes, generation, ..Reply::domid(info.domid) }
    }

    pub(crate) fn refusal(kind: ErrorKind) -> Reply {
        let place = (1..).zip(REFUSALS).find(|(_, refusal)| *refusal == kind);
        let status = place.map_or(u16::MAX, |(status, _)| status);
        Reply { status, ..Reply::done() }
    }

    /// Decodes the broker's reply.
    ///
    /// # Errors
    /// The refusal, or `InvalidData` if this is not a reply of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Reply, ErrorKind> {
        let reply = Reply::read_from_bytes(bytes).map_err(|_| ErrorKind::InvalidData)?;
        match (reply.version, reply.status) {
            (VERSION, 0) => Ok(reply),
            (VERSION, status) => {
                let place = usize::from(status - 1);
                Err(REFUSALS.get(place).copied().unwrap_or(ErrorKind::Other))
            }
            _ => Err(ErrorKind::InvalidData),
        }
    }

    pub(crate) fn info(&self) -> DomainInfo {
        DomainInfo {
            domid: DomId(self.domid),
            state: match (self.flags & RUNNING, self.flags & DEAD) {
                (0, 0) => DomainState::Waiting,
                (_, 0) => DomainState::Running,
                _ => DomainState::Dead,
            },
            memory_bytes: self.bytes,
            role: if self.flags & MAY_BACK == 0 { Role::Guest } else { Role::DriverDomain },
        }
    }

    pub(crate) fn event_port(&self) -> EvtchnPort {
        EvtchnPort(self.port)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_call() -> [Call; 8] {
        let role = Role::DriverDomain;
        [
            Call::Hello,
            Call::CreateDomain(NewDomain { domid: Some(DomId(7)), memory_bytes: 4096, role }),
            Call::DestroyDomain(DomId(3)),
            Call::NextDomain(DomId(0)),
            Call::AllocUnbound { remote: DomId(2) },
            Call::BindInterdomain { remote: DomId(2), port: EvtchnPort(9) },
            Call::ClosePort(EvtchnPort(4)),
            Call::ForeignDomain(DomId(5)),
        ]
    }

    #[test]
    fn every_request_survives_a_round_trip() {
        for call in every_call() {
            assert_eq!(Call::decode(call.encode().as_bytes()), Some(call));
        }
    }

    #[test]
    fn a_request_with_a_changed_byte_is_another_request_or_invalid() {
        for call in every_call() {
            let request = call.encode();
            for at in 0..size_of::<Request>() {
                let mut bytes = [0; size_of::<Request>()];
                bytes.copy_from_slice(request.as_bytes());
                bytes[at] ^= 0x80;
                assert_ne!(Call::decode(&bytes), Some(call));
            }
        }
    }

    #[test]
    fn a_request_of_another_length_is_invalid() {
        let request = Call::Hello.encode();
        assert_eq!(Call::decode(&request.as_bytes()[1..]), None);
        assert_eq!(Call::decode(&[]), None);
    }

    #[test]
    fn every_refusal_survives_a_round_trip() {
        for kind in REFUSALS {
            assert_eq!(Reply::decode(Reply::refusal(kind).as_bytes()), Err(kind));
        }
        let other = Reply::refusal(ErrorKind::TimedOut);
        assert_eq!(Reply::decode(other.as_bytes()), Err(ErrorKind::Other));
    }

    #[test]
    fn a_domain_survives_a_round_trip() {
        for state in [DomainState::Waiting, DomainState::Running, DomainState::Dead] {
            let role = Role::DriverDomain;
            let info = DomainInfo { domid: DomId(4), state, memory_bytes: 8192, role };
            let reply = Reply::decode(Reply::domain(info, 6).as_bytes()).expect("a success");
            assert_eq!((reply.info(), reply.generation()), (info, 6));
        }
    }
}
