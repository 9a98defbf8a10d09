//! Counters at both samples, and the file or tool that each kind comes from.

use super::{Basis, Fact, Reader, Span};
use crate::netlink::{DESTINATIONS, LISTENERS, TRANSLATIONS};
use crate::parse::classes::Classes;
use crate::parse::conntrack::{Conntrack, Translations};
use crate::parse::cpu::CpuTimes;
use crate::parse::domains::VcpuTimes;
use crate::parse::drops::{Drops, FILE as DROPS};
use crate::parse::listeners::{Datagrams, Destinations, Listeners, Owners, PacketSockets};
use crate::parse::nic::NicCounters;
use crate::parse::ovs::Lookups;
use crate::parse::police::Policers;
use crate::parse::pressure::Pressure;
use crate::parse::programs::{Busiest, Quotas};
use crate::parse::protocols::Protocols;
use crate::parse::qdisc::{Hook, Qdiscs};
use crate::parse::routes::Neighbours;
use crate::parse::rules::Rules;
use crate::parse::sockets::Sockets;
use crate::parse::softnet::Softnet;
use crate::parse::threads::Threads;
use crate::parse::{Counters, Single};
use crate::{Gap, Piece, Quote, Text};

/// Counters of one file of the kernel, at both samples.
macro_rules! files {
    ($($counters:ty = $file:literal;)*) => {$(
        impl Fact for Span<$counters> {
            const PIECES: &'static [Piece] = &[Piece::Counters($file)];

            fn read(at: &Reader) -> Result<Self, Gap> {
                at.span($file)
            }
        }
    )*};
}

files! {
    Conntrack = "proc/net/stat/nf_conntrack";
    CpuTimes = "proc/stat";
    NicCounters = "proc/net/dev";
    PacketSockets = "proc/net/packet";
    Softnet = "proc/net/softnet_stat";
}

impl Fact for Span<Threads> {
    const PIECES: &'static [Piece] = &[Piece::Threads(&[
        "ksoftirqd/",
        "vif",
        "netback/",
        "vhost-",
        "CPU ",
        "ovs-vswitchd",
        "handler",
        "revalidator",
        "irqbalance",
        "qemu",
        "napi/",
        "ringway",
    ])];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.span("threads")
    }
}

impl Fact for Span<Busiest> {
    const PIECES: &'static [Piece] = &[Piece::Programs];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.span("busiest")
    }
}

impl Fact for Span<Quotas> {
    const PIECES: &'static [Piece] = &[Piece::Programs];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.span("cgroups")
    }
}

/// How long programs waited for memory.
#[derive(Debug)]
pub struct MemoryPressure(pub Span<Pressure>);

impl Fact for MemoryPressure {
    const PIECES: &'static [Piece] = &[Piece::Counters("proc/pressure/memory")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.span("proc/pressure/memory").map(MemoryPressure)
    }
}

/// How long programs waited for disks.
#[derive(Debug)]
pub struct DiskPressure(pub Span<Pressure>);

impl Fact for DiskPressure {
    const PIECES: &'static [Piece] = &[Piece::Counters("proc/pressure/io")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.span("proc/pressure/io").map(DiskPressure)
    }
}

/// The daemon that moves interrupts, if it runs: its PID and name.
#[derive(Debug)]
pub struct Irqbalance(pub Option<(u64, String)>);

impl Fact for Irqbalance {
    const PIECES: &'static [Piece] = <Span<Threads> as Fact>::PIECES;

    fn read(at: &Reader) -> Result<Self, Gap> {
        let threads = Threads::parse(&at.latest("threads")?)?;
        let daemon = threads.threads.values().find(|thread| thread.name == "irqbalance");
        Ok(Irqbalance(daemon.map(|thread| (thread.id, thread.name.clone()))))
    }
}

impl Fact for Span<Sockets> {
    const PIECES: &'static [Piece] = &[Piece::Connections];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.connections_span()
    }
}

