//! The kernel's ethtool family: features, channels, rings and coalescing of an interface.
//!
//! The crate `ethtool` is not used: it loses feature 0, which is scatter-gather, and requires an
//! async runtime. Instead, this file has the numbers of attributes from `linux/ethtool_netlink.h`.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{
    DecodeError, Emitable, NLA_F_NESTED, NLM_F_ACK, NlasIterator, parse_string, parse_u8, parse_u32,
};
use ringway_net::generic::{self, Family, Named, attribute, invalid};

use super::{NicSettings, file};

#[derive(Debug)]
struct Name;

impl Named for Name {
    const NAME: &'static str = "ethtool";
}

type Message = generic::Message<Name>;

/// The resolved family.
#[derive(Debug)]
pub(crate) struct Ethtool(Family<Name>);

impl Ethtool {
    /// Resolves the family.
    ///
    /// # Errors
    /// `NotFound` if the kernel has none.
    pub(crate) fn open() -> io::Result<Ethtool> {
        Family::open().map(Ethtool)
    }

    /// Queries some settings of an interface, as a file of the record.
    ///
    /// # Errors
    /// `Unsupported` if the driver has none; else the kernel's error.
    pub(crate) fn ask(&mut self, nic: &str, settings: NicSettings) -> io::Result<String> {
        let header = attribute(HEADER_DEV_NAME, &[nic.as_bytes(), b"\0"].concat());
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        let question = Message::new(command(settings), vec![(HEADER | NLA_F_NESTED, bytes)]);
        let replies = self.0.request(question, NLM_F_ACK)?;
        let reply = replies.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        let lines = match settings {
            NicSettings::Features => features(&reply),
            NicSettings::Channels => numbers(&reply, &CHANNELS),
            NicSettings::Rings => numbers(&reply, &RINGS),
            NicSettings::Coalescing => numbers(&reply, &COALESCING),
        };
        let lines = lines.map_err(invalid)?;
        Ok(file(format_args!("{} of {nic}: {}", settings.name(), lines.len()), &lines))
    }
}

fn command(settings: NicSettings) -> u8 {
    match settings {
        NicSettings::Features => 11,
        NicSettings::Rings => 15,
        NicSettings::Channels => 17,
        NicSettings::Coalescing => 19,
    }
}

/// The header attribute of every request, and the interface name in it.
const HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;

