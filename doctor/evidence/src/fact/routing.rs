//! What decides where packets are sent: routes, addresses, their settings, and bridges.

use super::{Fact, Reader, Span};
use crate::parse::Counters;
use crate::parse::bpf::{Kept, Loaded};
use crate::parse::inet6::Inet6;
use crate::parse::links::Links;
use crate::parse::moves::{FILE as MOVES, Moves};
use crate::parse::neighbour_table::NeighbourTable;
use crate::parse::routes::{Addresses, Routes};
use crate::{Gap, Piece, Quote, Text};

const ROUTES: &[&str] = Routes::COMMAND;
const ADDRESSES: &[&str] = Addresses::COMMAND;

/// Routes and addresses of a network namespace.
#[derive(Debug)]
pub struct Routing {
    /// All routes except multicast ones and those to local addresses.
    pub routes: Routes,
    /// All interfaces with their addresses.
    pub addresses: Addresses,
}

impl Fact for Routing {
    const PIECES: &'static [Piece] = &[Piece::Command(ROUTES), Piece::Command(ADDRESSES)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let routes = Routes::parse(&at.command(ROUTES)?)?;
        Ok(Routing { routes, addresses: Addresses::parse(&at.command(ADDRESSES)?)? })
    }
}

const LINKS: &[&str] = Links::COMMAND;
/// What a sos report has instead.
const SAVED_LINKS: &[&str] = &["ip", "-s", "-d", "link"];

/// Details of interfaces: XDP programs, ends of tunnels, settings of bridges and their ports.
#[derive(Debug)]
pub struct LinkDetails {
    /// All interfaces of the network namespace.
    pub links: Links,
    /// To quote.
    pub text: Text,
}

impl Fact for LinkDetails {
    const PIECES: &'static [Piece] = &[Piece::Command(LINKS), Piece::SavedCommand(SAVED_LINKS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.command(LINKS).or_else(|_| at.command(SAVED_LINKS))?;
        Ok(LinkDetails { links: Links::parse(&text)?, text })
    }
}

impl LinkDetails {
    /// What is said of an interface, to quote: the tool prints all on one line.
    pub fn quote(&self, nic: &str, what: impl std::fmt::Display) -> Quote {
        Quote { file: self.text.origin().to_owned(), line: None, text: format!("{nic}: {what}") }
    }
}

/// Who has loaded the programs that links and other parts of the kernel run, and what keeps them.
#[derive(Debug)]
pub struct ProgramOwners {
    programs: Loaded,
    links: Loaded,
    text: Text,
}

impl Fact for ProgramOwners {
    const PIECES: &'static [Piece] =
        &[Piece::Command(Loaded::PROGRAMS), Piece::Command(Loaded::LINKS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.command(Loaded::PROGRAMS)?;
        // Older tools know no links.
        let links = at.command(Loaded::LINKS).and_then(|links| Loaded::parse(&links));
        Ok(ProgramOwners {
            programs: Loaded::parse(&text)?,
            links: links.unwrap_or_default(),
            text,
        })
    }
}

impl ProgramOwners {
    /// What is known of the owner of a program, to quote.
    pub fn of(&self, program: u64) -> Option<Quote> {
        let kept = self.programs.all.iter().find(|one| one.id == program)?;
        let links = self.links.all.iter().filter(|link| link.prog_id == Some(program));
        let link = |link: &Kept| match link.to_string() {
            kept if kept.is_empty() => format!("attached by link {}", link.id),
            kept => format!("attached by link {}, {kept}", link.id),
        };
        let all: Vec<String> = std::iter::once(kept.to_string()).chain(links.map(link)).collect();
        let said: Vec<String> = all.into_iter().filter(|one| !one.is_empty()).collect();
        let file = self.text.origin().to_owned();
        (!said.is_empty()).then(|| Quote { file, line: None, text: said.join(", ") })
    }
}

const BLACKHOLES: &[&str] = &["ip", "-j", "route", "show", "table", "all", "type", "blackhole"];

/// Routes that drop what takes them, without a reply and without a counter.
#[derive(Debug)]
pub struct Blackholes(pub Routes);

impl Fact for Blackholes {
    const PIECES: &'static [Piece] = &[Piece::Command(BLACKHOLES)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(Blackholes(Routes::parse(&at.command(BLACKHOLES)?)?))
    }
}

/// The tables of neighbours of the whole machine, with the limit of each: only in its own network
/// namespace.
#[derive(Debug)]
pub struct NeighbourTables(Reader);

/// A table, and the setting that limits it.
#[derive(Debug)]
pub struct Limited {
    /// Its name as a sysctl.
    pub setting: String,
    /// The most entries.
    pub max: u64,
    /// To quote.
    pub max_text: Text,
    /// The entries at both samples.
    pub span: Span<NeighbourTable>,
}

impl Fact for NeighbourTables {
    const PIECES: &'static [Piece] = &[
        Piece::Counters("proc/net/stat/arp_cache"),
        Piece::Counters("proc/net/stat/ndisc_cache"),
        Piece::File("proc/sys/net/ipv4/neigh/default/gc_thresh3"),
        Piece::File("proc/sys/net/ipv6/neigh/default/gc_thresh3"),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(NeighbourTables(at.clone()))
    }
}

