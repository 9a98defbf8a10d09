//! Parses a description from TOML. Every fault is found, and names file, line and key, and what was
//! expected.

mod claims;
mod document;
mod explain;
mod links;
mod namespaces;
mod obsolete;
mod switch;
mod vhosts;
mod vif;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use ringway_datapath::Mirrored;
use ringway_worker::Policy;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use claims::Claims;
use document::{Document, Missing};
use switch::uplink_name;
use vif::offloads;

pub use obsolete::COMPLETION_OBSOLETE;

use crate::isolation::Owner;
use crate::quantity::Quantity;
use crate::section::{BridgeSection, FileSection, GuestSection, ONLY_OF_VHOST};
use crate::value::{VhostName, Within, optional_text};
use crate::{Bridge, Guest, GuestVif, Host, HostNetwork, Vhost, Workers};

/// Guests of one host: a fraction of what the broker can have.
const GUESTS_MAX: usize = 1024;
/// Interfaces of one guest.
const VIFS_MAX: usize = 32;
/// Ports of a switch, or a multiple of that: what the description does not need, at least half of
/// it, is for vifs that come later.
const PORTS_MIN: usize = 64;
/// The name of the connection of a tenant's process to the others, as a port.
const TRUNK: &str = "trunk";

/// An invalid description: all that is wrong with it, by line.
#[derive(Debug)]
pub struct DescriptionError {
    file: String,
    faults: Vec<Fault>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    /// The line, counted from 1, and its text.
    at: Option<(usize, String)>,
    message: String,
}

impl DescriptionError {
    pub(crate) fn of_file(file: &str, message: String) -> DescriptionError {
        DescriptionError { file: file.to_owned(), faults: vec![Fault { at: None, message }] }
    }

    /// How much is wrong.
    pub fn faults(&self) -> usize {
        self.faults.len()
    }

    /// The first fault in one line, and how many there are.
    pub fn summary(&self) -> String {
        let Some(Fault { at, message }) = self.faults.first() else { return self.file.clone() };
        let line = at.as_ref().map_or_else(String::new, |(line, _)| format!(", line {line}"));
        let others = match self.faults.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        format!("{}{line}: {message}{others}", self.file)
    }
}

impl std::error::Error for DescriptionError {}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Fault { at, message }) in self.faults.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}", self.file)?;
            match at {
                Some((line, content)) => {
                    write!(f, ", line {line}: {message}\n  {line} | {content}")?;
                }
                None => write!(f, ": {message}")?,
            }
        }
        Ok(())
    }
}

/// How a description will be used.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Overrides the number of workers.
    pub workers: Option<usize>,
    /// Overrides how queues are placed on them.
    #[serde(with = "optional_text")]
    pub policy: Option<Policy>,
    /// Overrides the maximum number of queues.
    pub max_queues: Option<u16>,
    /// Tenants have their own processes, whether the description says so or not.
    pub isolate: bool,
    /// Guests and bridges come from another toolstack.
    pub has_toolstack: bool,
}

/// Parses a description in memory; `file` is its name in errors.
///
/// # Errors
/// Everything that is wrong, and where.
pub fn parse(file: &str, content: &str, usage: Usage) -> Result<Host, DescriptionError> {
    let (source, sections) = Source::new(file, content);
    source.check_ports(&sections);
    source.check_devices(&sections);
    source.check_links(&sections, usage);
    if usage.has_toolstack {
        source.refuse_domains(&sections);
    }
    let guests = sections.guest.iter().filter_map(|guest| guest.get_ref().name.as_ref());
    let guests: Vec<usize> = guests.map(start).collect();
    let vhosts = sections.vhosts().filter_map(|(_, vhost)| vhost.name.as_ref());
    let vhosts: Vec<usize> = vhosts.map(start).collect();
    let mut host = source.check(sections);
    usage.override_in(&mut host);
    if host.is_isolated {
        for (owner, reason) in host.obstacles_to_isolation() {
            let at = match owner {
                Owner::Guest(index) => guests.get(index),
                Owner::Vhost(index) => vhosts.get(index),
            };
            source.fault(at.copied(), &reason);
        }
    }
    source.judge(host)
}

impl Usage {
    /// These options, and those of another start that these leave open.
    #[must_use]
    pub fn or(self, other: Usage) -> Usage {
        Usage {
            workers: self.workers.or(other.workers),
            policy: self.policy.or(other.policy),
            max_queues: self.max_queues.or(other.max_queues),
            isolate: self.isolate || other.isolate,
            has_toolstack: self.has_toolstack || other.has_toolstack,
        }
    }