/// A number of a driver: its name in `ethtool`, its attribute, and that of its maximum if it has
/// one.
type Number = (&'static str, u16, Option<u16>);

const CHANNELS: [Number; 4] =
    [("rx", 6, Some(2)), ("tx", 7, Some(3)), ("other", 8, Some(4)), ("combined", 9, Some(5))];

const RINGS: [Number; 10] = [
    ("rx", 6, Some(2)),
    ("rx mini", 7, Some(3)),
    ("rx jumbo", 8, Some(4)),
    ("tx", 9, Some(5)),
    ("rx buf len", 10, None),
    ("tcp data split", 11, None),
    ("cqe size", 12, None),
    ("tx push", 13, None),
    ("rx push", 14, None),
    ("tx push buff len", 15, Some(16)),
];

const COALESCING: [Number; 24] = [
    ("rx-usecs", 2, None),
    ("rx-frames", 3, None),
    ("rx-usecs-irq", 4, None),
    ("rx-frames-irq", 5, None),
    ("tx-usecs", 6, None),
    ("tx-frames", 7, None),
    ("tx-usecs-irq", 8, None),
    ("tx-frames-irq", 9, None),
    ("stats-block-usecs", 10, None),
    ("adaptive rx", 11, None),
    ("adaptive tx", 12, None),
    ("pkt-rate-low", 13, None),
    ("rx-usecs-low", 14, None),
    ("rx-frame-low", 15, None),
    ("tx-usecs-low", 16, None),
    ("tx-frame-low", 17, None),
    ("pkt-rate-high", 18, None),
    ("rx-usecs-high", 19, None),
    ("rx-frame-high", 20, None),
    ("tx-usecs-high", 21, None),
    ("tx-frame-high", 22, None),
    ("sample-interval", 23, None),
    ("cqe mode tx", 24, None),
    ("cqe mode rx", 25, None),
];

/// Those numbers that the driver has, one per line.
fn numbers(reply: &Message, table: &[Number]) -> Result<Vec<String>, DecodeError> {
    let mut lines = Vec::new();
    for (name, current, maximum) in table {
        let read = |kind: u16| reply.get(kind).map(number).transpose();
        lines.extend(read(*current)?.map(|number| format!("{name}: {number}")));
        let maximum = maximum.map(read).transpose()?.flatten();
        lines.extend(maximum.map(|number| format!("{name} max: {number}")));
    }
    Ok(lines)
}

fn number(value: &[u8]) -> Result<u32, DecodeError> {
    if value.len() == 1 { parse_u8(value).map(u32::from) } else { parse_u32(value) }
}

/// Sets of features: changeable, requested, active, and fixed.
const FEATURES_HW: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const FEATURES_NOCHANGE: u16 = 5;
/// The attributes of a set and of a feature in it.
const BITSET_NOMASK: u16 = 1;
const BITSET_BITS: u16 = 3;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// Every feature that the kernel knows, with the state that `ethtool -k` shows.
fn features(reply: &Message) -> Result<Vec<String>, DecodeError> {
    let set = |kind: u16| bitset(reply.get(kind).unwrap_or_default());
    let (hw, wanted) = (set(FEATURES_HW)?, set(FEATURES_WANTED)?);
    let (active, nochange) = (set(FEATURES_ACTIVE)?, set(FEATURES_NOCHANGE)?);
    let line = |name: &String| {
        let word = |is_on: bool| if is_on { "on" } else { "off" };
        let (is_on, is_wanted) = (active.on.contains(name), wanted.on.contains(name));
        let why = match (hw.on.contains(name) && !nochange.on.contains(name), is_on == is_wanted) {
            (false, _) => " [fixed]".to_owned(),
            (true, true) => String::new(),
            (true, false) => format!(" [requested {}]", word(is_wanted)),
        };
        format!("{name}: {}{why}", word(is_on))
    };
    // Its mask has all of them, in the kernel's order.
    Ok(hw.known.iter().map(line).collect())
}

/// A set of features by name.
#[derive(Debug, Default)]
struct Bitset {
    known: Vec<String>,
    on: BTreeSet<String>,
}

fn bitset(bytes: &[u8]) -> Result<Bitset, DecodeError> {
    let mut set = Bitset::default();
    let mut has_mask = true;
    for nla in NlasIterator::new(bytes) {
        let nla = nla?;
        match nla.kind() {
            BITSET_NOMASK => has_mask = false,
            BITSET_BITS => {
                for bit in NlasIterator::new(nla.value()) {
                    let (name, has_value) = bit_of(bit?.value())?;
                    // Some bits no longer have a name.
                    if !name.is_empty() {
                        if has_value || !has_mask {
                            set.on.insert(name.clone());
                        }
                        set.known.push(name);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(set)
}

fn bit_of(bytes: &[u8]) -> Result<(String, bool), DecodeError> {
    let (mut name, mut has_value) = (String::new(), false);
    for nla in NlasIterator::new(bytes) {
        let nla = nla?;
        match nla.kind() {
            BIT_NAME => name = parse_string(nla.value())?,
            BIT_VALUE => has_value = true,
            _ => {}
        }
    }
    Ok((name, has_value))
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DefaultNla, ParseableParametrized};
    use netlink_packet_generic::GenlHeader;

    use super::*;

    fn nested(kind: u16, parts: &[DefaultNla]) -> DefaultNla {
        let mut bytes = vec![0; parts.buffer_len()];
        parts.emit(&mut bytes);
        attribute(kind | NLA_F_NESTED, &bytes)
    }

    fn bit(name: &str, has_value: bool) -> DefaultNla {
        let mut parts = vec![attribute(BIT_NAME, &[name.as_bytes(), b"\0"].concat())];
        parts.extend(has_value.then(|| attribute(BIT_VALUE, &[])));
        nested(1, &parts)
    }

    fn set(kind: u16, bits: &[DefaultNla]) -> DefaultNla {
        nested(kind, &[attribute(BITSET_NOMASK, &[]), nested(BITSET_BITS, bits)])
    }

    fn message(parts: &[DefaultNla]) -> Result<Message, DecodeError> {
        let mut bytes = vec![0; parts.buffer_len()];
        parts.emit(&mut bytes);
        Message::parse_with_param(&bytes, GenlHeader { cmd: 11, version: 1 })
    }

    #[test]
    fn a_feature_is_said_as_the_tool_says_it() {
        let all = [bit("a", true), bit("b", true), bit("c", false), bit("d", true), bit("", true)];
        let reply = message(&[
            nested(FEATURES_HW, &[nested(BITSET_BITS, &all)]),
            set(FEATURES_WANTED, &[bit("a", false), bit("b", false)]),
            set(FEATURES_ACTIVE, &[bit("a", false), bit("c", false), bit("d", false)]),
            set(FEATURES_NOCHANGE, &[bit("d", false)]),
        ]);
        let lines = features(&reply.expect("sound")).expect("sound");
        assert_eq!(lines, ["a: on", "b: off [requested on]", "c: on [fixed]", "d: on [fixed]"]);
    }

    #[test]
    fn numbers_have_their_maximum_beside_them() {
        let parts = [attribute(9, &2_u32.to_ne_bytes()), attribute(5, &8_u32.to_ne_bytes())];
        let reply = message(&parts).expect("sound");
        let lines = numbers(&reply, &CHANNELS).expect("sound");
        assert_eq!(lines, ["combined: 2", "combined max: 8"]);
        let odd = message(&[attribute(9, &[1, 2, 3])]).expect("sound");
        assert!(numbers(&odd, &CHANNELS).is_err());
    }
}
