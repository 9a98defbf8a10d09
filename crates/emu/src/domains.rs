//! The domains and their event channel ports: the rules, without sockets.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringway_wire::{DomId, EvtchnPort, PAGE_SIZE};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::table::{TABLE_BYTES, Table};

/// Domains alive at once, domain 0 included.
pub const DOMAINS_MAX: usize = 4096;

/// Event channel ports of a guest (`max_event_channels` of `xl.cfg`, by default). Domain 0 and
/// driver domains serve many guests: theirs are bounded by the FIFO event channel ABI.
pub const GUEST_PORTS_MAX: u32 = 1023;

/// Event channel ports of domain 0 and of driver domains (`EVTCHN_FIFO_NR_CHANNELS` - 1).
const BACKEND_PORTS_MAX: u32 = 131_071;

/// Channels that a guest may always create, even when descriptors are short: two vifs of 16 queues
/// each.
const CHANNELS_GUARANTEED: usize = 64;

/// Descriptors of a domain, besides its channels: memory, grant table, its sockets.
const DESCRIPTORS_PER_DOMAIN: usize = 6;

/// The largest memory of a domain, in bytes.
pub const MEMORY_BYTES_MAX: u64 = 16 << 30;

/// The first reserved number (`DOMID_FIRST_RESERVED`).
const FIRST_RESERVED: u16 = 0x7FF0;

const DOM0: DomId = DomId(0);

/// A change of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainEvent {
    /// It exists; its process may connect.
    Created(DomId),
    /// Its process ended. It keeps its number until it is destroyed.
    Died(DomId),
    /// It is gone; the number may be used again.
    Destroyed(DomId),
}

/// The role of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It may not use other domains' grants.
    Guest,
    /// It may serve other domains as a backend.
    DriverDomain,
}

/// A domain to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDomain {
    /// Its number; `None` lets the broker choose.
    pub domid: Option<DomId>,
    /// Its memory, in bytes: whole pages, at most [`MEMORY_BYTES_MAX`].
    pub memory_bytes: u64,
    /// Its role.
    pub role: Role,
}

/// The stage of a domain's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainState {
    /// Created; no process has taken it yet.
    Waiting,
    /// A process runs it.
    Running,
    /// Its process ended.
    Dead,
}

/// A domain, as reported to domain 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainInfo {
    /// Its number.
    pub domid: DomId,
    /// The stage of its life.
    pub state: DomainState,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Its role.
    pub role: Role,
}

/// A connection to the broker. It owns the ports that it created or bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// The sender of a request: a connection, and its domain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester {
    pub(crate) connection: ConnectionId,
    pub(crate) domid: DomId,
}

/// A new port, as its owner receives it.
#[derive(Debug)]
pub(crate) struct NewPort {
    pub(crate) port: EvtchnPort,
    pub(crate) end: ChannelEnd,
}

/// One end of an event channel.
#[derive(Debug, Clone)]
pub(crate) struct ChannelEnd {
    channel: Arc<Channel>,
    /// 0 for the creator, 1 for the end that binds it.
    side: usize,
}

/// An event channel: two sockets that are connected to each other. What one side does with its own
/// socket does not affect the other's.
#[derive(Debug)]
struct Channel {
    ends: [OwnedFd; 2],
    /// The number of channels.
    live: Arc<AtomicUsize>,
}

impl Channel {
    fn new(live: &Arc<AtomicUsize>) -> io::Result<Channel> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Each event is a byte that carries no information beyond earlier ones, so few may wait:
        // the minimum that the kernel allows.
        for end in [&one, &other] {
            set_socket_send_buffer_size(end, 1)?;
        }
        live.fetch_add(1, Ordering::Relaxed);
        Ok(Channel { ends: [one, other], live: Arc::clone(live) })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ChannelEnd {
    /// The socket for this end.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.channel.ends[self.side].as_fd()
    }

    /// The other end.
    pub(crate) fn other(&self) -> ChannelEnd {
        ChannelEnd { channel: Arc::clone(&self.channel), side: 1 - self.side }
    }
}

/// All domains.
#[derive(Debug)]
pub(crate) struct Domains {
    all: BTreeMap<DomId, Domain>,
    last_chosen: u16,
    last_generation: u64,
    /// The number of event channels, whose descriptors are kept here.
    channels: Arc<AtomicUsize>,
    /// The most descriptors that all of this may use.
    descriptors_max: usize,
}

