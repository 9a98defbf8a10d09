//! The results of probing the path to a host with packets of different lengths, written by
//! [`probe`](crate::probe).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::{Gap, Text};

/// The path to one address of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The host's name as the administrator gave it.
    pub host: String,
    /// The probed address.
    pub address: IpAddr,
    /// The steps in order, each with its line.
    pub steps: Vec<(usize, Step)>,
}

/// One result. Lengths are those of IP packets, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The kind of probe.
    Asked(Means),
    /// The interface that packets leave by.
    Through(String),
    /// The MTU of that interface.
    Local(u32),
    /// The longest packet that the kernel sends there, according to its routes and the path MTU
    /// that it knows.
    Known(u32),
    /// A packet arrived.
    Passed {
        /// Its length.
        len: u32,
        /// Microseconds until the reply.
        micros: u64,
    },
    /// A hop reported that a packet was too long for it.
    Refused {
        /// Its length.
        len: u32,
        /// The hop that reported it.
        by: IpAddr,
        /// Its MTU.
        mtu: u32,
    },
    /// Neither a packet nor its repetition got a reply.
    Lost {
        /// Its length.
        len: u32,
    },
    /// The lost packet got as far as this hop.
    Reached {
        /// How many routers away.
        hops: u8,
        /// The router there.
        by: IpAddr,
    },
    /// The lost packet did not get as far as this hop, but a short one did.
    Missed {
        /// How many routers away.
        hops: u8,
        /// The router there.
        by: IpAddr,
    },
    /// The probe ended early, for this reason.
    Stopped(String),
    /// The end of a complete result.
    End,
}

/// What is sent, and the expected reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// An echo request, and its reply.
    Echo,
    /// A datagram to a closed port, and the host's ICMP error.
    Datagram,
}

impl Path {
    /// Parses a result, which must be complete.
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

    /// The first of its steps that `wanted` accepts, with its line.
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
