//! Links, addresses and routes of Linux, over rtnetlink.
//!
//! Control plane only: every call asks the kernel, waits for its reply and allocates freely. Of
//! what the tool `ethtool` does, [`ethtool`] has what a vif needs; [`socket`] sends requests to any
//! netlink family, [`generic`] to those that have names. Links are identified by name, as in
//! configuration files; [`Netlink`] turns it into the kernel's index where a message needs one.

mod bridge_port;
pub mod ethtool;
pub mod generic;
mod local_end;
pub mod neighbours;
pub mod socket;
mod watch;

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::socket::NetlinkSocket;

pub use bridge_port::PortSettings;
pub use watch::LinkWatch;

/// Access to one network namespace: that of the thread that opened it, whichever thread uses it.
#[derive(Debug)]
pub struct Netlink {
    socket: NetlinkSocket,
}

/// A link, as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it, unique in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// "tun" (also for a TAP device), "veth", "bridge" and so on; none for lo and hardware.
    pub kind: Option<String>,
    /// Whether it is up administratively.
    pub is_up: bool,
    /// Its Ethernet address, if it has one.
    pub address: Option<[u8; 6]>,
    /// Largest payload of a frame in bytes, Ethernet header not included.
    pub mtu: u32,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// See [`LinkSetting::GsoMaxSize`].
    pub gso_max_size: u32,
    /// See [`LinkSetting::TxQueueLen`].
    pub tx_queue_len: u32,
    /// See [`LinkSetting::Alias`].
    pub alias: Option<String>,
}