impl Fact for Span<Listeners> {
    const PIECES: &'static [Piece] = &[Piece::Sockets];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.span(LISTENERS)
    }
}

/// The destinations of most connections, if ports may run out, and the range of ports.
#[derive(Debug)]
pub struct Ports {
    /// By destination.
    pub destinations: Destinations,
    /// To quote.
    pub text: Text,
    /// First and last.
    pub range: (u64, u64),
    /// To quote.
    pub range_text: Text,
}

const RANGE: &str = "proc/sys/net/ipv4/ip_local_port_range";

impl Fact for Ports {
    const PIECES: &'static [Piece] = &[Piece::Sockets, Piece::File(RANGE)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let range_text = at.file(RANGE)?;
        let range: Vec<u64> = range_text.value().split_whitespace().flat_map(str::parse).collect();
        let [first, last] = range.as_slice() else {
            return Err(range_text.unreadable(Some(1), "expected the first and the last port"));
        };
        let text = at.latest(DESTINATIONS)?;
        let destinations = Destinations::parse(&text)?;
        Ok(Ports { destinations, text, range: (*first, *last), range_text })
    }
}

/// The ports that a NAT uses, if entries could not be added to the table of tracked connections.
#[derive(Debug)]
pub struct NatPorts {
    /// By destination.
    pub translations: Translations,
    /// To quote.
    pub text: Text,
}

impl Fact for NatPorts {
    const PIECES: &'static [Piece] = &[Piece::Translations];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.file(TRANSLATIONS)?;
        Ok(NatPorts { translations: Translations::parse(&text)?, text })
    }
}

/// The programs that own sockets; empty for a record without this information.
#[derive(Debug)]
pub struct SocketOwners(Option<Owners>);

impl Fact for SocketOwners {
    const PIECES: &'static [Piece] = &[Piece::Sockets];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let owners = at.file("owners").and_then(|text| Owners::parse(&text));
        Ok(SocketOwners(owners.ok()))
    }
}

impl SocketOwners {
    /// The program of a socket for people, such as `nginx (process 7)`.
    pub fn of(&self, inode: u64) -> Option<String> {
        let (process, name) = self.0.as_ref()?.by_inode.get(&inode)?;
        Some(format!("{name} (process {process})"))
    }

    /// The process of a socket.
    pub fn process(&self, inode: u64) -> Option<u64> {
        Some(self.0.as_ref()?.by_inode.get(&inode)?.0)
    }

    /// The program of a socket, or "a program" with the reason why it is unknown.
    pub fn whose(&self, inode: u64) -> String {
        let why = || match &self.0 {
            None => "the record does not contain it",
            Some(owners) if owners.late > 0 => "the owner was not found in time",
            Some(owners) if owners.refused > 0 => "only root may see the owner",
            Some(_) => "no visible process: it is the kernel's, or in another process namespace",
        };
        self.of(inode).unwrap_or_else(|| format!("a program ({})", why()))
    }
}

/// Tables of datagram sockets, as far as they could be read.
#[derive(Debug)]
pub struct DatagramSockets(pub Vec<(&'static str, Span<Datagrams>)>);

impl Fact for DatagramSockets {
    const PIECES: &'static [Piece] = &[
        Piece::Counters("proc/net/udp"),
        Piece::Counters("proc/net/udp6"),
        Piece::Counters("proc/net/raw"),
        Piece::Counters("proc/net/raw6"),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let udp = at.span("proc/net/udp")?;
        let more = [("UDP", "proc/net/udp6"), ("raw", "proc/net/raw"), ("raw", "proc/net/raw6")];
        let more = more.into_iter().filter_map(|(kind, path)| Some((kind, at.span(path).ok()?)));
        Ok(DatagramSockets(std::iter::once(("UDP", udp)).chain(more).collect()))
    }
}

/// Growth of protocol counters between both samples, from `/proc/net/snmp` and `/proc/net/netstat`,
/// and with IPv6 `/proc/net/snmp6`.
#[derive(Debug)]
pub struct NetCounters {
    spans: Vec<Span<Protocols>>,
    /// Between the samples.
    pub seconds: f64,
    /// The samples that they come from.
    pub basis: Basis,
}

impl Fact for NetCounters {
    const PIECES: &'static [Piece] = &[
        Piece::Counters("proc/net/snmp"),
        Piece::Counters("proc/net/netstat"),
        Piece::Counters("proc/net/snmp6"),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let snmp: Span<Protocols> = at.span("proc/net/snmp")?;
        let (seconds, basis) = (snmp.seconds, snmp.basis);
        let mut spans = vec![snmp, at.span("proc/net/netstat")?];
        match at.span("proc/net/snmp6") {
            Ok(span) => spans.push(span),
            // A host without IPv6, or a record from before this file was collected.
            Err(Gap::Missing { .. }) => {}
            Err(gap) => return Err(gap),
        }
        Ok(NetCounters { spans, seconds, basis })
    }
}

