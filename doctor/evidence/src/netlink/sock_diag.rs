//! The kernel's sock_diag family, as far as it lists TCP sockets.
//!
//! The crate `netlink-packet-sock-diag` is not used: it needs a newer Rust than ours, and refuses
//! structures of older kernels. Instead, this file has the layouts of `linux/inet_diag.h`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NetlinkDeserializable, NetlinkHeader, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use ringway_net::socket::NetlinkSocket;

/// States of a socket, each a bit.
pub(super) const ESTABLISHED: u32 = 1 << 1;
pub(super) const CLOSE: u32 = 1 << 7;
pub(super) const LISTEN: u32 = 1 << 10;
/// All from `ESTABLISHED` to `CLOSING`.
pub(super) const ALL: u32 = 0xffe;

/// Attributes of a reply. Each is requested by a bit, of which the first one's is 1.
pub(super) const INFO: u16 = 2;
pub(super) const CONGESTION: u16 = 4;
pub(super) const MEMORY: u16 = 7;

/// How long one family of addresses may take.
const TIME_MAX: Duration = Duration::from_secs(2);
/// The message type of requests and replies: `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const INET: u8 = 2;
const INET6: u8 = 10;
const TCP: u8 = 6;
/// `struct inet_diag_req_v2`, and `struct inet_diag_msg`, which attributes follow.
const REQUEST_LEN: usize = 56;
const REPLY_LEN: usize = 72;

/// A socket. Of one that listens, `recv_queue` is how many connections wait, and `send_queue` how
/// many may.
#[derive(Debug)]
pub(super) struct TcpSocket {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) recv_queue: u64,
    pub(super) send_queue: u64,
    pub(super) inode: u64,
    attributes: Vec<(u16, Vec<u8>)>,
}

impl TcpSocket {
    /// An attribute; empty if the kernel has not sent it.
    pub(super) fn attribute(&self, kind: u16) -> &[u8] {
        let found = self.attributes.iter().find(|(one, _)| *one == kind);
        found.map_or(&[], |(_, value)| value)
    }

    fn parse(bytes: &[u8]) -> Result<TcpSocket, DecodeError> {
        let (head, rest) = bytes
            .split_at_checked(REPLY_LEN)
            .ok_or_else(|| DecodeError::buffer_too_small(bytes.len(), REPLY_LEN))?;
        let attributes = NlasIterator::new(rest)
            .map(|nla| nla.map(|nla| (nla.kind(), nla.value().to_vec())))
            .collect::<Result<_, _>>()?;
        let word = |at| number(head, at, 4).unwrap_or_default();
        Ok(TcpSocket {
            local: end(head, 4, 8),
            peer: end(head, 6, 24),
            recv_queue: word(56),
            send_queue: word(60),
            inode: word(68),
            attributes,
        })
    }
}

/// The address and port at these offsets.
fn end(head: &[u8], port_at: usize, at: usize) -> SocketAddr {
    let mut address = [0; 16];
    address.copy_from_slice(&head[at..at + 16]);
    let [a, b, c, d, ..] = address;
    let ip = if head[0] == INET6 { IpAddr::from(address) } else { IpAddr::from([a, b, c, d]) };
    SocketAddr::new(ip, u16::from_be_bytes([head[port_at], head[port_at + 1]]))
}

/// An unsigned number of the kernel, if its structure is as long as that.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    let mut wide = [0; 8];
    wide[..len].copy_from_slice(bytes);
    Some(u64::from_le_bytes(wide))
}

/// Passes on each TCP socket in some states, of both families, with some attributes. Returns
/// whether time was up before all were seen.
///
/// # Errors
/// The kernel's error: `NotFound` if it was built without sock_diag.
pub(super) fn each(
    states: u32,
    attributes: &[u16],
    mut take: impl FnMut(&TcpSocket),
) -> io::Result<bool> {
    let mut is_late = false;
    for family in [INET, INET6] {
        let mut request = [0; REQUEST_LEN];
        let extensions = attributes.iter().fold(0, |bits, kind| bits | 1 << (kind - 1));
        request[..4].copy_from_slice(&[family, TCP, extensions, 0]);
        request[4..8].copy_from_slice(&states.to_le_bytes());
        let deadline = Instant::now() + TIME_MAX;
        // A separate socket for each family: closing it discards replies that are left when time is
        // up.
        let mut socket = NetlinkSocket::open(NETLINK_SOCK_DIAG)?;
        socket.request_each(Message::Request(request), NLM_F_DUMP, |reply| {
            if let Message::Reply(socket) = reply {
                take(&socket);
            }
            let is_over = Instant::now() > deadline;
            is_late |= is_over;
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    Ok(is_late)
}

#[derive(Debug)]
enum Message {
    Request([u8; REQUEST_LEN]),
    Reply(TcpSocket),
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST_LEN
    }

    fn serialize(&self, buffer: &mut [u8]) {
        if let Message::Request(request) = self {
            buffer[..REQUEST_LEN].copy_from_slice(request);
        }
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Message, DecodeError> {
        TcpSocket::parse(payload).map(Message::Reply)
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> NetlinkPayload<Message> {
        NetlinkPayload::InnerMessage(message)
    }
}