/// A change of a link.
#[derive(Debug, Clone, Copy)]
pub enum LinkSetting<'a> {
    /// Up, administratively.
    Up,
    /// Down.
    Down,
    /// Another name; the link must be down.
    Name(&'a str),
    /// Whether its driver reports a connected cable; a TAP device lets others set it.
    Carrier(bool),
    /// Largest payload of a frame in bytes, Ethernet header not included.
    Mtu(u32),
    /// Its Ethernet address.
    Address([u8; 6]),
    /// Makes it a port of this bridge.
    Master(&'a str),
    /// Removes it from its bridge.
    NoMaster,
    /// The limit of frames that the kernel leaves to this link to segment, over IPv4 and IPv6: they
    /// are shorter than this.
    ///
    /// The kernel compares it with the length of the whole frame, Ethernet header included, and
    /// segments frames that are not shorter in software. So a link behind netif, whose size field
    /// counts the whole frame in 16 bits, gets 65535 and nothing subtracted
    /// (`XEN_NETIF_MAX_TX_SIZE`).
    GsoMaxSize(u32),
    /// Frames that may wait for transmission; for a TAP device, in each of its queues.
    TxQueueLen(u32),
    /// A note for people and programs (`ifalias`), of at most 255 bytes.
    Alias(&'a str),
    /// The kernel gives it no IPv6 address of its own accord; set it before the link is up.
    NoLinkLocalAddress,
    /// Moved into the network namespace of this process.
    NetnsOf(u32),
    /// Moved into this network namespace.
    Netns(BorrowedFd<'a>),
}

impl Netlink {
    /// Opens the network namespace of the calling thread.
    ///
    /// # Errors
    /// What socket(2) reports.
    pub fn open() -> io::Result<Netlink> {
        let socket = NetlinkSocket::open(NETLINK_ROUTE);
        Ok(Netlink { socket: socket.map_err(|error| explain(&error, "netlink"))? })
    }

    /// All links.
    ///
    /// # Errors
    /// If the list repeatedly changes while it is read.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        const TRIES: usize = 16;
        let mut tries = (0..TRIES).map(|_| {
            self.socket.request(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)
        });
        let is_settled = |result: &io::Result<_>| {
            result.as_ref().map_err(io::Error::kind).err() != Some(io::ErrorKind::Interrupted)
        };
        let replies = tries
            .find(is_settled)
            .unwrap_or_else(|| Err(io::ErrorKind::ResourceBusy.into()))
            .map_err(|error| explain(&error, "list links"))?;
        Ok(replies.into_iter().filter_map(as_link).collect())
    }

    /// One link.
    ///
    /// # Errors
    /// `NotFound` if no link has that name.
    pub fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.socket
            .request(RouteNetlinkMessage::GetLink(message), NLM_F_ACK)
            .and_then(|replies| {
                replies.into_iter().find_map(as_link).ok_or(io::ErrorKind::NotFound.into())
            })
            .map_err(|error| explain(&error, format_args!("link {name}")))
    }

    /// All addresses, each with the index of its link and the length of its prefix.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr, u8)>> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let replies = self
            .socket
            .request(message, NLM_F_DUMP)
            .map_err(|error| explain(&error, "list addresses"))?;
        Ok(replies.into_iter().filter_map(as_address).collect())
    }

    /// Changes a link, in one message.
    ///
    /// # Errors
    /// `NotFound` if no link has that name, otherwise the kernel's error for the first refused
    /// setting. It may have applied others.
    pub fn set(&mut self, name: &str, settings: &[LinkSetting<'_>]) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.link(name)?.index;
        for setting in settings {
            let attribute = match *setting {
                LinkSetting::Up | LinkSetting::Down => {
                    let is_up = matches!(setting, LinkSetting::Up);
                    message.header.flags.set(LinkFlags::Up, is_up);
                    message.header.change_mask |= LinkFlags::Up;
                    continue;
                }
                LinkSetting::Name(name) => LinkAttribute::IfName(name.to_owned()),
                LinkSetting::Carrier(is_on) => LinkAttribute::Carrier(is_on.into()),
                LinkSetting::Mtu(mtu) => LinkAttribute::Mtu(mtu),
                LinkSetting::Address(address) => LinkAttribute::Address(address.to_vec()),
                LinkSetting::Master(bridge) => LinkAttribute::Controller(self.link(bridge)?.index),
                LinkSetting::NoMaster => LinkAttribute::Controller(0),
                LinkSetting::GsoMaxSize(size) => LinkAttribute::GsoMaxSize(size),
                LinkSetting::TxQueueLen(len) => LinkAttribute::TxQueueLen(len),
                LinkSetting::Alias(alias) => LinkAttribute::IfAlias(alias.to_owned()),
                LinkSetting::NoLinkLocalAddress => {
                    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
                    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])])
                }
                LinkSetting::NetnsOf(pid) => LinkAttribute::NetNsPid(pid),
                LinkSetting::Netns(fd) => LinkAttribute::NetNsFd(fd.as_raw_fd()),
            };
            message.attributes.push(attribute);
        }
        self.change(RouteNetlinkMessage::SetLink(message), 0)
            .map_err(|error| explain(&error, format_args!("link {name}: set {settings:?}")))
    }

    /// Adds a pair of links; each receives what the other sends.
    ///
    /// # Errors
    /// `AlreadyExists` if a name is taken.
    pub fn add_veth(&mut self, name: &str, peer: &str) -> io::Result<()> {
        let mut other_end = LinkMessage::default();
        other_end.attributes.push(LinkAttribute::IfName(peer.to_owned()));
        let data = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other_end)));
        self.add_link(name, vec![LinkInfo::Kind(InfoKind::Veth), data])
            .map_err(|error| explain(&error, format_args!("link {name}: add veth to {peer}")))
    }

    /// Adds a bridge.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken.
    pub fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        self.add_link(name, vec![LinkInfo::Kind(InfoKind::Bridge)])
            .map_err(|error| explain(&error, format_args!("link {name}: add bridge")))
    }

    /// Deletes a link, and its other end if it is one of a pair.
    ///
    /// # Errors
    /// `NotFound` if no link has that name.
    pub fn delete(&mut self, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.link(name)?.index;
        self.change(RouteNetlinkMessage::DelLink(message), 0)
            .map_err(|error| explain(&error, format_args!("link {name}: delete")))
    }

    /// Gives a link an address. An IPv6 address can be bound at once: the caller guarantees that no
    /// one else has it, and the kernel skips its check for duplicates. The address is reachable a
    /// moment later.
    ///
    /// # Errors
    /// `NotFound` if there is no such link, `AlreadyExists` if it has the address.
    pub fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        let mut message = self.address_message(name, address, prefix_len)?;
        if address.is_ipv6() {
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL).map_err(
            |error| {
                explain(&error, format_args!("link {name}: add address {address}/{prefix_len}"))
            },
        )
    }

    /// Takes an address from a link.
    ///
    /// # Errors
    /// If there is no such link, or it does not have the address.
    pub fn remove_address(
        &mut self,
        name: &str,
        address: IpAddr,
        prefix_len: u8,
    ) -> io::Result<()> {
        let message = self.address_message(name, address, prefix_len)?;
        self.change(RouteNetlinkMessage::DelAddress(message), 0).map_err(|error| {
            explain(&error, format_args!("link {name}: remove address {address}/{prefix_len}"))
        })
    }

    /// Adds a route to `destination` over a link: through a gateway there, or without one directly.
    ///
    /// # Errors
    /// `NotFound` if there is no such link, `AlreadyExists` if there is such a route.
    pub fn add_route(
        &mut self,
        name: &str,
        destination: IpAddr,
        prefix_len: u8,
        gateway: Option<IpAddr>,
    ) -> io::Result<()> {
        let index = self.link(name)?.index;
        let scope = if gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(destination),
            destination_prefix_length: prefix_len,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let destination_attribute = RouteAttribute::Destination(RouteAddress::from(destination));
        message.attributes = vec![destination_attribute, RouteAttribute::Oif(index)];
        message
            .attributes
            .extend(gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::from(gateway))));
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL).map_err(
            |error| explain(&error, format_args!("link {name}: route {destination}/{prefix_len}")),
        )
    }

    /// Adds a default route through a gateway on a link.
    ///
    /// # Errors
    /// As [`add_route`](Netlink::add_route).
    pub fn add_default_route(&mut self, name: &str, gateway: IpAddr) -> io::Result<()> {
        let anywhere = match gateway {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        self.add_route(name, anywhere, 0, Some(gateway))
    }

    fn address_message(
        &mut self,
        name: &str,
        address: IpAddr,
        prefix_len: u8,
    ) -> io::Result<AddressMessage> {
        let mut message = AddressMessage::default();
        message.header.index = self.link(name)?.index;
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        Ok(message)
    }

    fn add_link(&mut self, name: &str, info: Vec<LinkInfo>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes =
            vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(info)];
        self.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.socket.request(message, NLM_F_ACK | flags).map(drop)
    }
}