    fn override_in(&self, host: &mut Host) {
        host.workers.count = self.workers.or(host.workers.count);
        host.workers.policy = self.policy.unwrap_or(host.workers.policy);
        host.max_queues = self.max_queues.unwrap_or(host.max_queues);
        host.is_isolated |= self.isolate;
    }
}

/// Parses the `[[vhost]]` or `[[namespace]]` of a vif that is added to a running host.
///
/// # Errors
/// Everything that is wrong, and where.
pub fn parse_vhost(content: &str) -> Result<Vhost, DescriptionError> {
    let (source, sections) = Source::new("the vif", content);
    let host = source.check(sections);
    let host = source.judge(host)?;
    let [vhost] = <[Vhost; 1]>::try_from(host.vhosts)
        .map_err(|_| DescriptionError::of_file("the vif", "expected one [[vhost]]".to_owned()))?;
    Ok(vhost)
}

/// The origin of a description, and what is wrong with it.
struct Source<'a> {
    file: &'a str,
    content: &'a str,
    missing: Missing,
    faults: RefCell<Vec<Fault>>,
}

impl<'a> Source<'a> {
    fn new(file: &'a str, content: &'a str) -> (Source<'a>, FileSection) {
        let Document { sections, faults, missing } = Document::read(content);
        let source = Source { file, content, missing, faults: RefCell::default() };
        for (offset, message) in faults {
            source.fault(offset, &message);
        }
        (source, sections)
    }

    /// The number of the line with this offset, from 1.
    fn line(&self, offset: usize) -> Option<usize> {
        Some(self.content.get(..offset)?.matches('\n').count() + 1)
    }

    /// Notes that something is wrong.
    fn fault(&self, offset: Option<usize>, message: &str) {
        let at = offset.and_then(|offset| {
            let line = self.line(offset)?;
            let content = self.content.lines().nth(line - 1).unwrap_or_default().trim();
            Some((line, content.to_owned()))
        });
        self.faults.borrow_mut().push(Fault { at, message: message.to_owned() });
    }

    fn fault_at<T>(&self, what: &Spanned<T>, message: &str) {
        self.fault(Some(start(what)), message);
    }

    /// What was parsed, if nothing is wrong with it.
    fn judge<T>(self, parsed: T) -> Result<T, DescriptionError> {
        let mut faults = self.faults.into_inner();
        if faults.is_empty() {
            return Ok(parsed);
        }
        faults.sort();
        faults.dedup();
        Err(DescriptionError { file: self.file.to_owned(), faults })
    }

    /// Notes that a section lacks a key that it needs; where it begins, and another key of it.
    fn lacks<T>(&self, section: &Spanned<T>, (name, key): (&str, &str), near: Option<usize>) {
        if !self.missing.has(start(section), key) {
            let path = name.trim_matches(['[', ']']);
            let message = format!("{path}.{key}: is missing; each {name} needs one");
            self.fault(near.or(Some(start(section))), &message);
        }
    }

    /// Guests and bridges, where others make them.
    fn refuse_domains(&self, sections: &FileSection) {
        let first = [
            ("guest", sections.guest.first().map(start)),
            ("bridge", sections.bridge.first().map(start)),
        ];
        for (section, at) in first {
            if at.is_some() {
                let message = format!(
                    "the description has a section [[{section}]]: remove it, because with \
                     --hypervisor xen the toolstack manages guests and bridges"
                );
                self.fault(at, &message);
            }
        }
    }

    /// Checks that no two network devices of the host get one name.
    fn check_devices(&self, sections: &FileSection) {
        let bridges = sections.bridge.iter().filter_map(|it| it.get_ref().name.as_ref());
        let bridges: HashSet<&str> = bridges.map(|name| name.get_ref().0.as_str()).collect();
        if let Some(uplink) = &sections.uplink {
            let name = uplink_name(uplink.get_ref());
            if bridges.contains(name.as_str()) {
                let at = uplink.get_ref().name.as_ref().map_or(start(uplink), start);
                let message =
                    format!("uplink.name: `{name}` is the name of a [[bridge]]: choose another");
                self.fault(Some(at), &message);
            }
        }
        for vhost in sections.vhost.iter().map(Spanned::get_ref) {
            let Some(name) = vhost.name.as_ref().filter(|_| vhost.bridge.is_some()) else {
                continue;
            };
            if bridges.contains(name.get_ref().0.as_str()) {
                let message = format!(
                    "vhost.name: `{}` is the name of a [[bridge]], and its network device would \
                     have it, too: choose another",
                    name.get_ref()
                );
                self.fault_at(name, &message);
            }
        }
    }

