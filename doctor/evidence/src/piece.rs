//! Pieces of evidence that facts name: their union is collected, and a fact can read nothing else.

use super::netlink::{DESTINATIONS, LISTENERS, NicSettings, QSTATS_PATHS, TRANSLATIONS};
use super::parse::drops::FILE as DROPS;
use super::parse::moves::FILE as MOVES;

/// One piece of evidence, or all of a kind. In a path, a `*` stands for any name or for the end of
/// one. In a command `{nic}` stands for each interface, `{guest}` for each guest of libvirt and
/// `{domid}` for each domain of Xen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A file that holds a setting or a description, read once.
    File(&'static str),
    /// A file of counters, read in both samples.
    Counters(&'static str),
    /// A link; its target is recorded.
    Link(&'static str),
    /// A directory; its names are recorded.
    Names(&'static str),
    /// The output of a tool, once. No tool here changes anything.
    Command(&'static [&'static str]),
    /// The output of a tool, in both samples.
    Sampled(&'static [&'static str]),
    /// CPU time of threads whose names begin with one of these, in both samples.
    Threads(&'static [&'static str]),
    /// The threads that use the most CPU time, and control groups with a CPU quota; in both
    /// samples.
    Programs,
    /// Established TCP connections, in both samples.
    Connections,
    /// Listening sockets, in both samples; the destinations of most connections, if ports may run
    /// out; and the owners of sockets.
    Sockets,
    /// The ports that a NAT uses, if entries could not be added to the table of connections between
    /// the samples.
    Translations,
    /// Packets that the kernel drops between the samples, by reason, if tracing is permitted.
    Drops,
    /// Addresses that move between the samples: neighbours, and entries of forwarding databases.
    Moves,
    /// A directory in which libvirt keeps definitions of machines: of each, the part that checks
    /// read.
    Machines(&'static str),
    /// Settings of each interface.
    Settings(NicSettings),
    /// Counters of the queues of each interface, as the kernel reports them; in both samples.
    Qstats,
    /// Counters of filters, where a queueing discipline shows that there are any; in both samples.
    Filters,
    /// Counters of classes of queueing disciplines, where there are any; in both samples.
    Classes,
    /// Where the time of all CPUs goes, on Xen.
    Profile,
    /// A file that only some records have; this piece does not collect it from a live host.
    Saved(&'static str),
    /// The output of a tool that only some records have, such as sos reports.
    SavedCommand(&'static [&'static str]),
    /// The pieces of other facts.
    All(&'static [Piece]),
}

/// Suffix of links in a record, which cannot contain links; the next one is for directories.
const LINK: &str = ".link";
const NAMES: &str = ".names";
/// Suffix of the files of machines.
pub(crate) const MACHINE: &str = ".xml";
/// Machines of a directory that are read.
pub(crate) const MACHINES_MAX: usize = 256;
/// Bytes of the definition of a machine; those of most have less than 40 KB.
pub(crate) const MACHINE_BYTES_MAX: usize = 1 << 20;

impl Piece {
    /// All pieces of a list, including those of other facts.
    pub fn each(pieces: &[Piece]) -> Vec<Piece> {
        let mut found = Vec::new();
        let mut open: Vec<&Piece> = pieces.iter().rev().collect();
        while let Some(piece) = open.pop() {
            match piece {
                Piece::All(more) => open.extend(more.iter().rev()),
                piece => found.push(*piece),
            }
        }
        found
    }

    /// Whether it is the file at a path of the record.
    pub(crate) fn is_file(&self, path: &str) -> bool {
        match self {
            Piece::File(pattern) | Piece::Counters(pattern) | Piece::Saved(pattern) => {
                matches(pattern, path)
            }
            Piece::Link(pattern) => path.strip_suffix(LINK).is_some_and(|at| matches(pattern, at)),
            Piece::Sockets => [LISTENERS, DESTINATIONS, "owners"].contains(&path),
            Piece::Qstats => matches(QSTATS_PATHS, path),
            Piece::Translations => path == TRANSLATIONS,
            Piece::Drops => path == DROPS,
            Piece::Moves => path == MOVES,
            Piece::Names(of) => path.strip_suffix(NAMES) == Some(of),
            Piece::Machines(folder) => {
                let below = path.strip_prefix(folder);
                below.is_some_and(|below| below == NAMES || below.ends_with(MACHINE))
            }
            Piece::Threads(_) => path == "threads",
            Piece::Programs => ["busiest", "cgroups"].contains(&path),
            Piece::All(more) => more.iter().any(|piece| piece.is_file(path)),
            _ => false,
        }
    }

    /// Whether it has files below a directory.
    pub(crate) fn is_below(&self, directory: &str) -> bool {
        match self {
            Piece::File(pattern)
            | Piece::Counters(pattern)
            | Piece::Saved(pattern)
            | Piece::Link(pattern) => {
                let mut parts = pattern.split('/');
                directory
                    .split('/')
                    .all(|name| parts.next().is_some_and(|part| matches_name(part, name)))
                    && parts.next().is_some()
            }
            Piece::Machines(folder) => *folder == directory,
            Piece::All(more) => more.iter().any(|piece| piece.is_below(directory)),
            _ => false,
        }
    }

    /// Whether it is the output of a command.
    pub(crate) fn is_command(&self, words: &[&str]) -> bool {
        match self {
            Piece::Command(pattern) | Piece::Sampled(pattern) | Piece::SavedCommand(pattern) => {
                pattern.len() == words.len()
                    && pattern.iter().zip(words).all(|(pattern, word)| matches_word(pattern, word))
            }
            Piece::Filters => words.starts_with(&["tc", "-s", "filter"]),
            Piece::Classes => words.starts_with(&["tc", "-s", "class"]),
            Piece::All(more) => more.iter().any(|piece| piece.is_command(words)),
            _ => false,
        }
    }

    /// Whether it is `wanted`, or contains it.
    pub(crate) fn has(&self, wanted: Piece) -> bool {
        match self {
            Piece::All(more) => more.iter().any(|piece| piece.has(wanted)),
            piece => *piece == wanted,
        }
    }
}

/// Whether a path matches a pattern.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let (mut parts, mut names) = (pattern.split('/'), path.split('/'));
    loop {
        match (parts.next(), names.next()) {
            (None, None) => return true,
            (Some(part), Some(name)) if matches_name(part, name) => {}
            _ => return false,
        }
    }
}

fn matches_name(part: &str, name: &str) -> bool {
    match part.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => part == name,
    }
}

