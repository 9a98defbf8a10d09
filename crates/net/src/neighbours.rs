//! Neighbours and forwarding databases, and the kernel's announcements of their changes.

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::socket::NetlinkSocket;

/// The kernel's `RTNLGRP_NEIGH`.
const GROUP: u32 = 3;
/// Space for some thousand announcements between two reads.
const BUFFER_BYTES: u32 = 4 << 20;
/// Bytes of an Ethernet address.
const MAC_LEN: usize = 6;

/// An entry that the kernel learned: where an address is. Entries that an administrator made, and
/// those of this host itself, are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learned {
    /// The Ethernet address of a neighbour.
    Neighbour {
        /// Its address.
        address: IpAddr,
        /// Index of the interface behind which it is.
        nic: u32,
        /// Its Ethernet address.
        mac: [u8; MAC_LEN],
    },
    /// The port of a bridge behind which an Ethernet address is.
    Port {
        /// The address.
        mac: [u8; MAC_LEN],
        /// Index of the bridge.
        bridge: u32,
        /// The VLAN, if the bridge filters by VLAN.
        vlan: Option<u16>,
        /// Index of the port.
        port: u32,
    },
    /// The other end of a tunnel (VXLAN) behind which an Ethernet address is.
    TunnelEnd {
        /// The address.
        mac: [u8; MAC_LEN],
        /// Index of the tunnel's interface.
        nic: u32,
        /// The network in the tunnel, if it has several.
        vni: Option<u32>,
        /// The other end.
        end: IpAddr,
    },
}

impl Learned {
    /// What a message of the kernel says; `None` if it says nothing of this kind.
    fn of(message: &NeighbourMessage) -> Option<Learned> {
        let header = &message.header;
        let is_ours = matches!(header.state, NeighbourState::Permanent | NeighbourState::Noarp);
        if header.flags.contains(NeighbourFlags::Proxy) {
            return None;
        }
        let (mut mac, mut to, mut bridge, mut vlan, mut vni) = (None, None, None, None, None);
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    mac = <[u8; MAC_LEN]>::try_from(bytes.as_slice()).ok();
                }
                NeighbourAttribute::Destination(address) => to = ip(address),
                NeighbourAttribute::Controller(index) => bridge = Some(*index),
                NeighbourAttribute::Vlan(id) => vlan = Some(*id),
                NeighbourAttribute::Vni(id) => vni = Some(*id),
                _ => {}
            }
        }
        let (mac, nic) = (mac?, header.ifindex);
        match (header.family, bridge, to) {
            (AddressFamily::Inet | AddressFamily::Inet6, _, Some(address)) if !is_ours => {
                Some(Learned::Neighbour { address, nic, mac })
            }
            (AddressFamily::Bridge, _, Some(end)) if !is_ours => {
                Some(Learned::TunnelEnd { mac, nic, vni, end })
            }
            (AddressFamily::Bridge, Some(bridge), None) if !is_ours => {
                Some(Learned::Port { mac, bridge, vlan, port: nic })
            }
            _ => None,
        }
    }
}

fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        NeighbourAddress::Other(bytes) => {
            let short = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
            short.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from)).ok()
        }
        _ => None,
    }
}

/// Passes on all entries of a network namespace, as long as `each` continues.
///
/// # Errors
/// The kernel's error.
pub fn learned(mut each: impl FnMut(Learned) -> ControlFlow<()>) -> io::Result<()> {
    for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge] {
        let mut request = NeighbourMessage::default();
        request.header.family = family;
        // A socket of its own for each: one that is dropped early has replies left.
        let mut socket = NetlinkSocket::open(NETLINK_ROUTE)?;
        let request = RouteNetlinkMessage::GetNeighbour(request);
        let dumped = socket.request_each(request, NLM_F_DUMP, |reply| match reply {
            RouteNetlinkMessage::NewNeighbour(message) => {
                Learned::of(&message).map_or(ControlFlow::Continue(()), &mut each)
            }
            _ => ControlFlow::Continue(()),
        });
        match dumped {
            // The table changed while it was read; the changes are announced.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => other?,
        }
    }
    Ok(())
}

/// Receives the changes of the tables of one network namespace.
#[derive(Debug)]
pub struct Announcements {
    socket: NetlinkSocket,
}

impl Announcements {
    /// Changes from now on, in the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Announcements> {
        let socket = NetlinkSocket::subscribe(NETLINK_ROUTE, &[GROUP], BUFFER_BYTES)?;
        Ok(Announcements { socket })
    }

    /// Passes on what arrived, in order.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is left; another error if some were lost.
    pub fn read_each(&mut self, mut each: impl FnMut(Learned)) -> io::Result<()> {
        self.socket.receive_each(|message| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                Learned::of(&message).into_iter().for_each(&mut each);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: AddressFamily, attributes: &[NeighbourAttribute]) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        message.header.ifindex = 7;
        message.header.state = NeighbourState::Reachable;
        message.attributes = attributes.to_vec();
        message
    }

    #[test]
    fn neighbours_ports_and_tunnel_ends_are_distinguished() {
        let mac = NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]);
        let to = NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 98, 0, 2].into()));
        let neighbour = message(AddressFamily::Inet, &[mac.clone(), to]);
        let expected =
            Learned::Neighbour { address: [10, 98, 0, 2].into(), nic: 7, mac: [2, 0, 0, 0, 0, 1] };
        assert_eq!(Learned::of(&neighbour), Some(expected));
        let mut fixed = neighbour.clone();
        fixed.header.state = NeighbourState::Permanent;
        assert_eq!(Learned::of(&fixed), None);
        assert_eq!(Learned::of(&message(AddressFamily::Inet, std::slice::from_ref(&mac))), None);

        let bridge = NeighbourAttribute::Controller(3);
        let port = Learned::of(&message(AddressFamily::Bridge, &[mac.clone(), bridge]));
        assert!(matches!(port, Some(Learned::Port { bridge: 3, port: 7, vlan: None, .. })));
        let end = NeighbourAttribute::Destination(NeighbourAddress::Other(vec![10, 98, 0, 9]));
        let end = Learned::of(&message(AddressFamily::Bridge, &[mac, end]));
        assert!(matches!(end, Some(Learned::TunnelEnd { nic: 7, vni: None, .. })));
        let other = NeighbourAttribute::LinkLayerAddress(vec![1; 20]);
        assert_eq!(Learned::of(&message(AddressFamily::Bridge, &[other])), None);
    }
}
