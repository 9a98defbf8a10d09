//! Counts how often addresses move: the Ethernet address of a neighbour, the port of a bridge or
//! the tunnel's end behind which an Ethernet address is. Two samples would miss an address that
//! returns between them, and could not distinguish a failover, which moves it once, from two hosts
//! with the same address.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringway_net::Netlink;
use ringway_net::neighbours::{Announcements, Learned, learned};

use super::watch::Watch;
use crate::parse::moves::{FILE, Kind};

/// Addresses that are watched, and announcements that are read: more would add nothing.
const WATCHED_MAX: usize = 100_000;
const EVENTS_MAX: u64 = 1_000_000;
/// Addresses that are written, and the places of each.
const WRITTEN_MAX: usize = 64;
const PLACES_MAX: usize = 8;
/// Pause between two checks for more announcements.
const NAP: Duration = Duration::from_millis(50);

/// Watches moves from now on.
pub(super) fn start() -> Watch {
    Watch::start(FILE, watch)
}

fn watch(is_over: &AtomicBool) -> io::Result<String> {
    // The announcements first, so that no move falls between them and the tables.
    let mut announcements = Announcements::open()?;
    let begun = Instant::now();
    let mut seen = Seen::default();
    learned(|entry| {
        seen.know(&entry);
        if seen.places.len() < WATCHED_MAX {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    while seen.events < EVENTS_MAX {
        // Asked before reading, so that the last read is after the end.
        let is_last = is_over.load(Ordering::Relaxed);
        seen.read(&mut announcements);
        if is_last {
            break;
        }
        thread::sleep(NAP);
    }
    // A file of the record has milliseconds, and none of it is 0.
    let seconds = begun.elapsed().as_secs_f64().max(0.001);
    let names = Netlink::open()?.links()?.into_iter().map(|link| (link.index, link.name)).collect();
    Ok(seen.file(seconds, &names))
}

/// An address where it can be only once: the interface or bridge by its index, and the network.
type Key = (Kind, u32, Option<u32>, String);

/// Where an address was.
#[derive(Default)]
struct Track {
    /// The last place.
    place: Place,
    /// All of them, the first one first.
    places: Vec<Place>,
    moves: u64,
    returns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Port(u32),
    Address(String),
}

impl Default for Place {
    fn default() -> Place {
        Place::Port(0)
    }
}

#[derive(Default)]
struct Seen {
    places: BTreeMap<Key, Track>,
    events: u64,
    lost: u64,
}

impl Seen {
    fn read(&mut self, announcements: &mut Announcements) {
        while self.events < EVENTS_MAX {
            match announcements.read_each(|entry| self.take(&entry)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.lost += 1;
                    self.events += 1;
                }
            }
        }
    }

    /// Where an address is at the start.
    fn know(&mut self, entry: &Learned) {
        let (key, place) = split(entry);
        let places = vec![place.clone()];
        self.places.insert(key, Track { place, places, ..Track::default() });
    }

    /// Where it is now.
    fn take(&mut self, entry: &Learned) {
        self.events += 1;
        let (key, place) = split(entry);
        if self.places.len() >= WATCHED_MAX && !self.places.contains_key(&key) {
            return;
        }
        let track = self.places.entry(key).or_default();
        if track.places.is_empty() {
            track.places.push(place.clone());
        } else if track.place != place {
            track.moves += 1;
            if track.places.contains(&place) {
                track.returns += 1;
            } else if track.places.len() < PLACES_MAX {
                track.places.push(place.clone());
            }
        }
        track.place = place;
    }

    /// The file of the record, with the addresses that moved.
    fn file(&self, seconds: f64, names: &BTreeMap<u32, String>) -> String {
        let name = |index: &u32| names.get(index).cloned().unwrap_or_else(|| format!("if{index}"));
        let mut moved: Vec<_> = self.places.iter().filter(|(_, track)| track.moves > 0).collect();
        moved.sort_by_key(|(_, track)| (std::cmp::Reverse(track.returns), track.moves));
        moved.truncate(WRITTEN_MAX);
        let mut text = format!(
            "{FILE}: {} watched={} seconds={seconds:.3} lost={}\n",
            moved.len(),
            self.places.len(),
            self.lost
        );
        for ((kind, nic, network, address), track) in moved {
            let network = network.map_or_else(|| "-".to_owned(), |network| network.to_string());
            let _ = write!(
                text,
                "{} {address} {} {network} moves={} returns={}",
                kind.word(),
                name(nic),
                track.moves,
                track.returns
            );
            for place in &track.places {
                let _ = match place {
                    Place::Port(port) => write!(text, " {}", name(port)),
                    Place::Address(address) => write!(text, " {address}"),
                };
            }
            text.push('\n');
        }
        text
    }
}

fn split(entry: &Learned) -> (Key, Place) {
    match *entry {
        Learned::Neighbour { address, nic, mac } => {
            ((Kind::Neighbour, nic, None, address.to_string()), Place::Address(hex(mac)))
        }
        Learned::Port { mac, bridge, vlan, port } => {
            ((Kind::Port, bridge, vlan.map(u32::from), hex(mac)), Place::Port(port))
        }
        Learned::TunnelEnd { mac, nic, vni, end } => {
            ((Kind::TunnelEnd, nic, vni, hex(mac)), Place::Address(end.to_string()))
        }
    }
}

fn hex(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;
    use crate::parse::Counters;
    use crate::parse::moves::Moves;

    fn at(port: u32) -> Learned {
        Learned::Port { mac: [2, 0, 0, 0, 0, 7], bridge: 1, vlan: None, port }
    }

    #[test]
    fn a_return_is_distinguished_from_a_move() {
        let names = [(1, "br0".to_owned()), (2, "q1".to_owned()), (3, "q2".to_owned())].into();
        let moves = |ports: &[u32]| {
            let mut seen = Seen::default();
            seen.know(&at(2));
            ports.iter().for_each(|port| seen.take(&at(*port)));
            let moves = Moves::parse(&Text::new(FILE, seen.file(1.0, &names))).expect("sound");
            moves.all.first().map(|one| (one.moves, one.returns, one.places.join(" ")))
        };
        assert_eq!(moves(&[2, 2]), None);
        assert_eq!(moves(&[3, 3]), Some((1, 0, "q1 q2".to_owned())));
        assert_eq!(moves(&[3, 4]), Some((2, 0, "q1 q2 if4".to_owned())));
        assert_eq!(moves(&[3, 2, 3]), Some((3, 2, "q1 q2".to_owned())));
    }

    #[test]
    fn a_watch_of_this_host_ends() {
        let (path, text) = start().finish();
        let text = text.expect("no privilege is needed");
        assert_eq!(path, FILE);
        assert!(Moves::parse(&Text::new(FILE, text.as_str())).is_ok(), "{text}");
    }
}