impl NetCounters {
    /// How much a counter grew, such as `Tcp.RetransSegs`; 0 if this kernel does not have it.
    pub fn since(&self, name: &str) -> u64 {
        let of = |span: &Span<Protocols>| {
            let before = span.past(span.before.counters.get(name))?;
            Some(span.after.counters.get(name)?.saturating_sub(before))
        };
        self.spans.iter().find_map(of).unwrap_or(0)
    }

    /// The line of a protocol, or of a counter with a line of its own, such as `Udp6.RcvbufErrors`.
    pub fn quote(&self, protocol: &str) -> Option<Quote> {
        let of = |span: &Span<Protocols>| Some(span.text.quote(*span.after.lines.get(protocol)?));
        self.spans.iter().find_map(of)
    }
}

/// Packets that the kernel dropped between both samples, in all network namespaces of the machine.
#[derive(Debug)]
pub struct DropReasons {
    /// By reason and place.
    pub drops: Drops,
    /// To quote.
    pub text: Text,
}

impl Fact for DropReasons {
    const PIECES: &'static [Piece] = &[Piece::Drops];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.file(DROPS).map_err(|gap| match gap {
            // A sos report, or a record of a doctor that did not collect this.
            Gap::Missing { why, .. } if why == "not there" => {
                Gap::NotHere("the record does not contain what the kernel dropped".to_owned())
            }
            gap => gap,
        })?;
        Ok(DropReasons { drops: Drops::parse(&text)?, text })
    }
}

/// Established TCP connections at the last sample.
#[derive(Debug)]
pub struct Connections {
    /// All of them.
    pub sockets: Sockets,
    /// To quote.
    pub text: Text,
}

impl Fact for Connections {
    const PIECES: &'static [Piece] = &[Piece::Connections];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.connections()?;
        Ok(Connections { sockets: Sockets::parse(&text)?, text })
    }
}

impl Fact for Span<VcpuTimes> {
    const PIECES: &'static [Piece] = &[Piece::Sampled(&["xl", "vcpu-list"])];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command_span(&["xl", "vcpu-list"])
    }
}

const QDISCS: &[&str] = &["tc", "-s", "-j", "qdisc", "show"];

impl Fact for Span<Qdiscs> {
    const PIECES: &'static [Piece] = &[Piece::Sampled(QDISCS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command_span(QDISCS)
    }
}

const NEIGHBOURS: &[&str] = Neighbours::COMMAND;

impl Fact for Span<Neighbours> {
    const PIECES: &'static [Piece] = &[Piece::Sampled(NEIGHBOURS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command_span(NEIGHBOURS)
    }
}

const NFT: &[&str] = &["nft", "-a", "list", "ruleset"];
const IPTABLES: &[&str] = &["iptables-save", "-c"];
const IP6TABLES: &[&str] = &["ip6tables-save", "-c"];

impl Fact for Span<Rules> {
    const PIECES: &'static [Piece] = &[Piece::Sampled(NFT), Piece::Sampled(IPTABLES)];

