//! Listening sockets, UDP and raw sockets, destinations of connections, and owners of sockets.

use std::collections::BTreeMap;

use super::{Counters, reply_lines};
use crate::{Gap, Text};

/// Listening TCP sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listeners {
    /// In the order of the file.
    pub all: Vec<Listener>,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listener {
    /// Address and port.
    pub local: String,
    /// Connections that wait to be accepted.
    pub waiting: u64,
    /// The limit of these.
    pub most: u64,
    /// The inode of the socket.
    pub inode: u64,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for Listeners {
    fn parse(text: &Text) -> Result<Listeners, Gap> {
        let all = rows(text, "listeners")?.into_iter().map(|(line, words)| {
            let [local, waiting, most, inode] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected an address and three numbers"));
            };
            let number = |word: &str| number(text, line, word);
            let (waiting, most, inode) = (number(waiting)?, number(most)?, number(inode)?);
            Ok(Listener { local: (*local).to_owned(), waiting, most, inode, line })
        });
        Ok(Listeners { all: all.collect::<Result<_, _>>()? })
    }
}

/// The destinations of most connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    /// This end, the other end, the number of ports, and the line; the largest number first.
    pub all: Vec<(String, String, u64, usize)>,
}

impl Counters for Destinations {
    fn parse(text: &Text) -> Result<Destinations, Gap> {
        let all = rows(text, "destinations")?.into_iter().map(|(line, words)| {
            let [local, peer, count] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected two ends and a number"));
            };
            Ok(((*local).to_owned(), (*peer).to_owned(), number(text, line, count)?, line))
        });
        Ok(Destinations { all: all.collect::<Result<_, _>>()? })
    }
}

/// Programs by the inodes of their sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners {
    /// PID and name.
    pub by_inode: BTreeMap<u64, (u64, String)>,
    /// Programs whose open files may not be read.
    pub refused: u64,
    /// Programs that were not read because the time limit was reached.
    pub late: u64,
}

impl Counters for Owners {
    fn parse(text: &Text) -> Result<Owners, Gap> {
        let all = rows(text, "owners")?.into_iter().map(|(line, words)| {
            let [inode, process, name] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected a socket and a program"));
            };
            let number = |word: &str| number(text, line, word);
            Ok((number(inode)?, (number(process)?, (*name).to_owned())))
        });
        let by_inode = all.collect::<Result<_, _>>()?;
        // After the number of lines, in records that contain it.
        let head = text.lines().next().map_or("", |(_, head)| head);
        let count = |name: &str| {
            let word = head.split(' ').find_map(|word| word.strip_prefix(name));
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        Ok(Owners { by_inode, refused: count("refused="), late: count("late=") })
    }
}

/// UDP or raw sockets: a table of `/proc/net`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// By the inode of the socket.
    pub sockets: BTreeMap<u64, Datagram>,
}

/// One of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Datagram {
    /// Its port, or the protocol of a raw socket.
    pub port: u64,
    /// Memory of what was not read yet.
    pub waiting: u64,
    /// Datagrams that were dropped, because its buffer was full.
    pub drops: u64,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for Datagrams {
    fn parse(text: &Text) -> Result<Datagrams, Gap> {
        let mut lines = text.lines();
        let head = lines.next().map(|(_, head)| head).unwrap_or_default();
        if !head.trim_end().ends_with("drops") {
            return Err(text.unreadable(Some(1), "expected a head that ends in drops"));
        }
        let mut sockets = BTreeMap::new();
        for (line, row) in lines {
            let words: Vec<&str> = row.split_whitespace().collect();
            let refuse = || text.unreadable(Some(line), "expected a socket");
            let (Some(local), Some(inode), Some(drops), 13) =
                (words.get(1), words.get(9), words.last(), words.len())
            else {
                return Err(refuse());
            };
            let (_, port) = local.rsplit_once(':').ok_or_else(refuse)?;
            let port = u64::from_str_radix(port, 16).map_err(|_| refuse())?;
            let (_, waiting) =
                words.get(4).and_then(|queues| queues.rsplit_once(':')).ok_or_else(refuse)?;
            let waiting = u64::from_str_radix(waiting, 16).map_err(|_| refuse())?;
            let drops = number(text, line, drops)?;
            sockets.insert(number(text, line, inode)?, Datagram { port, waiting, drops, line });
        }
        Ok(Datagrams { sockets })
    }
}