#[derive(Debug)]
struct Domain {
    info: DomainInfo,
    /// Different for every domain that ever had this number.
    generation: u64,
    /// None for domain 0, which consists of several processes without a common allocator, and for
    /// the dead.
    memory: Option<Memory>,
    ports: BTreeMap<u32, Port>,
}

#[derive(Debug)]
struct Memory {
    pages: Arc<OwnedFd>,
    table: Arc<OwnedFd>,
    entries: Table,
}

/// One end of an event channel.
#[derive(Debug)]
struct Port {
    owner: ConnectionId,
    remote: DomId,
    /// The port of the other end. `None` until `remote` binds, and after `remote` has closed its
    /// end.
    bound_to: Option<u32>,
    end: ChannelEnd,
}

impl Domains {
    /// Only domain 0, in a process that may open `descriptors_max` descriptors.
    pub(crate) fn new(descriptors_max: usize) -> Domains {
        let role = Role::DriverDomain;
        let state = DomainState::Running;
        let info = DomainInfo { domid: DOM0, state, memory_bytes: 0, role };
        let dom0 = Domain { info, generation: 0, memory: None, ports: BTreeMap::new() };
        Domains {
            all: BTreeMap::from([(DOM0, dom0)]),
            last_chosen: 0,
            last_generation: 0,
            channels: Arc::default(),
            descriptors_max,
        }
    }