    /// Checks the names of ports, of which a mirror may name each. Vifs that are added later, to
    /// a host that may have other ports, are checked by the backend.
    fn check_ports(&self, sections: &FileSection) {
        let section = sections.uplink.as_ref().map(Spanned::get_ref);
        let uplink = section.map(|section| uplink_name(section));
        if let Some(name) = section.and_then(|uplink| uplink.name.as_ref()) {
            let text = name.get_ref().0.as_str();
            if text == Mirrored::ALL || is_xen_vif(text) {
                let message = format!(
                    "uplink.name: `{text}` is a name for all ports or for a Xen vif: choose another"
                );
                self.fault_at(name, &message);
            }
        }
        let names = || sections.vhosts().filter_map(|(of, vif)| Some((of, vif.name.as_ref()?)));
        let is_uplink = |name: &VhostName| uplink.as_deref() == Some(&name.0);
        if let Some((of, name)) = names().find(|(_, name)| is_uplink(name.get_ref())) {
            let message = format!(
                "{of}.name: `{}` is the name of the uplink: choose another",
                name.get_ref()
            );
            self.fault_at(name, &message);
        }
        if self.missing.has_any(&["name", "vhost", "namespace", "uplink"]) {
            return;
        }
        let is_port = |port: &str| {
            [Mirrored::ALL, TRUNK].contains(&port)
                || is_xen_vif(port)
                || uplink.as_deref() == Some(port)
                || names().any(|(_, name)| name.get_ref().0 == port)
        };
        let of_guests = sections.guest.iter().flat_map(|guest| &guest.get_ref().vif);
        let of_guests = of_guests.flat_map(|vif| &vif.get_ref().mirror).map(|it| ("guest.vif", it));
        let of_vhosts = sections.vhosts();
        let of_vhosts = of_vhosts.flat_map(|(of, vif)| vif.mirror.iter().map(move |it| (of, it)));
        for (section, it) in of_guests.chain(of_vhosts) {
            if !is_port(&it.get_ref().0.port) {
                let message = format!(
                    "{section}.mirror: there is no port `{}`: expected `all`, a vif such as \
                     vif1.0, a [[vhost]] or [[namespace]], or the uplink",
                    it.get_ref().0.port
                );
                self.fault_at(it, &message);
            }
        }
    }

    /// Checks the rest. What is wrong is left out of the result.
    fn check(&self, sections: FileSection) -> Host {
        let obsolete = self.obsolete(&sections);
        let FileSection { host, uplink, switch, bridge, guest, vhost, namespace } = sections;
        let bridges = self.bridges(&bridge);
        let mut claims = Claims::new();
        // Others than these may exist where the host is.
        let known = (host.network == HostNetwork::Private).then_some(&bridges[..]);
        let guests = self.guests(&guest, known, &mut claims);
        let mut vhosts = self.vhosts(&vhost, &mut claims);
        let namespaces = self.namespaces(&namespace, &vhosts, &mut claims);
        vhosts.extend(namespaces);
        let vifs: usize = guests.iter().map(|guest| guest.vifs.len()).sum();
        // A vif on a bridge takes two ports, its own and that of its TAP device, and one of virtio
        // another one for disabled queues; the uplink takes one.
        let needed = 2 * vifs + 3 * vhosts.len() + 1;
        let ports = (needed + PORTS_MIN / 2).next_multiple_of(PORTS_MIN);
        let ports = u16::try_from(ports).unwrap_or_else(|_| {
            let message = format!("its vifs need {needed} ports, and a switch has {}", u16::MAX);
            self.fault(None, &message);
            u16::MAX
        });
        Host {
            dir: host.dir,
            network: host.network,
            is_isolated: host.isolate.is_some_and(Spanned::into_inner),
            without_landlock: host.without_landlock,
            lacks_landlock: false,
            workers: Workers {
                count: host.workers.and_then(Within::get),
                policy: host.policy,
                cpus: host.cpus.iter().filter_map(|cpu| cpu.get()).collect(),
                poll_us: host.poll_us.and_then(Quantity::get),
                frame_memory_mib: host.frame_memory_mib.and_then(Quantity::get).unwrap_or(128),
            },
            max_queues: host.max_queues.and_then(Within::get).unwrap_or_else(online_cpus),
            balances_flows: host.balance_flows,
            flow_key: host.flow_key,
            split_event_channels: host.split_event_channels.unwrap_or(true),
            offloads: offloads(host.sg, host.csum, host.gso),
            socket_group: host.socket_group,
            uplink: uplink.map(Spanned::into_inner).map(switch::uplink),
            switch: switch::switch(switch, ports),
            bridges,
            guests,
            vhosts,
            refused: None,
            origin: None,
            obsolete,
        }
    }

