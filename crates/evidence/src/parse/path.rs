//! What packets of different lengths met on the way to a host: what [`probe`](crate::probe) wrote.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::{Gap, Text};

/// The way to one address of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// As the administrator named it.
    pub host: String,
    /// What was asked.
    pub address: IpAddr,
    /// What happened, in its order, each with its line.
    pub steps: Vec<(usize, Step)>,
}

/// One thing that was learned. Lengths are those of IP packets, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// How it was asked.
    Asked(Means),
    /// The interface that packets leave by.
    Through(String),
    /// The longest packet of that interface.
    Local(u32),
    /// The longest that the kernel sends there, by its routes and by what it learned before.
    Known(u32),
    /// A packet arrived.
    Passed {
        /// Its length.
        len: u32,
        /// Until the reply came.
        micros: u64,
    },
    /// A hop on the way said that a packet was too long for it.
    Refused {
        /// Its length.
        len: u32,
        /// Who said so.
        by: IpAddr,
        /// What it takes.
        mtu: u32,
    },
    /// No reply came to a packet, nor to its repetition.
    Lost {
        /// Its length.
        len: u32,
    },
    /// A packet that is lost came as far as this.
    Reached {
        /// How many routers away.
        hops: u8,
        /// Who has that place.
        by: IpAddr,
    },
    /// One did not come as far as this, to which a short one came.
    Missed {
        /// How many routers away.
        hops: u8,
        /// Who has that place.
        by: IpAddr,
    },
    /// It ended early.
    Stopped(String),
    /// All was written.
    End,
}

/// What is sent, and what replies to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// An echo request, and its reply.
    Echo,
    /// A datagram to a closed port, and the refusal of the host.
    Datagram,
}

impl Path {
    /// Reads what was written; it has to be whole.
    pub fn parse(text: &Text) -> Result<Path, Gap> {
        let mut lines = text.lines();
        let (_, head) = lines.next().ok_or_else(|| text.unreadable(None, "empty"))?;
        let words: Vec<&str> = head.split_whitespace().collect();
        let (host, address) = match words.as_slice() {
            ["path", "to", host, "at", address] => (*host, address.parse().ok()),
            _ => ("", None),
        };
        let address =
            address.ok_or_else(|| text.unreadable(Some(1), "expected path to HOST at ADDRESS"))?;
        let mut steps = Vec::new();
        for (line, row) in lines {
            let step = row.parse();
            steps.push((line, step.map_err(|why: &str| text.unreadable(Some(line), why))?));
        }
        match steps.pop() {
            Some((_, Step::End)) => Ok(Path { host: host.to_owned(), address, steps }),
            _ => Err(text.unreadable(None, "cut off: the last line is not `end`")),
        }
    }

    /// The longest packet that arrived, with its line.
    pub fn longest(&self) -> Option<(u32, usize)> {
        let passed = self.steps.iter().filter_map(|(line, step)| match step {
            Step::Passed { len, .. } => Some((*len, *line)),
            _ => None,
        });
        passed.max()
    }

    /// The first of its steps that `wanted` takes, with its line.
    pub fn find<T>(&self, wanted: impl Fn(&Step) -> Option<T>) -> Option<(T, usize)> {
        self.steps.iter().find_map(|(line, step)| Some((wanted(step)?, *line)))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Asked(Means::Echo) => write!(out, "asked by echo"),
            Step::Asked(Means::Datagram) => write!(out, "asked by datagram"),
            Step::Through(nic) => write!(out, "through {nic}"),
            Step::Local(mtu) => write!(out, "local {mtu}"),
            Step::Known(mtu) => write!(out, "known {mtu}"),
            Step::Passed { len, micros } => write!(out, "passed {len} in {micros} us"),
            Step::Refused { len, by, mtu } => write!(out, "refused {len} by {by} takes {mtu}"),
            Step::Lost { len } => write!(out, "lost {len}"),
            Step::Reached { hops, by } => write!(out, "reached {hops} {by}"),
            Step::Missed { hops, by } => write!(out, "missed {hops} {by}"),
            Step::Stopped(why) => write!(out, "stopped {why}"),
            Step::End => write!(out, "end"),
        }
    }
}

impl FromStr for Step {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Step, &'static str> {
        step(line).ok_or("expected a step of a path")
    }
}

fn step(line: &str) -> Option<Step> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(match words.as_slice() {
        ["asked", "by", "echo"] => Step::Asked(Means::Echo),
        ["asked", "by", "datagram"] => Step::Asked(Means::Datagram),
        ["through", nic] => Step::Through((*nic).to_owned()),
        ["local", mtu] => Step::Local(mtu.parse().ok()?),
        ["known", mtu] => Step::Known(mtu.parse().ok()?),
        ["passed", len, "in", micros, "us"] => {
            Step::Passed { len: len.parse().ok()?, micros: micros.parse().ok()? }
        }
        ["refused", len, "by", by, "takes", mtu] => {
            Step::Refused { len: len.parse().ok()?, by: by.parse().ok()?, mtu: mtu.parse().ok()? }
        }
        ["lost", len] => Step::Lost { len: len.parse().ok()? },
        ["reached", hops, by] => Step::Reached { hops: hops.parse().ok()?, by: by.parse().ok()? },
        ["missed", hops, by] => Step::Missed { hops: hops.parse().ok()?, by: by.parse().ok()? },
        ["stopped", rest @ ..] => Step::Stopped(rest.join(" ")),
        ["end"] => Step::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let by: IpAddr = "fe80::1".parse().expect("an address");
        let steps = [
            Step::Asked(Means::Echo),
            Step::Through("eth0".to_owned()),
            Step::Local(9000),
            Step::Known(1500),
            Step::Passed { len: 576, micros: 210 },
            Step::Refused { len: 9000, by, mtu: 1400 },
            Step::Lost { len: 1401 },
            Step::Reached { hops: 1, by },
            Step::Missed { hops: 2, by },
            Step::Stopped("no more time".to_owned()),
        ];
        let body: String = steps.iter().map(|step| format!("{step}\n")).collect();
        let text = |end| Text::new("path", format!("path to a at 192.0.2.1\n{body}{end}"));
        let path = Path::parse(&text("end\n")).expect("whole");
        assert!(path.steps.iter().map(|(_, step)| step).eq(&steps));
        assert_eq!(path.longest(), Some((576, 6)));
        assert!(Path::parse(&text("")).is_err(), "cut off");
    }
}
