//! What is collected from a live host: the pieces that facts name, and [`RECORDED`].

use std::collections::BTreeSet;

use super::netlink::NicSettings;
use super::piece::Piece;

/// Pieces that no check reads, for people who open a record and for later doctors: nothing can be
/// added to the record of a host that is gone.
pub(super) const RECORDED: &[Piece] = &[
    Piece::Counters("proc/softirqs"),
    Piece::Counters("proc/uptime"),
    Piece::File("etc/os-release"),
    Piece::File("proc/sys/net/core/dev_weight"),
    Piece::File("proc/sys/net/core/rmem_max"),
    Piece::File("proc/sys/net/ipv4/ip_forward"),
    // By name and not by a pattern, which would include the key of TCP Fast Open.
    Piece::File("proc/sys/net/ipv4/tcp_dsack"),
    Piece::File("proc/sys/net/ipv4/tcp_moderate_rcvbuf"),
    Piece::File("proc/sys/net/ipv4/tcp_rmem"),
    Piece::File("proc/sys/net/netfilter/nf_conntrack_buckets"),
    Piece::File("sys/hypervisor/version/extra"),
    Piece::File("sys/module/vhost_net/parameters/*"),
    Piece::Names("dev/xen"),
    Piece::Command(&["ovs-vsctl", "--version"]),
    // Only this part, because others contain passwords of consoles.
    Piece::Command(&["xenstore-ls", "-f", "device/vif"]),
];

/// The file that names the network namespace: `initial` or `other`.
pub(crate) const NETNS: &str = "netns";

/// Samples all CPUs for a second, to show whether hypercalls take the time. The recording goes to
/// the second tool, never to a file. It runs only on Xen, and needs root.
pub(crate) const PROFILE: [&[&str]; 2] = [
    &["perf", "record", "-q", "-e", "cpu-clock", "-a", "-F", "199", "-o", "-", "--", "sleep", "1"],
    &["perf", "report", "-q", "-i", "-", "--stdio", "--sort", "comm,sym", "-t", "|"],
];

/// A command of a tool, none of which changes anything.
pub(super) type Words = &'static [&'static str];

/// Everything to collect, by method, each once.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// Read once, unless they are counters as well.
    pub(super) files: BTreeSet<&'static str>,
    /// Read in both samples.
    pub(super) counters: BTreeSet<&'static str>,
    /// Links whose targets are recorded.
    pub(super) links: BTreeSet<&'static str>,
    /// Directories whose names are recorded.
    pub(super) names: BTreeSet<&'static str>,
    /// Directories of definitions of machines.
    pub(super) machines: BTreeSet<&'static str>,
    /// Run once.
    pub(super) commands: BTreeSet<Words>,
    /// Run in both samples.
    pub(super) sampled: BTreeSet<Words>,
    /// Beginnings of the names of threads.
    pub(super) threads: BTreeSet<&'static str>,
    /// Settings to query for each interface.
    pub(super) settings: Vec<NicSettings>,
    pub(super) has_connections: bool,
    pub(super) has_drops: bool,
    pub(super) has_moves: bool,
    pub(super) has_filters: bool,
    pub(super) has_classes: bool,
    pub(super) has_profile: bool,
    pub(super) has_programs: bool,
    pub(super) has_qstats: bool,
    pub(super) has_sockets: bool,
    pub(super) has_translations: bool,
}

impl Manifest {
    /// The manifest of these pieces and of what is always recorded.
    pub(super) fn of(pieces: &[Piece]) -> Manifest {
        let mut all = Manifest::default();
        for piece in Piece::each(pieces).into_iter().chain(RECORDED.iter().copied()) {
            match piece {
                Piece::File(path) => drop(all.files.insert(path)),
                Piece::Counters(path) => drop(all.counters.insert(path)),
                Piece::Link(path) => drop(all.links.insert(path)),
                Piece::Names(path) => drop(all.names.insert(path)),
                Piece::Machines(path) => drop(all.machines.insert(path)),
                Piece::Command(words) => drop(all.commands.insert(words)),
                Piece::Sampled(words) => drop(all.sampled.insert(words)),
                Piece::Threads(starts) => all.threads.extend(starts),
                Piece::Settings(one) if all.settings.contains(&one) => {}
                Piece::Settings(one) => all.settings.push(one),
                Piece::Connections => all.has_connections = true,
                Piece::Drops => all.has_drops = true,
                Piece::Moves => all.has_moves = true,
                Piece::Filters => all.has_filters = true,
                Piece::Classes => all.has_classes = true,
                Piece::Profile => all.has_profile = true,
                Piece::Sockets => all.has_sockets = true,
                Piece::Translations => all.has_translations = true,
                Piece::Programs => all.has_programs = true,
                Piece::Qstats => all.has_qstats = true,
                Piece::Saved(_) | Piece::SavedCommand(_) | Piece::All(_) => {}
            }
        }
        all.files.retain(|path| !all.counters.contains(path));
        all.commands.retain(|words| !all.sampled.contains(words));
        all
    }
}
