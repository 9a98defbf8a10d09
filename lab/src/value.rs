//! Parameters, their values, and cells of a matrix.

use std::collections::BTreeMap;
use std::fmt;

use ringway_units::Rate;
use serde::{Deserialize, Serialize};

use crate::word::{
    Attached, Direction, Driver, Encapsulation, GuestCpus, Layout, Offloads, Peers, Placement,
    Policy, Sender, Tool, names,
};

/// A value of a parameter: a count, or one of a few words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count, such as 4 queues.
    Number(u64),
    /// A word, such as `ideal`.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

/// One point of a matrix: a value for each axis. Also the parameters that a study fixes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cell(pub BTreeMap<String, Value>);

impl Cell {
    /// The value of a parameter, if the cell has it.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The value of a parameter that is a count.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        }
    }

    /// The value of a parameter that is a word.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            Value::Number(_) => None,
        }
    }

    /// Whether this cell has every value of `part`.
    pub fn matches(&self, part: &Cell) -> bool {
        part.0.iter().all(|(name, value)| self.get(name) == Some(value))
    }

    /// This cell with another value for one parameter.
    #[must_use]
    pub fn with(&self, name: &str, value: impl Into<Value>) -> Cell {
        let mut cell = self.clone();
        cell.0.insert(name.to_owned(), value.into());
        cell
    }

    /// This cell with the values of `other`, which take precedence over its own.
    #[must_use]
    pub fn overlaid(&self, other: &Cell) -> Cell {
        let mut cell = self.clone();
        cell.0.extend(other.0.clone());
        cell
    }

    /// This cell without the parameters that `keep` refuses.
    #[must_use]
    pub fn retained(&self, keep: impl Fn(&str) -> bool) -> Cell {
        let mut cell = self.clone();
        cell.0.retain(|name, _| keep(name));
        cell
    }
}

/// As in `queues=4 streams=8`; see [`Study::label`](crate::study::Study::label) for the short form.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Something that a study can fix or vary.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// As studies spell it.
    pub name: &'static str,
    /// The values that it may have.
    pub domain: Domain,
}

/// The values of a parameter.
#[derive(Debug, Clone, Copy)]
pub enum Domain {
    /// A count from one number to another.
    Count(u64, u64),
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// A rate in bit/s with a decimal prefix, such as `10G`, or `none`.
    Rate,
    /// A size in bytes with a binary prefix, such as `256k`.
    Size,
    /// A name that the study itself explains, in `bundle` or `settings`.
    Name,
}

/// All parameters. A study that names another one is refused.
pub const PARAMETERS: &[Parameter] = &[
    // Queues of every vif.
    Parameter { name: "queues", domain: Domain::Count(1, 64) },
    // Concurrent streams, of each guest or to each target.
    Parameter { name: "streams", domain: Domain::Count(1, 256) },
    Parameter { name: "guests", domain: Domain::Count(1, 256) },
    // Hosts behind a router guest.
    Parameter { name: "targets", domain: Domain::Count(1, 64) },
    // CPUs that a guest may use; 0 for all.
    Parameter { name: "cpus", domain: Domain::Count(0, 1024) },
    // CPUs that a guest may use as a fraction of the host's, so that a guest has fewer on any
    // machine with two or more.
    Parameter { name: "guest-cpus", domain: Domain::Word(names::<GuestCpus>) },
    Parameter { name: "workers", domain: Domain::Count(1, 64) },
    Parameter { name: "mtu", domain: Domain::Count(576, 65_535) },
    // Streams in each direction that load the path while something else is measured.
    Parameter { name: "load", domain: Domain::Count(0, 64) },
    // The guest's direction.
    Parameter { name: "direction", domain: Domain::Word(names::<Direction>) },
    // Whether a guest is at the near end, or the host itself.
    Parameter { name: "sender", domain: Domain::Word(names::<Sender>) },
    // Whether the guests on a wire exchange traffic with a host behind it, or in pairs.
    Parameter { name: "peers", domain: Domain::Word(names::<Peers>) },
    Parameter { name: "tool", domain: Domain::Word(names::<Tool>) },
    // Limit of a sender's unanswered pages; its guest then sends without segmentation offload.
    Parameter { name: "unanswered", domain: Domain::Count(1, 256) },
    Parameter { name: "offloads", domain: Domain::Word(names::<Offloads>) },
    Parameter { name: "switch", domain: Domain::Word(names::<Attached>) },
    // What drives a router's interfaces, and how often the number of their queues changes during a
    // run, with ethtool in a virtual machine.
    Parameter { name: "driver", domain: Domain::Word(names::<Driver>) },
    Parameter { name: "queue-changes", domain: Domain::Count(0, 100) },
    Parameter { name: "encapsulation", domain: Domain::Word(names::<Encapsulation>) },
    Parameter { name: "placement", domain: Domain::Word(names::<Placement>) },
    // Placement of threads and interrupts on CPUs: left to the kernel; all on one; all of a queue
    // on one, and different queues on different ones; every thread on its own; those of a guest on
    // one.
    Parameter { name: "layout", domain: Domain::Word(names::<Layout>) },
    // How the backend places queues on its workers.
    Parameter { name: "policy", domain: Domain::Word(names::<Policy>) },
    // The rate of each line of the wire, and how many there are: two are a bond, of which each
    // stream has one line, by its ports.
    Parameter { name: "line", domain: Domain::Rate },
    Parameter { name: "lines", domain: Domain::Count(1, 2) },
    // Milliseconds for which a relay between the ends delays every frame, in each direction.
    Parameter { name: "delay", domain: Domain::Count(0, 1000) },
    Parameter { name: "window", domain: Domain::Size },
    Parameter { name: "buffer", domain: Domain::Size },
    // Settings of TCP, as `settings` of the study lists them.
    Parameter { name: "tcp", domain: Domain::Name },
    // Several parameters under one name, as `bundle` of the study lists them.
    Parameter { name: "scenario", domain: Domain::Name },
    Parameter { name: "path", domain: Domain::Name },
];