    /// The rules of nftables, which include those of newer iptables versions; without any, the
    /// rules of older iptables versions, unless [`LegacyRules`] has them.
    fn read(at: &Reader) -> Result<Self, Gap> {
        let listed: Result<Span<Rules>, Gap> = at.command_span(NFT);
        if listed.as_ref().is_ok_and(|span| span.after.count() > 0) {
            return listed;
        }
        match at.command_span(IPTABLES) {
            Ok(Span { text, .. }) if !is_of_nft(&text) && at.command(LEGACY[0]).is_ok() => listed,
            Ok(saved) => Ok(saved),
            Err(gap) => listed.map_err(|own| match own {
                Gap::Unreadable { .. } => own,
                _ => gap,
            }),
        }
    }
}

/// Whether `iptables-save` shows rules of nftables.
fn is_of_nft(text: &Text) -> bool {
    text.value().contains("(nf_tables)")
}

/// Rules of older iptables versions, for IPv4 and IPv6, which exist beside those of nftables and
/// are in no list of theirs; those for IPv6 of versions without `legacy` in their names, too.
#[derive(Debug)]
pub struct LegacyRules(pub Vec<Span<Rules>>);

const LEGACY: [&[&str]; 2] = [&["iptables-legacy-save", "-c"], &["ip6tables-legacy-save", "-c"]];

impl Fact for LegacyRules {
    const PIECES: &'static [Piece] = &[
        Piece::Sampled(NFT),
        Piece::Sampled(IPTABLES),
        Piece::Sampled(LEGACY[0]),
        Piece::Sampled(LEGACY[1]),
        Piece::Sampled(IP6TABLES),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let all = LEGACY.iter().filter_map(|words| at.command_span(words).ok());
        let listed: Result<Span<Rules>, Gap> = at.command_span(NFT);
        let is_listed = listed.is_ok_and(|span| span.after.count() > 0);
        let is_more = |span: &Span<Rules>| {
            !(is_listed && is_of_nft(&span.text)) && at.command(LEGACY[1]).is_err()
        };
        let of_ipv6 = at.command_span(IP6TABLES).ok().filter(is_more);
        Ok(LegacyRules(all.chain(of_ipv6).collect()))
    }
}

/// Queueing disciplines at the last sample, and at the first one if known.
#[derive(Debug)]
pub struct Disciplines {
    /// At the first sample.
    pub before: Qdiscs,
    /// At the last.
    pub now: Qdiscs,
    /// To quote.
    pub text: Text,
}

impl Fact for Disciplines {
    const PIECES: &'static [Piece] = &[Piece::Sampled(QDISCS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.command(QDISCS)?;
        let now = Qdiscs::parse(&text)?;
        let before = at.command_span::<Qdiscs>(QDISCS).map(|span| span.before).unwrap_or_default();
        Ok(Disciplines { before, now, text })
    }
}

/// Hits and misses of a switch's flow cache, from the daemon's counters, or from the kernel's if
/// the daemon does not reply. `ovs-dpctl` sees no datapath in user space.
#[derive(Debug)]
pub struct SwitchLookups(pub Span<Lookups>);

const DAEMON: &[&str] = &["ovs-appctl", "dpctl/show"];
const KERNEL: &[&str] = &["ovs-dpctl", "show"];

impl Fact for SwitchLookups {
    const PIECES: &'static [Piece] = &[Piece::Sampled(DAEMON), Piece::Sampled(KERNEL)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let daemon = match at.command_span(DAEMON) {
            Err(gap @ Gap::Missing { .. }) => gap,
            other => return other.map(SwitchLookups),
        };
        match at.command_span(KERNEL) {
            Err(gap) if !is_absent(&gap) => Err(gap),
            // A daemon is there, but we may not query it.
            Err(_) if !is_absent(&daemon) => Err(daemon),
            Err(_) => Err(Gap::NotHere("no Open vSwitch".to_owned())),
            Ok(span) => Ok(SwitchLookups(span)),
        }
    }
}