impl NeighbourTables {
    /// Those that can be read.
    pub fn all(&self) -> Vec<Limited> {
        let one = |(family, table): (&str, &str)| {
            let max_text =
                self.0.file(&format!("proc/sys/net/{family}/neigh/default/gc_thresh3")).ok()?;
            Some(Limited {
                setting: format!("net.{family}.neigh.default.gc_thresh3"),
                max: max_text.number().ok()?,
                max_text,
                span: self.0.span(&format!("proc/net/stat/{table}")).ok()?,
            })
        };
        [("ipv4", "arp_cache"), ("ipv6", "ndisc_cache")].into_iter().filter_map(one).collect()
    }
}

/// Addresses that moved between both samples.
#[derive(Debug)]
pub struct Moved {
    /// Those that moved most first.
    pub moves: Moves,
    /// To quote.
    pub text: Text,
}

impl Fact for Moved {
    const PIECES: &'static [Piece] = &[Piece::Moves];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.file(MOVES).map_err(|gap| match gap {
            // A sos report, or a record of a doctor that did not collect this.
            Gap::Missing { why, .. } if why == "not there" => {
                Gap::NotHere("the record does not contain which addresses moved".to_owned())
            }
            gap => gap,
        })?;
        Ok(Moved { moves: Moves::parse(&text)?, text })
    }
}

const INET6: &str = "proc/net/if_inet6";

/// The IPv6 addresses of a network namespace itself.
#[derive(Debug)]
pub struct OwnAddresses {
    /// In the order of the kernel.
    pub addresses: Inet6,
    /// To quote.
    pub text: Text,
}

impl Fact for OwnAddresses {
    const PIECES: &'static [Piece] = &[Piece::File(INET6)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.file(INET6)?;
        Ok(OwnAddresses { addresses: Inet6::parse(&text)?, text })
    }
}

on_demand! {
    /// What decides IPv4 routing: sysctls of the namespace and of each interface.
    Switches = [
        Piece::File("proc/sys/net/ipv4/fib_multipath_use_neigh"),
        Piece::File("proc/sys/net/ipv4/conf/*/arp_announce"),
        Piece::File("proc/sys/net/ipv4/conf/*/arp_filter"),
        Piece::File("proc/sys/net/ipv4/conf/*/arp_ignore"),
        Piece::File("proc/sys/net/ipv4/conf/*/ignore_routes_with_linkdown"),
        Piece::File("proc/sys/net/ipv4/conf/*/rp_filter"),
        Piece::File("proc/sys/net/bridge/bridge-nf-call-ip6tables"),
        Piece::File("proc/sys/net/bridge/bridge-nf-call-iptables"),
    ];
}

impl Switches {
    /// One of them by its dotted name, in which a slash replaces a dot in an interface's name, as
    /// in sysctl(8).
    pub fn get(&self, name: &str) -> Option<Text> {
        let swapped = |letter| match letter {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        let path: String = name.chars().map(swapped).collect();
        self.0.file(&format!("proc/sys/{path}")).ok()
    }

    /// The effective value for an interface: the greater of its own and that of `all`.
    pub fn of(&self, nic: &str, name: &str) -> Option<(u64, Text)> {
        let read = |of: &str| {
            let text = self.0.file(&format!("proc/sys/net/ipv4/conf/{of}/{name}")).ok()?;
            Some((text.number().ok()?, text))
        };
        let (own, all) = (read(nic)?, read("all")?);
        Some(if all.0 > own.0 { all } else { own })
    }
}

on_demand! {
    /// Settings of bridges and of their ports.
    BridgeSettings = [
        Piece::File("sys/class/net/*/bridge/ageing_time"),
        Piece::File("sys/class/net/*/bridge/multicast_querier"),
        Piece::File("sys/class/net/*/bridge/multicast_snooping"),
        Piece::File("sys/class/net/*/bridge/nf_call_ip6tables"),
        Piece::File("sys/class/net/*/bridge/nf_call_iptables"),
        Piece::File("sys/class/net/*/brport/isolated"),
        Piece::File("sys/class/net/*/brport/learning"),
        Piece::File("sys/class/net/*/brport/unicast_flood"),
    ];
}

impl BridgeSettings {
    /// A setting of a bridge: its value, and the text to quote. `None` if the interface is not a
    /// bridge.
    pub fn bridge(&self, nic: &str, name: &str) -> Option<(u64, Text)> {
        self.number(&format!("sys/class/net/{nic}/bridge/{name}"))
    }

    /// A setting of a bridge's port. `None` if the interface is not a port.
    pub fn port(&self, nic: &str, name: &str) -> Option<(u64, Text)> {
        self.number(&format!("sys/class/net/{nic}/brport/{name}"))
    }

    fn number(&self, path: &str) -> Option<(u64, Text)> {
        let text = self.0.file(path).ok()?;
        Some((text.number().ok()?, text))
    }
}
