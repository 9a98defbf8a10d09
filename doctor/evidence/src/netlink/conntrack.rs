//! Which ports a NAT uses, from the kernel's table of tracked connections (ctnetlink).
//!
//! The layouts are those of the kernel's headers of nfnetlink and of its part for connections.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NetlinkDeserializable, NetlinkHeader, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use ringway_net::socket::NetlinkSocket;

use super::file;

/// How long the table may take: it may have a million entries.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Destinations that are recorded: those with the most ports.
const RECORDED_MAX: usize = 16;
/// The subsystem of connection tracking and its request for entries.
const GET: u16 = (1 << 8) | 1;
/// `struct nfgenmsg`: the family of addresses, or 0 for all, and nothing else here.
const HEAD_LEN: usize = 4;
/// Attributes of an entry, and within a tuple, its addresses and its ports.
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const PROTO_NUM: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// Sources and destinations, of IPv4 and of IPv6.
const SOURCES: [u16; 2] = [1, 3];
const DESTINATIONS: [u16; 2] = [2, 4];

/// One direction of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tuple {
    protocol: u8,
    source: SocketAddr,
    destination: SocketAddr,
}

/// The ports that one address uses for one destination.
#[derive(Debug, Clone, Copy)]
struct Used {
    count: u64,
    first: u16,
    last: u16,
    is_translated: bool,
}

/// The destinations to which translated connections use the most ports, as a file of the record:
/// the protocol, the address in place of the source, the destination, how many ports are used, and
/// the first and the last of them.
///
/// # Errors
/// The kernel's error: without the privilege to administer the network it refuses.
pub(crate) fn translations() -> io::Result<String> {
    let mut used: BTreeMap<(u8, IpAddr, SocketAddr), Used> = BTreeMap::new();
    let deadline = Instant::now() + TIME_MAX;
    let mut is_late = false;
    let mut socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
    socket.request_each(Message::Request, NLM_F_DUMP, |reply| {
        if let Message::Entry(Some([orig, reply])) = reply {
            take(&mut used, orig, reply);
        }
        is_late = Instant::now() > deadline;
        if is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let mut all: Vec<_> = used.into_iter().filter(|(_, used)| used.is_translated).collect();
    all.sort_by_key(|(_, used)| std::cmp::Reverse(used.count));
    all.truncate(RECORDED_MAX);
    let lines: Vec<String> = all
        .iter()
        .map(|((protocol, source, destination), Used { count, first, last, .. })| {
            format!("{protocol} {source} {destination} {count} {first} {last}")
        })
        .collect();
    let more = if is_late { " or more" } else { "" };
    Ok(file(format_args!("translations: {}{more}", lines.len()), &lines))
}

/// Adds an entry: replies go to the port that is used.
fn take(
    used: &mut BTreeMap<(u8, IpAddr, SocketAddr), Used>,
    orig: Tuple,
    Tuple { protocol, source: server, destination: own }: Tuple,
) {
    let port = own.port();
    let none = Used { count: 0, first: port, last: port, is_translated: false };
    let one = used.entry((protocol, own.ip(), server)).or_insert(none);
    one.count += 1;
    (one.first, one.last) = (one.first.min(port), one.last.max(port));
    one.is_translated |= orig.source != own;
}

#[derive(Debug)]
enum Message {
    Request,
    /// Both directions of an entry; none if it has no ports.
    Entry(Option<[Tuple; 2]>),
}

fn tuple(bytes: &[u8]) -> Option<Tuple> {
    let part = |bytes: &[u8], kinds: &[u16]| -> Option<Vec<u8>> {
        let found = NlasIterator::new(bytes).flatten().find(|one| kinds.contains(&one.kind()))?;
        Some(found.value().to_vec())
    };
    let (ip, proto) = (part(bytes, &[TUPLE_IP])?, part(bytes, &[TUPLE_PROTO])?);
    let address = |kinds: &[u16]| {
        let bytes = part(&ip, kinds)?;
        let long = || <[u8; 16]>::try_from(bytes.as_slice()).ok().map(IpAddr::from);
        <[u8; 4]>::try_from(bytes.as_slice()).ok().map(IpAddr::from).or_else(long)
    };
    let port = |kind| {
        let bytes: [u8; 2] = part(&proto, &[kind])?.as_slice().try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    Some(Tuple {
        protocol: *part(&proto, &[PROTO_NUM])?.first()?,
        source: SocketAddr::new(address(&SOURCES)?, port(SOURCE_PORT)?),
        destination: SocketAddr::new(address(&DESTINATIONS)?, port(DESTINATION_PORT)?),
    })
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        GET
    }

    fn buffer_len(&self) -> usize {
        HEAD_LEN
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEAD_LEN].fill(0);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Message, DecodeError> {
        let (_, rest) = payload
            .split_at_checked(HEAD_LEN)
            .ok_or_else(|| DecodeError::buffer_too_small(payload.len(), HEAD_LEN))?;
        let of = |kind| {
            let found = NlasIterator::new(rest).flatten().find(|one| one.kind() == kind)?;
            tuple(found.value())
        };
        Ok(Message::Entry(of(TUPLE_ORIG).zip(of(TUPLE_REPLY)).map(<[Tuple; 2]>::from)))
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> NetlinkPayload<Message> {
        NetlinkPayload::InnerMessage(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute with its length, its type and what it holds.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn direction(kind: u16, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        const NESTED: u16 = 1 << 15;
        let ip = [attribute(1, &from.0), attribute(2, &to.0)].concat();
        let ports = [
            attribute(PROTO_NUM, &[6]),
            attribute(SOURCE_PORT, &from.1.to_be_bytes()),
            attribute(DESTINATION_PORT, &to.1.to_be_bytes()),
        ]
        .concat();
        let tuple = [attribute(TUPLE_IP | NESTED, &ip), attribute(TUPLE_PROTO | NESTED, &ports)];
        attribute(kind | NESTED, &tuple.concat())
    }

    #[test]
    fn an_entry_shows_the_port_that_stands_for_the_source() {
        let (client, server, own) = ([10, 0, 0, 7], ([192, 0, 2, 9], 443), [198, 51, 100, 1]);
        let mut used = BTreeMap::new();
        for (port, own_port) in [(40_000, 1024), (40_001, 1026), (1025, 1025)] {
            let message = [
                vec![2, 0, 0, 0],
                direction(TUPLE_ORIG, (client, port), server),
                direction(TUPLE_REPLY, server, (own, own_port)),
            ];
            let read = Message::deserialize(&NetlinkHeader::default(), &message.concat());
            let Ok(Message::Entry(Some([orig, reply]))) = read else { panic!("{read:?}") };
            take(&mut used, orig, reply);
        }
        let (key, Used { count, first, last, is_translated }) = used.pop_first().expect("one");
        assert_eq!(key, (6, own.into(), server.into()));
        assert_eq!((count, first, last, is_translated), (3, 1024, 1026, true));
        assert!(used.is_empty());
        let none = Message::deserialize(&NetlinkHeader::default(), &[2, 0, 0, 0]);
        assert!(matches!(none, Ok(Message::Entry(None))), "{none:?}");
        assert!(Message::deserialize(&NetlinkHeader::default(), &[2]).is_err());
    }
}