impl Domain {
    /// Whether a value is in the domain; the study checks names.
    pub fn has(self, value: &Value) -> bool {
        match (self, value) {
            (Domain::Count(min, max), Value::Number(number)) => (min..=max).contains(number),
            (Domain::Word(words), Value::Text(text)) => words().contains(&text.as_str()),
            (Domain::Rate, Value::Text(text)) => text == "none" || bits_per_second(text).is_some(),
            (Domain::Size, Value::Text(text)) => bytes(text).is_some(),
            (Domain::Name, Value::Text(text)) => !text.is_empty(),
            _ => false,
        }
    }
}

/// The valid values, for an error message.
impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domain::Count(min, max) => write!(f, "a number from {min} to {max}"),
            Domain::Word(words) => write!(f, "one of {}", words().join(", ")),
            Domain::Rate => f.write_str("a rate such as 10Gb/s, or none"),
            Domain::Size => f.write_str("a size such as 256k"),
            Domain::Name => f.write_str("a name that the study explains"),
        }
    }
}

/// Reads a rate with its unit: `10Gb/s`, `10Gbit/s` or `10G` is 10^10 bit/s.
pub fn bits_per_second(text: &str) -> Option<u64> {
    let rate: Rate = text.parse().ok()?;
    format!("{:.0}", rate.0).parse().ok().filter(|rate| *rate > 0)
}

/// Reads a size: `256k` is 262144 bytes.
pub fn bytes(text: &str) -> Option<u64> {
    let prefixes = [('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let of_prefix = |(prefix, factor)| Some((text.strip_suffix(prefix)?, factor));
    let (digits, factor) = prefixes.into_iter().find_map(of_prefix).unwrap_or((text, 1));
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(factor).filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal_and_sizes_binary() {
        assert_eq!(bits_per_second("10G"), Some(10_000_000_000));
        assert_eq!(bits_per_second("10Gb/s"), Some(10_000_000_000));
        assert_eq!(bits_per_second("2.5Gbit/s"), Some(2_500_000_000));
        assert_eq!((bytes("256k"), bytes("500")), (Some(262_144), Some(500)));
        for bad in ["", "G", "10", "10X", "-1", "0", "99999999999G"] {
            assert_eq!(bits_per_second(bad), None, "{bad}");
        }
        for bad in ["", "k", "10X", "-1", "0", "99999999999G"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_part_matches_whatever_else_a_cell_has() {
        let cell = Cell::default().with("queues", 4).with("streams", 8);
        assert!(cell.matches(&Cell::default().with("queues", 4)));
        assert!(!cell.matches(&Cell::default().with("queues", 8)));
        assert!(!cell.matches(&Cell::default().with("mtu", 1500)));
        assert_eq!(cell.to_string(), "queues=4 streams=8");
    }
}
