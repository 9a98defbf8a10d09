//! Addresses that moved between two samples: a file of the record with a line for each.

use super::{Counters, reply_lines};
use crate::{Gap, Text};

/// Its name in a record, and the first word of its head.
pub const FILE: &str = "moves";

/// The moves during the watch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moves {
    /// Those that moved most first.
    pub all: Vec<Move>,
    /// Addresses that were watched.
    pub watched: u64,
    /// Duration of the watch in seconds; above 0.
    pub seconds: f64,
    /// How often announcements of the kernel were lost.
    pub lost: u64,
}

/// What moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An IP address, between the Ethernet addresses of neighbours.
    Neighbour,
    /// An Ethernet address, between the ports of a bridge.
    Port,
    /// An Ethernet address, between the other ends of a tunnel.
    TunnelEnd,
}

/// An address that moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// What it is.
    pub kind: Kind,
    /// The address.
    pub address: String,
    /// The interface, bridge or tunnel.
    pub nic: String,
    /// The VLAN or the network in the tunnel, if there are several.
    pub network: Option<u64>,
    /// How often it moved.
    pub moves: u64,
    /// How many of these were to a place where it had been during the watch.
    pub returns: u64,
    /// The places, in the order of their first appearance.
    pub places: Vec<String>,
    /// Its line in the file.
    pub line: usize,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Neighbour, Kind::Port, Kind::TunnelEnd];

    /// Its word in the file.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Neighbour => "neighbour",
            Kind::Port => "port",
            Kind::TunnelEnd => "tunnel-end",
        }
    }
}

impl Counters for Moves {
    fn parse(text: &Text) -> Result<Moves, Gap> {
        let rows = reply_lines(text, FILE)?
            .ok_or_else(|| text.unreadable(Some(1), "expected moves and a number"))?;
        let head = text.lines().next().map_or("", |(_, head)| head);
        let value = |name: &str| head.split(' ').find_map(|word| word.strip_prefix(name));
        let number = |name: &str, why: &str| {
            let number = value(name).and_then(|word| word.parse().ok());
            number.ok_or_else(|| text.unreadable(Some(1), why))
        };
        let seconds: Option<f64> = value("seconds=").and_then(|word| word.parse().ok());
        let seconds = seconds
            .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
            .ok_or_else(|| text.unreadable(Some(1), "expected a number of seconds"))?;
        let watched = number("watched=", "expected how many were watched")?;
        let lost = number("lost=", "expected how many were lost")?;
        let row = |(line, row): (usize, &str)| {
            of_row(line, row).ok_or_else(|| {
                let why = "expected a kind, an address, an interface, a network, moves=, returns= \
                           and at least two places";
                text.unreadable(Some(line), why)
            })
        };
        let all = rows.into_iter().map(row).collect::<Result<_, _>>()?;
        Ok(Moves { all, watched, seconds, lost })
    }
}

fn of_row(line: usize, row: &str) -> Option<Move> {
    let mut words = row.split_whitespace();
    let kind = words.next()?;
    let kind = Kind::ALL.into_iter().find(|known| known.word() == kind)?;
    let (address, nic) = (words.next()?.to_owned(), words.next()?.to_owned());
    let network = match words.next()? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let moves = words.next()?.strip_prefix("moves=")?.parse().ok()?;
    let returns = words.next()?.strip_prefix("returns=")?.parse().ok()?;
    let places: Vec<String> = words.map(str::to_owned).collect();
    let is_sound = places.len() > 1 && moves > 0 && returns < moves;
    is_sound.then_some(Move { kind, address, nic, network, moves, returns, places, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_read_and_torn_ones_refused() {
        let parse = |text: &str| Moves::parse(&Text::new(FILE, text));
        let head = "moves: 1 watched=7 seconds=3.0 lost=0";
        let row = "port 02:00:00:00:00:07 br0 5 moves=9 returns=8 q1 q2";
        let moves = parse(&format!("{head}\n{row}\n")).expect("sound");
        let one = &moves.all[0];
        assert_eq!((one.kind, one.network, one.moves, one.returns), (Kind::Port, Some(5), 9, 8));
        assert_eq!((one.places.len(), moves.watched, moves.lost), (2, 7, 0));
        for torn in [
            "",
            "moves: 0 watched=7 seconds=0 lost=0\n",
            "moves: 0 watched=7 seconds=1\n",
            "moves: 0 seconds=1 lost=0\n",
            &format!("{head}\n"),
            &format!("{head}\n{}\n", row.replace("port", "x")),
            &format!("{head}\n{}\n", row.replace(" q1 q2", " q1")),
            &format!("{head}\n{}\n", row.replace("returns=8", "returns=9")),
        ] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }
}