    /// # Errors
    /// `AlreadyExists`, `QuotaExceeded`, `InvalidInput` for a reserved number or an invalid size,
    /// or what creating the memory reports.
    pub(crate) fn create(&mut self, new: NewDomain) -> io::Result<DomId> {
        let is_whole = new.memory_bytes % u64::try_from(PAGE_SIZE).unwrap_or(1) == 0;
        if !is_whole || !(1..=MEMORY_BYTES_MAX).contains(&new.memory_bytes) {
            return Err(ErrorKind::InvalidInput.into());
        }
        if self.all.len() >= DOMAINS_MAX {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        let domid = match new.domid {
            Some(domid) if domid.0 >= FIRST_RESERVED => Err(ErrorKind::InvalidInput)?,
            Some(domid) if self.all.contains_key(&domid) => Err(ErrorKind::AlreadyExists)?,
            Some(domid) => domid,
            None => self.choose().ok_or(ErrorKind::QuotaExceeded)?,
        };
        let memory = Memory::new(domid, new.memory_bytes)?;
        let state = DomainState::Waiting;
        let info = DomainInfo { domid, state, memory_bytes: new.memory_bytes, role: new.role };
        self.last_generation += 1;
        let generation = self.last_generation;
        let ports = BTreeMap::new();
        self.all.insert(domid, Domain { info, generation, memory: Some(memory), ports });
        Ok(domid)
    }

    /// A process becomes the domain.
    ///
    /// # Errors
    /// `AddrInUse` if another process is the domain, `NotFound` if it does not exist or is dead.
    pub(crate) fn start(&mut self, domid: DomId) -> Result<(), ErrorKind> {
        let domain = self.get_mut(domid)?;
        match domain.info.state {
            DomainState::Running if domid != DOM0 => return Err(ErrorKind::AddrInUse),
            DomainState::Dead => return Err(ErrorKind::NotFound),
            DomainState::Running | DomainState::Waiting => {}
        }
        domain.info.state = DomainState::Running;
        Ok(())
    }

    /// The domain's process has ended. Domain 0 does not die.
    pub(crate) fn stop(&mut self, domid: DomId) {
        if let Some(domain) = self.all.get_mut(&domid).filter(|_| domid != DOM0) {
            domain.info.state = DomainState::Dead;
            domain.memory = None;
        }
    }

    /// # Errors
    /// `NotFound`, or `PermissionDenied` for domain 0.
    pub(crate) fn destroy(&mut self, domid: DomId) -> Result<(), ErrorKind> {
        if domid == DOM0 {
            return Err(ErrorKind::PermissionDenied);
        }
        self.all.remove(&domid).map(drop).ok_or(ErrorKind::NotFound)
    }

    /// The domain, and its generation, which distinguishes it from others with its number.
    pub(crate) fn describe(&self, domid: DomId) -> Result<(DomainInfo, u64), ErrorKind> {
        self.get(domid).map(|domain| (domain.info, domain.generation))
    }

    /// The first domain numbered `from` or higher.
    pub(crate) fn next(&self, from: DomId) -> Result<(DomainInfo, u64), ErrorKind> {
        let (domid, _) = self.all.range(from..).next().ok_or(ErrorKind::NotFound)?;
        self.describe(*domid)
    }

    /// Memory and grant table of a domain, if it has them.
    pub(crate) fn memory(&self, domid: DomId) -> Result<[Arc<OwnedFd>; 2], ErrorKind> {
        let memory = self.get(domid)?.memory.as_ref().ok_or(ErrorKind::NotFound)?;
        Ok([Arc::clone(&memory.pages), Arc::clone(&memory.table)])
    }

    /// Ends all uses of other domains' grants that `user` had marked when its process was killed:
    /// otherwise the owners could never end those grants.
    pub(crate) fn end_uses_by(&self, user: DomId) {
        for memory in self.all.values().filter_map(|domain| domain.memory.as_ref()) {
            memory.entries.clear_all_marks_of(user);
        }
    }

    /// Creates a port that `remote` may bind. As on Xen, `remote` need not exist yet.
    ///
    /// # Errors
    /// `QuotaExceeded`, or what socketpair(2) reports.
    pub(crate) fn alloc_unbound(
        &mut self,
        requester: Requester,
        remote: DomId,
    ) -> io::Result<NewPort> {
        let number = self.get(requester.domid)?.free_port()?;
        if !self.may_have_channel(requester.domid)? {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        let channel = Arc::new(Channel::new(&self.channels)?);
        let end = ChannelEnd { channel, side: 0 };
        let port = Port { owner: requester.connection, remote, bound_to: None, end };
        let new = port.for_owner(number);
        self.get_mut(requester.domid)?.ports.insert(number, port);
        Ok(new)
    }

    /// Whether a domain may create another channel. Those of one guest take at most a quarter of
    /// the remaining descriptors, so some remain whatever guests do.
    fn may_have_channel(&self, domid: DomId) -> Result<bool, ErrorKind> {
        let domain = self.get(domid)?;
        if domain.info.role == Role::DriverDomain {
            return Ok(true);
        }
        let of_domains = self.all.len() * DESCRIPTORS_PER_DOMAIN;
        let of_channels = 2 * self.channels.load(Ordering::Relaxed);
        let left = self.descriptors_max.saturating_sub(of_domains + of_channels);
        let made = domain.ports.values().filter(|port| port.end.side == 0).count();
        Ok(made < CHANNELS_GUARANTEED || 2 * made < left / 4)
    }

    /// Binds a new port to `port` of `remote`.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` and `AddrInUse` as in the hypervisor port; `QuotaExceeded` if
    /// the requesting domain has no port left.
    pub(crate) fn bind_interdomain(
        &mut self,
        requester: Requester,
        remote: DomId,
        port: EvtchnPort,
    ) -> Result<NewPort, ErrorKind> {
        let number = self.get(requester.domid)?.free_port()?;
        let theirs = self.get_mut(remote)?.ports.get_mut(&port.0).ok_or(ErrorKind::NotFound)?;
        if theirs.remote != requester.domid {
            return Err(ErrorKind::PermissionDenied);
        }
        if theirs.bound_to.is_some() {
            return Err(ErrorKind::AddrInUse);
        }
        theirs.bound_to = Some(number);
        let ours = Port {
            owner: requester.connection,
            remote,
            bound_to: Some(port.0),
            end: theirs.end.other(),
        };
        let new = ours.for_owner(number);
        self.get_mut(requester.domid)?.ports.insert(number, ours);
        Ok(new)
    }

    /// Closes a port of the requesting connection. The other end becomes bindable again.
    ///
    /// # Errors
    /// `NotFound` when that connection has no such port.
    pub(crate) fn close_port(
        &mut self,
        requester: Requester,
        port: EvtchnPort,
    ) -> Result<(), ErrorKind> {
        let ports = &mut self.get_mut(requester.domid)?.ports;
        let is_owner = |port: &&Port| port.owner == requester.connection;
        ports.get(&port.0).filter(is_owner).ok_or(ErrorKind::NotFound)?;
        let closed = ports.remove(&port.0);
        if let Some(Port { remote, bound_to: Some(theirs), .. }) = closed {
            let other_end = self.all.get_mut(&remote).and_then(|peer| peer.ports.get_mut(&theirs));
            if let Some(other_end) = other_end {
                other_end.bound_to = None;
            }
        }
        Ok(())
    }

    /// Closes all ports of a connection that has ended.
    pub(crate) fn close_ports_of(&mut self, requester: Requester) {
        let Some(domain) = self.all.get(&requester.domid) else { return };
        let mine = domain.ports.iter().filter(|(_, port)| port.owner == requester.connection);
        for number in mine.map(|(number, _)| *number).collect::<Vec<u32>>() {
            let closed = self.close_port(requester, EvtchnPort(number));
            debug_assert!(closed.is_ok(), "the port was there a line ago");
        }
    }

    /// Chooses the number after the last one chosen, as Xen does, so that numbers are reused late.
    fn choose(&mut self) -> Option<DomId> {
        let (after, before) = (self.last_chosen + 1..FIRST_RESERVED, 1..=self.last_chosen);
        let chosen = after.chain(before).find(|number| !self.all.contains_key(&DomId(*number)))?;
        self.last_chosen = chosen;
        Some(DomId(chosen))
    }

    fn get(&self, domid: DomId) -> Result<&Domain, ErrorKind> {
        self.all.get(&domid).ok_or(ErrorKind::NotFound)
    }

    fn get_mut(&mut self, domid: DomId) -> Result<&mut Domain, ErrorKind> {
        self.all.get_mut(&domid).ok_or(ErrorKind::NotFound)
    }
}

impl Domain {
    /// The lowest free port; never 0.
    fn free_port(&self) -> Result<u32, ErrorKind> {
        let ports_max = match self.info.role {
            Role::Guest => GUEST_PORTS_MAX,
            Role::DriverDomain => BACKEND_PORTS_MAX,
        };
        let mut taken = self.ports.keys();
        (1..=ports_max).find(|port| taken.next() != Some(port)).ok_or(ErrorKind::QuotaExceeded)
    }
}

impl Port {
    fn for_owner(&self, number: u32) -> NewPort {
        NewPort { port: EvtchnPort(number), end: self.end.clone() }
    }
}

impl Memory {
    fn new(domid: DomId, bytes: u64) -> io::Result<Memory> {
        let table_bytes = u64::try_from(TABLE_BYTES).map_err(|_| ErrorKind::InvalidInput)?;
        let pages = sealed_memory(&format!("ringway-dom{domid}-memory"), bytes)?;
        let table = sealed_memory(&format!("ringway-dom{domid}-grants"), table_bytes)?;
        let entries = Table::map(&table)?;
        Ok(Memory { pages: Arc::new(pages), table: Arc::new(table), entries })
    }
}

/// Memory of fixed size: a backend's access to it never faults, whatever its owner does with its
/// descriptor.
fn sealed_memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, bytes)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_create_channels_endlessly_leave_descriptors_for_others() {
        let mut domains = Domains::new(3000);
        let new = NewDomain { domid: None, memory_bytes: 4096, role: Role::Guest };
        let mut made = Vec::new();
        for connection in 0..4 {
            let domid = domains.create(new).expect("there is room");
            let requester = Requester { connection: ConnectionId(connection), domid };
            let ports = std::iter::from_fn(|| domains.alloc_unbound(requester, DOM0).ok());
            made.push(ports.take(2000).count());
        }
        // The first guest takes a quarter of what is left, which is a fifth of all; each later one
        // less.
        assert_eq!(made, [299, 239, 190, 152]);
        // Domain 0 has no such limit, and a guest can always create some.
        let dom0 = Requester { connection: ConnectionId(9), domid: DOM0 };
        (0..200).for_each(|_| drop(domains.alloc_unbound(dom0, DomId(1)).expect("trusted")));
        let domid = domains.create(new).expect("there is room");
        let requester = Requester { connection: ConnectionId(10), domid };
        let ports: Vec<NewPort> =
            std::iter::from_fn(|| domains.alloc_unbound(requester, DOM0).ok()).take(2000).collect();
        assert!((CHANNELS_GUARANTEED..152).contains(&ports.len()), "{}", ports.len());
        // Closed channels are available to others.
        let last = ports.last().expect("some").port;
        domains.close_port(requester, last).expect("its own");
    }
}
