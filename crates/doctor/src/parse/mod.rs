//! Readers of evidence: from a [`Text`] to values that know their lines.
//!
//! None panics, whatever it is given; what is truncated or foreign is a [`Gap::Unreadable`] with
//! its line. Property tests hold them to that. Why these are our own: `docs/adr/0014`.

pub mod coalesce;
pub mod conntrack;
pub mod cpu;
pub mod domains;
pub mod ethtool;
pub mod interrupts;
pub mod libvirt;
pub mod nic;
pub mod ovs;
pub mod path;
pub mod profile;
pub mod qdisc;
pub mod ringway;
pub mod sockets;
pub mod softnet;
pub mod threads;
pub mod xapi;
pub mod xenstore;

use crate::evidence::{Gap, Text};

/// Counters of a host, of which two samples make rates.
pub trait Counters: Sized {
    /// Reads them.
    fn parse(text: &Text) -> Result<Self, Gap>;
}

/// A file that is one counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Single(pub u64);

impl Counters for Single {
    fn parse(text: &Text) -> Result<Single, Gap> {
        text.number().map(Single)
    }
}

/// The next word of a line as a number.
fn next_number<'a>(
    words: &mut impl Iterator<Item = &'a str>,
    text: &Text,
    line: usize,
) -> Result<u64, Gap> {
    let number = words.next().and_then(|word| word.parse().ok());
    number.ok_or_else(|| text.unreadable(Some(line), "expected a number"))
}

#[cfg(test)]
mod tests;