fn as_address(message: RouteNetlinkMessage) -> Option<(u32, IpAddr, u8)> {
    let RouteNetlinkMessage::NewAddress(message) = message else { return None };
    let (index, len) = (message.header.index, message.header.prefix_len);
    let found = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    // On a link between two ends, the other attribute is the address of the far one. IPv6 has no
    // local attribute.
    Some((index, found(true).or_else(|| found(false))?, len))
}

fn as_link(message: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else { return None };
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: None,
        is_up: message.header.flags.contains(LinkFlags::Up),
        address: None,
        mtu: 0,
        master: None,
        gso_max_size: 0,
        tx_queue_len: 0,
        alias: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(address) => link.address = address.try_into().ok(),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::GsoMaxSize(size) => link.gso_max_size = size,
            LinkAttribute::TxQueueLen(len) => link.tx_queue_len = len,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
            LinkAttribute::LinkInfo(info) => {
                link.kind = info.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(link)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// An error together with its link and operation.
fn explain(error: &io::Error, what: impl Display) -> io::Error {
    // The kernel's error for a missing link has no kind in the standard library.
    let is_missing = error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error());
    let kind = if is_missing { io::ErrorKind::NotFound } else { error.kind() };
    io::Error::new(kind, format!("{what}: {error}"))
}