/// Whether the subject of a query does not exist: the tool, the kernel's module, or a daemon's
/// file.
pub(super) fn is_absent(gap: &Gap) -> bool {
    let absent = ["not installed", "not there", "'ovs_datapath' does not exist", "No such file"];
    matches!(gap, Gap::Missing { why, .. } if absent.iter().any(|absent| why.contains(absent)))
}

// Counters of each interface or of its parts, read one by one.
on_demand! {
    /// Frames that each card missed because its ring was full.
    Missed = [Piece::Counters("sys/class/net/*/statistics/rx_missed_errors")];
    /// How often the carrier of each changed.
    Carriers = [Piece::Counters("sys/class/net/*/carrier_changes")];
    /// Counters of policing filters.
    FilterCounters = [Piece::Filters];
    /// Counters of HTB and HFSC classes.
    ClassCounters = [Piece::Classes];
}

impl Missed {
    /// Those of one interface.
    pub fn of(&self, nic: &str) -> Result<Span<Single>, Gap> {
        self.0.span(&format!("sys/class/net/{nic}/statistics/rx_missed_errors"))
    }
}

impl Carriers {
    /// That of one interface.
    pub fn of(&self, nic: &str) -> Result<Span<Single>, Gap> {
        self.0.span(&format!("sys/class/net/{nic}/carrier_changes"))
    }
}

impl FilterCounters {
    /// Those of one hook of an interface.
    pub fn of(&self, hook: Hook, nic: &str) -> Result<Span<Policers>, Gap> {
        self.0.command_span(&hook.command(nic))
    }
}

impl ClassCounters {
    /// Those of one interface.
    pub fn of(&self, nic: &str) -> Result<Span<Classes>, Gap> {
        self.0.command_span(&["tc", "-s", "class", "show", "dev", nic])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    const NO_MODULE: &str = "|INFO|Generic Netlink family 'ovs_datapath' does not exist.";
    const OF_DAEMON: &str = "commands/ovs-appctl_dpctl.show";
    const OF_KERNEL: &str = "commands/ovs-dpctl_show";

    fn lookups(pieces: &[(&str, &str)], refused: &[(&str, &str)]) -> Result<u64, Gap> {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let refused: String =
            refused.iter().map(|(path, why)| format!("{path}\t{why}\n")).collect();
        let more = [("proc/uptime", "10.0 9\n"), ("refused", refused.as_str())];
        let host = Host::new(Source::Memory(pieces.iter().chain(&more).map(own).collect()));
        host.fact::<SwitchLookups>().map(|SwitchLookups(span)| span.after.missed)
    }

    #[test]
    fn the_daemon_is_asked_first_and_the_kernel_in_its_place() {
        let netdev = (OF_DAEMON, "netdev@ovs-netdev:\n  lookups: hit:1 missed:20000 lost:0\n");
        let system = (OF_KERNEL, "system@ovs-system:\n  lookups: hit:20000 missed:1 lost:0\n");
        assert_eq!(lookups(&[netdev, system], &[]), Ok(20000));
        assert_eq!(lookups(&[netdev], &[(OF_KERNEL, NO_MODULE)]), Ok(20000));
        assert_eq!(lookups(&[system], &[(OF_DAEMON, "open: No such file or directory")]), Ok(1));
        assert_eq!(lookups(&[system], &[(OF_DAEMON, "open: Permission denied")]), Ok(1));
    }

    #[test]
    fn a_daemon_that_may_not_be_asked_is_no_absent_one() {
        let no_module = (OF_KERNEL, NO_MODULE);
        let absent = lookups(&[], &[no_module, (OF_DAEMON, "open: No such file or directory")]);
        assert!(matches!(absent, Err(Gap::NotHere(_))));
        let locked = lookups(&[], &[no_module, (OF_DAEMON, "open: Permission denied")]);
        assert!(matches!(locked, Err(Gap::Missing { .. })));
    }
}