/// Whether a word of a command matches a placeholder.
fn matches_word(pattern: &str, word: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('{') else { return pattern == word };
    let end = rest.split_once('}').map_or("", |(_, end)| end);
    word.strip_prefix(start).is_some_and(|rest| rest.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_stands_for_names_and_for_nothing_else() {
        let mtu = Piece::All(&[Piece::File("sys/class/net/*/mtu")]);
        assert!(mtu.is_file("sys/class/net/eth0/mtu") && mtu.is_below("sys/class/net"));
        assert!(mtu.is_below("sys/class/net/eth0"));
        for path in ["sys/class/net/mtu", "sys/class/net/a/b/mtu", "sys/class/net/a/mtu/x", ""] {
            assert!(!mtu.is_file(path), "{path}");
        }
        assert!(!mtu.is_below("sys/class/net/eth0/mtu") && !mtu.is_below("proc"));
        let node = Piece::File("sys/devices/system/node/node*/cpulist");
        assert!(node.is_file("sys/devices/system/node/node1/cpulist"));
        assert!(!node.is_file("sys/devices/system/node/has_cpu/cpulist"));
        let link = Piece::Link("sys/class/net/*/lower_*");
        assert!(link.is_file("sys/class/net/br0/lower_eth0.link"));
        let store = Piece::Command(&["xenstore-ls", "-f", "/local/domain/{domid}/device/vif"]);
        assert!(store.is_command(&["xenstore-ls", "-f", "/local/domain/7/device/vif"]));
        assert!(!store.is_command(&["xenstore-ls", "-f", "/local/domain/7/console"]));
        assert!(!store.is_command(&["xenstore-ls", "-f"]));
    }
}