/// Packet sockets, by which programs capture: `/proc/net/packet`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PacketSockets {
    /// By the inode of the socket.
    pub sockets: BTreeMap<u64, PacketSocket>,
}

/// One of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketSocket {
    /// Bytes of memory of what has arrived and was not read.
    pub waiting: u64,
    /// Its line in the file.
    pub line: usize,
}

impl Counters for PacketSockets {
    fn parse(text: &Text) -> Result<PacketSockets, Gap> {
        let mut lines = text.lines();
        let head = lines.next().map(|(_, head)| head).unwrap_or_default();
        if !head.trim_end().ends_with("Inode") {
            return Err(text.unreadable(Some(1), "expected a head that ends in Inode"));
        }
        let mut sockets = BTreeMap::new();
        for (line, row) in lines {
            let words: Vec<&str> = row.split_whitespace().collect();
            let [_, _, _, _, _, _, waiting, _, inode] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected a socket"));
            };
            let waiting = number(text, line, waiting)?;
            sockets.insert(number(text, line, inode)?, PacketSocket { waiting, line });
        }
        Ok(PacketSockets { sockets })
    }
}

fn rows<'a>(text: &'a Text, name: &str) -> Result<Vec<(usize, Vec<&'a str>)>, Gap> {
    let lines = reply_lines(text, name)?
        .ok_or_else(|| text.unreadable(Some(1), format!("expected {name} and a number")))?;
    Ok(lines.into_iter().map(|(line, row)| (line, row.split_whitespace().collect())).collect())
}

fn number(text: &Text, line: usize, word: &str) -> Result<u64, Gap> {
    word.parse().map_err(|_| text.unreadable(Some(line), "expected a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_captures_is_read() {
        let head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n";
        let parse = |text: &str| PacketSockets::parse(&Text::new("packet", text));
        let row = "0000000012345678 3      3    0003   2     1 213120 0      4711\n";
        let read = parse(&format!("{head}{row}")).expect("sound");
        assert_eq!(read.sockets[&4711], PacketSocket { waiting: 213_120, line: 2 });
        assert!(parse(head).expect("none").sockets.is_empty());
        for torn in ["", row, &format!("{head}0 3 3\n")] {
            assert!(parse(torn).is_err(), "{torn:?}");
        }
    }

    #[test]
    fn each_file_is_read_and_refused_where_it_is_torn() {
        let text = |text: &str| Text::new("file", text);
        let listening =
            Listeners::parse(&text("listeners: 1\n0.0.0.0:80 3 2 77\n")).expect("sound");
        assert_eq!((listening.all[0].waiting, listening.all[0].most), (3, 2));
        let gone = Destinations::parse(&text("destinations: 1\n10.98.0.1 10.98.0.2:80 9\n"));
        assert_eq!(gone.expect("sound").all[0].2, 9);
        let owners = Owners::parse(&text("owners: 1\n77 5 nginx\n")).expect("sound");
        assert_eq!(owners.by_inode[&77], (5, "nginx".to_owned()));
        assert_eq!((owners.refused, owners.late), (0, 0));
        let some = Owners::parse(&text("owners: 0 refused=3 late=4\n")).expect("sound");
        assert_eq!((some.refused, some.late), (3, 4));
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                    uid  timeout inode ref pointer drops\n";
        let row = "  9: 00000000:0009 00000000:0000 07 00000000:00000A00 00:00000000 00000000     \
                   0        0 77 2 0000000000000000 5\n";
        let udp = Datagrams::parse(&text(&format!("{head}{row}"))).expect("sound");
        let read = Datagram { port: 9, waiting: 2560, drops: 5, line: 2 };
        assert_eq!(udp.sockets[&77], read);
        for torn in ["", "listeners: 1\n", "owners: 1\nx\n", "destinations: 1\na b c\n"] {
            assert!(Listeners::parse(&text(torn)).is_err(), "{torn:?}");
            assert!(Owners::parse(&text(torn)).is_err(), "{torn:?}");
            assert!(Destinations::parse(&text(torn)).is_err(), "{torn:?}");
        }
        assert!(Datagrams::parse(&text(&format!("{head} 9: x\n"))).is_err());
    }
}
