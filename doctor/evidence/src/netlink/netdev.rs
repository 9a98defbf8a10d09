//! The kernel's netdev family: packets and bytes of each queue of an interface.
//!
//! Linux has them since 6.9, from drivers that support it. Some of these, such as `virtio_net` of
//! Linux 6.12, no longer have them in `ethtool -S`. The numbers are from `linux/netdev.h`.

use std::io;

use netlink_packet_core::{DecodeError, NLM_F_DUMP, parse_u32, parse_u64};
use nix::net::if_::if_nametoindex;
use ringway_net::generic::{Family, Message, Named, invalid};

use super::{QSTATS, file};

#[derive(Debug)]
struct Netdev;

impl Named for Netdev {
    const NAME: &'static str = "netdev";
}

/// The resolved family.
#[derive(Debug)]
pub(crate) struct Qstats(Family<Netdev>);

/// `NETDEV_CMD_QSTATS_GET`.
const QSTATS_GET: u8 = 12;
/// `NETDEV_A_QSTATS_IFINDEX`, and so on: the interface, the kind of the queue, its number.
const IFINDEX: u16 = 1;
const QUEUE_TYPE: u16 = 2;
const QUEUE_ID: u16 = 3;
/// What a reply is about, and the value for a single queue: `NETDEV_QSTATS_SCOPE_QUEUE`.
const SCOPE: u16 = 4;
const SCOPE_QUEUE: u32 = 1;
/// The counters of each `enum netdev_queue_type`, from 0 on: its name, and the attributes.
const DIRECTIONS: [(&str, [Counter; 2]); 2] =
    [("rx", [("packets", 8), ("bytes", 9)]), ("tx", [("packets", 10), ("bytes", 11)])];

/// The name of a counter, and its attribute.
type Counter = (&'static str, u16);

impl Qstats {
    /// Resolves the family.
    ///
    /// # Errors
    /// `NotFound` if the kernel has none.
    pub(crate) fn open() -> io::Result<Qstats> {
        Family::open().map(Qstats)
    }

    /// Queries the counters of an interface's queues, as a file of the record.
    ///
    /// # Errors
    /// `Unsupported` if the kernel or the driver has none, `NotFound` if no queue is in use, as
    /// when the interface is down; else the kernel's error.
    pub(crate) fn ask(&mut self, nic: &str) -> io::Result<String> {
        let index = if_nametoindex(nic)?;
        let attributes = vec![
            (IFINDEX, index.to_ne_bytes().to_vec()),
            (SCOPE, SCOPE_QUEUE.to_ne_bytes().to_vec()),
        ];
        let replies = self.0.request(Message::new(QSTATS_GET, attributes), NLM_F_DUMP)?;
        let mut lines = Vec::new();
        for reply in &replies {
            lines.extend(counters(reply).map_err(invalid)?);
        }
        if lines.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file(format_args!("{QSTATS} of {nic}: {}", lines.len()), &lines))
    }
}

/// The counters of one queue, one per line.
fn counters(reply: &Message<Netdev>) -> Result<Vec<String>, DecodeError> {
    let read = |kind: u16| reply.get(kind).map(number).transpose();
    let (Some(kind), Some(queue)) = (read(QUEUE_TYPE)?, read(QUEUE_ID)?) else {
        return Err("expected a queue".into());
    };
    // A later kernel may have other kinds of queues.
    let known = usize::try_from(kind).ok().and_then(|kind| DIRECTIONS.get(kind));
    let Some((direction, known)) = known else { return Ok(Vec::new()) };
    let mut lines = Vec::new();
    for (name, kind) in known {
        lines.extend(read(*kind)?.map(|count| format!("{direction}-{queue} {name}: {count}")));
    }
    Ok(lines)
}

/// A number of 4 bytes or, if it does not fit, of 8.
fn number(value: &[u8]) -> Result<u64, DecodeError> {
    if value.len() == 4 { parse_u32(value).map(u64::from) } else { parse_u64(value) }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{Emitable, ParseableParametrized};
    use netlink_packet_generic::GenlHeader;
    use ringway_net::generic::attribute;

    use super::*;

    /// Attributes of both replies of Linux 6.18 for a `virtio_net` with one queue, on x86-64.
    const RX: [u8; 40] = [
        8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, 8, 0, 8, 0, 0x2a,
        0xef, 0, 0, 8, 0, 9, 0, 0xaf, 0x7b, 0xf1, 0x95,
    ];
    const TX: [u8; 56] = [
        8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 2, 0, 1, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, 8, 0, 10, 0, 0xfd,
        0x84, 0, 0, 8, 0, 11, 0, 0xf5, 0xf7, 0x28, 0, 8, 0, 33, 0, 0, 0, 0, 0, 8, 0, 34, 0, 0, 0,
        0, 0,
    ];

    fn read(bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
        let header = GenlHeader { cmd: QSTATS_GET, version: 1 };
        counters(&Message::parse_with_param(bytes, header)?)
    }

    fn reply(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let all = attributes.iter().map(|(kind, value)| attribute(*kind, value));
        let all: Vec<_> = all.collect();
        let mut bytes = vec![0; all.as_slice().buffer_len()];
        all.as_slice().emit(&mut bytes);
        bytes
    }

    #[test]
    fn counters_of_queues_are_read_from_the_bytes_of_a_kernel() {
        assert_eq!(read(&RX).expect("sound"), ["rx-0 packets: 61226", "rx-0 bytes: 2515631023"]);
        assert_eq!(read(&TX).expect("sound"), ["tx-0 packets: 34045", "tx-0 bytes: 2684917"]);
    }

    #[test]
    fn large_counters_have_eight_bytes_and_some_are_not_there() {
        let (tx, queue) = (1_u32.to_ne_bytes(), 3_u32.to_ne_bytes());
        let bytes = (1_u64 << 40).to_ne_bytes();
        let large = reply(&[(QUEUE_TYPE, &tx), (QUEUE_ID, &queue), (11, &bytes)]);
        assert_eq!(read(&large).expect("sound"), ["tx-3 bytes: 1099511627776"]);
        let other = reply(&[(QUEUE_TYPE, &queue), (QUEUE_ID, &queue), (11, &bytes)]);
        assert!(read(&other).expect("another kind of queue").is_empty());
    }

    #[test]
    fn a_reply_without_a_queue_or_with_odd_numbers_is_refused() {
        let zero = [0; 4];
        assert!(read(&reply(&[(QUEUE_TYPE, &zero), (9, &zero)])).is_err());
        assert!(read(&reply(&[(QUEUE_TYPE, &zero), (QUEUE_ID, &zero), (9, &[1, 2, 3])])).is_err());
        for end in 0..TX.len() {
            // A part has fewer counters or is refused.
            let _ = read(&TX[..end]);
        }
    }
}
