//! Parsers of evidence: from a [`Text`] to values with their lines.
//!
//! No parser panics on any input; truncated or foreign input is a [`Gap::Unreadable`] with its
//! line. Property tests verify that. Why these are our own: `doctor/README.md`.

pub mod bonds;
pub mod bpf;
pub mod claims;
pub mod classes;
pub mod coalesce;
pub mod conntrack;
pub mod cpu;
pub mod cpus;
pub mod domains;
pub mod drops;
pub mod ethtool;
pub mod inet6;
pub mod interrupts;
pub mod libvirt;
pub mod links;
pub mod listeners;
pub mod moves;
pub mod neighbour_table;
pub mod nic;
pub mod ovs;
pub mod ovsdb;
pub mod path;
pub mod police;
pub mod pressure;
pub mod profile;
pub mod programs;
pub mod protocols;
pub mod qdisc;
pub mod ringway;
pub mod routes;
pub mod rules;
pub mod sockets;
pub mod softnet;
pub mod threads;
pub mod xapi;
pub mod xenstore;

use crate::{Gap, Text};

/// Counters of a host; two samples give rates.
pub trait Counters: Sized {
    /// Reads them.
    fn parse(text: &Text) -> Result<Self, Gap>;
}

/// A file that consists of one counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Single(pub u64);

impl Counters for Single {
    fn parse(text: &Text) -> Result<Single, Gap> {
        text.number().map(Single)
    }
}

/// The lines below the head of a file of `netlink/`, or `None` for another text: the head contains
/// the name of the file and the number of lines (see [`evidence::netlink`](crate::netlink)).
fn reply_lines<'a>(text: &'a Text, name: &str) -> Result<Option<Vec<(usize, &'a str)>>, Gap> {
    let mut lines = text.lines();
    let head = lines.next().map_or("", |(_, head)| head);
    let Some((subject, rest)) = head.split_once(": ") else { return Ok(None) };
    if subject.split(' ').next() != Some(name) {
        return Ok(None);
    }
    let count: Option<usize> = rest.split(' ').next().and_then(|count| count.parse().ok());
    let lines: Vec<(usize, &str)> = lines.collect();
    match count {
        Some(count) if count == lines.len() => Ok(Some(lines)),
        Some(count) => Err(text.unreadable(None, format!("expected {count} lines below the head"))),
        None => Err(text.unreadable(Some(1), "expected a number of lines")),
    }
}

/// Columns of a table of hexadecimal numbers by their names in its head, a row for each CPU.
fn of_cpus<const N: usize>(text: &Text, wanted: [&str; N]) -> Result<Vec<[u32; N]>, Gap> {
    let head = text.lines().next().map(|(_, line)| line).unwrap_or_default();
    let names: Vec<&str> = head.split_whitespace().collect();
    let mut columns = [0; N];
    for (column, name) in columns.iter_mut().zip(wanted) {
        let index = names.iter().position(|known| *known == name);
        *column =
            index.ok_or_else(|| text.unreadable(Some(1), format!("expected a column {name}")))?;
    }
    let row = |(line, row): (usize, &str)| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let mut numbers = [0; N];
        for (number, column) in numbers.iter_mut().zip(columns) {
            let word = words.get(column).copied().unwrap_or_default();
            let why = "expected columns of hexadecimal digits";
            *number =
                u32::from_str_radix(word, 16).map_err(|_| text.unreadable(Some(line), why))?;
        }
        Ok(numbers)
    };
    text.lines().skip(1).map(row).collect()
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