    fn bridges(&self, sections: &[Spanned<BridgeSection>]) -> Vec<Bridge> {
        let (mut names, mut bridges) = (HashSet::new(), Vec::new());
        for section in sections {
            let Some(name) = &section.get_ref().name else {
                self.lacks(section, ("[[bridge]]", "name"), None);
                continue;
            };
            if !names.insert(name.get_ref()) {
                self.fault_at(name, "bridge.name: another bridge has this name");
            }
            bridges.push(Bridge {
                name: name.get_ref().clone(),
                addresses: section.get_ref().addresses.clone(),
            });
        }
        bridges
    }

    fn guests(
        &self,
        sections: &[Spanned<GuestSection>],
        bridges: Option<&[Bridge]>,
        claims: &mut Claims,
    ) -> Vec<Guest> {
        let mut names = HashSet::new();
        let mut guests = Vec::new();
        if let Some(section) = sections.get(GUESTS_MAX) {
            self.fault_at(section, &format!("guest: expected at most {GUESTS_MAX} of them"));
        }
        for (number, section) in (1_u16..).zip(sections) {
            let (whole, section) = (section, section.get_ref());
            if let Some(name) = section.name.as_ref().filter(|it| !names.insert(it.get_ref())) {
                let message = format!("guest.name: another guest is called `{}`", name.get_ref());
                self.fault_at(name, &message);
            }
            if let Some(vif) = section.vif.get(VIFS_MAX) {
                self.fault_at(vif, &format!("guest.vif: expected at most {VIFS_MAX} for a guest"));
            }
            let name = section.name.as_ref().map_or("without a name", |name| &name.get_ref().0);
            let owner = format!("the guest `{name}`");
            let mut vifs = Vec::new();
            for (handle, whole) in (0_u8..).zip(&section.vif) {
                let section = whole.get_ref();
                self.refuse(section, "guest.vif", &ONLY_OF_VHOST, |key| match key {
                    "name" | "vm-uuid" => "not here; set it in [[guest]]",
                    _ => "only in [[vhost]]; remove it",
                });
                self.refuse_of_namespaces(section, "guest.vif");
                let vif = GuestVif {
                    iface_id: section.iface_id.as_ref().map(|it| it.get_ref().clone()),
                    bind: section.bind.as_ref().map(|it| *it.get_ref()).unwrap_or_default(),
                    ..self.vif(whole, ("guest.vif", number, handle), bridges)
                };
                let at = section.mac.as_ref().map_or(start(whole), start);
                self.claim(claims, section, ("guest.vif", &owner), Some((vif.mac, at)), &vif);
                vifs.push(vif);
            }
            let Some(name) = &section.name else {
                self.lacks(whole, ("[[guest]]", "name"), None);
                continue;
            };
            guests.push(Guest {
                name: name.get_ref().clone(),
                vm_uuid: section.vm_uuid.clone(),
                memory_mib: section.memory_mib.and_then(Quantity::get).unwrap_or(256),
                on_exit: section.on_exit,
                vifs,
            });
        }
        guests
    }
}

/// Where something begins.
fn start<T>(what: &Spanned<T>) -> usize {
    what.span().start
}

/// Whether this is the name of a Xen vif, `vifD.H`.
fn is_xen_vif(name: &str) -> bool {
    let numbers = name.strip_prefix("vif").and_then(|numbers| numbers.split_once('.'));
    numbers.is_some_and(|(domain, handle)| {
        domain.parse::<u16>().is_ok() && handle.parse::<u32>().is_ok()
    })
}

/// What a backend offers by default (`multi-queue-series:maximum`).
fn online_cpus() -> u16 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cpus).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
