//! What a sos report has about interfaces, as the files of `/sys/class/net` that facts read: a sos
//! report has few of these files, and the output of `ip -s -d link` instead.

use std::collections::BTreeMap;

use super::source::{PIECES_MAX, Source};
use super::text::Text;
use crate::parse::Counters;
use crate::parse::routes::{Addresses, Neighbours, Routes};

/// Commands that show interfaces with details, the best first.
const LINKS: [&[&str]; 4] = [
    &["ip", "-s", "-d", "link"],
    &["ip", "-d", "link"],
    &["ip", "-d", "link", "show"],
    &["ip", "-d", "address"],
];
/// Types of `linux/if_arp.h`, by the words of `ip`.
const TYPES: [(&str, u32); 8] = [
    ("ether", 1),
    ("infiniband", 32),
    ("ipip", 768),
    ("tunnel6", 769),
    ("loopback", 772),
    ("sit", 776),
    ("gre", 778),
    ("none", 65534),
];
/// Kinds of interfaces that the kernel names in `uevent`.
const NAMED: [&str; 6] = ["bond", "bridge", "geneve", "vlan", "vxlan", "wireguard"];
/// Kinds whose `@` or `dev` names the interface below; for others it is the other end, or where
/// packets are routed.
const ABOVE: [&str; 7] = ["ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "vlan", "vxlan"];
/// Flags of `tun_flags`.
const IFF_TUN: u32 = 1;
const IFF_TAP: u32 = 2;
const IFF_VNET_HDR: u32 = 0x4000;

/// Files that follow from other evidence, by path, and what could not be read of it.
#[derive(Debug, Default)]
pub(crate) struct Derived {
    pub(crate) files: BTreeMap<String, Text>,
    pub(crate) remarks: Vec<String>,
}

impl Derived {
    /// What follows from the commands of a sos report; nothing for a record, which has the files.
    pub(crate) fn of(source: &Source) -> Derived {
        let mut derived = Derived::default();
        if let Some(text) = LINKS.iter().find_map(|words| source.command("", words).ok()) {
            let skipped = derived.interfaces(&text);
            derived.skipped(&text, skipped);
        }
        let plain = |words: &[&str]| {
            let text = source.command("", words).ok()?;
            (!text.value().starts_with('[')).then_some(text)
        };
        if let Some(text) = plain(Routes::COMMAND) {
            let skipped = Routes::parse(&text).map_or(0, |all| all.skipped);
            derived.skipped(&text, skipped);
        }
        if let Some(text) = plain(Addresses::COMMAND) {
            let skipped = Addresses::parse(&text).map_or(0, |all| all.skipped);
            derived.skipped(&text, skipped);
        }
        if let Some(text) = plain(Neighbours::COMMAND) {
            let skipped = Neighbours::parse(&text).map_or(0, |all| all.skipped);
            derived.skipped(&text, skipped);
        }
        if let Ok(text) = source.command("", &["ifconfig", "-a"]) {
            derived.configured(&text);
        }
        derived
    }

    /// Adds names and MTUs of interfaces from the output of `ifconfig -a`, which an archive of
    /// xen-bugtool has in place of these files.
    fn configured(&mut self, text: &Text) {
        for (line, row) in text.lines().filter(|(_, row)| row.contains(": flags=")) {
            let mtu = row.split_once(" mtu ").and_then(|(_, rest)| rest.split(' ').next());
            let (Some((name, _)), Some(mtu)) = (row.split_once(':'), mtu) else { continue };
            self.add(
                text,
                &Nic {
                    name: name.to_owned(),
                    line,
                    mtu: mtu.parse().unwrap_or_default(),
                    ..Nic::default()
                },
            );
        }
    }

    fn skipped(&mut self, text: &Text, count: usize) {
        if count > 0 {
            let origin = text.origin();
            self.remarks.push(format!("{count} lines of `{origin}` could not be read"));
        }
    }

    /// Adds the files of all interfaces, and returns how many lines could not be read.
    fn interfaces(&mut self, text: &Text) -> usize {
        let mut skipped = 0;
        let mut nic: Option<Nic> = None;
        for (line, row) in text.lines() {
            if row.starts_with(|letter: char| letter.is_ascii_digit()) {
                nic.take().into_iter().for_each(|nic| self.add(text, &nic));
                nic = Nic::of_head(row, line);
                skipped += usize::from(nic.is_none());
            } else if let Some(nic) = &mut nic {
                nic.detail(row);
            }
        }
        nic.into_iter().for_each(|nic| self.add(text, &nic));
        skipped
    }

    fn add(&mut self, text: &Text, nic: &Nic) {
        for (file, value) in nic.files() {
            if self.files.len() < PIECES_MAX {
                let origin = format!("{}, line {}, {}", text.origin(), nic.line, nic.name);
                let path = format!("sys/class/net/{}/{file}", nic.name);
                self.files.insert(path, Text::new(origin, value + "\n"));
            }
        }
    }

    /// The names in a directory.
    pub(crate) fn list(&self, path: &str) -> impl Iterator<Item = String> {
        let start = format!("{path}/");
        let below = self.files.range(start.clone()..);
        let below = below.map(|(path, _)| path).take_while({
            let start = start.clone();
            move |path| path.starts_with(&start)
        });
        below.map(move |path| path[start.len()..].split('/').next().unwrap_or("").to_owned())
    }
}

/// An interface, as far as it is known.
#[derive(Debug, Default)]
struct Nic {
    name: String,
    /// Its line in the output.
    line: usize,
    /// Behind `@`: the interface below, the other end, or `ifN` in another namespace.
    at: Option<String>,
    mtu: u64,
    qlen: Option<u64>,
    state: Option<String>,
    master: Option<String>,
    link_type: Option<u32>,
    kind: Option<String>,
    /// Words behind the kind, and those behind the kind of a port.
    details: Vec<String>,
    port: Vec<String>,
    device: Option<String>,
}

impl Nic {
    /// `2: eth0@eth1: <UP> mtu 1500 qdisc mq master br0 state UP ... qlen 1000`.
    fn of_head(row: &str, line: usize) -> Option<Nic> {
        let mut words = row.split_whitespace();
        words.next()?.strip_suffix(':')?.parse::<u32>().ok()?;
        let name = words.next()?.strip_suffix(':')?;
        let (name, at) = name.split_once('@').map_or((name, None), |(name, at)| (name, Some(at)));
        let is_plain = !name.is_empty() && !name.contains('/') && ![".", ".."].contains(&name);
        if !is_plain || !words.next()?.starts_with('<') {
            return None;
        }
        let words: Vec<&str> = words.collect();
        Some(Nic {
            name: name.to_owned(),
            line,
            at: at.map(str::to_owned),
            mtu: after("mtu", &words)?.parse().ok()?,
            qlen: after("qlen", &words).and_then(|qlen| qlen.parse().ok()),
            state: after("state", &words).map(str::to_lowercase),
            master: after("master", &words).map(str::to_owned),
            ..Nic::default()
        })
    }

    /// An indented line. Those with a name that a person gave (`alias`) are not read.
    fn detail(&mut self, row: &str) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match words.as_slice() {
            [link, rest @ ..] if link.starts_with("link/") && self.link_type.is_none() => {
                let word = &link["link/".len()..];
                self.link_type =
                    TYPES.iter().find(|(name, _)| *name == word).map(|(_, number)| *number);
                self.device = after("parentdev", rest).map(str::to_owned);
            }
            ["bridge_slave", rest @ ..] => self.port = own(rest),
            [kind, rest @ ..] if self.kind.is_none() && is_kind(kind, rest) => {
                self.kind = Some((*kind).to_owned());
                self.details = own(rest);
            }
            _ => {}
        }
    }

    /// The files of `/sys/class/net/NAME` that follow.
    fn files(&self) -> Vec<(String, String)> {
        let mut files = vec![("mtu".to_owned(), self.mtu.to_string())];
        let mut add = |name: &str, value: Option<String>| {
            files.extend(value.map(|value| (name.to_owned(), value)));
        };
        let (details, port): (Vec<&str>, Vec<&str>) = (
            self.details.iter().map(String::as_str).collect(),
            self.port.iter().map(String::as_str).collect(),
        );
        let kind = self.kind.as_deref().unwrap_or_default();
        let number = |name: &str, words: &[&str]| {
            after(name, words).filter(|word| word.parse::<u64>().is_ok()).map(str::to_owned)
        };
        let is_on = |name: &str| match after(name, &port)? {
            "on" => Some("1".to_owned()),
            "off" => Some("0".to_owned()),
            _ => None,
        };
        add("tx_queue_len", self.qlen.map(|qlen| qlen.to_string()));
        add("operstate", self.state.clone());
        add("type", self.link_type.map(|number| number.to_string()));
        add(
            "uevent",
            NAMED.contains(&kind).then(|| format!("DEVTYPE={kind}\nINTERFACE={}", self.name)),
        );
        add("master.link", self.master.as_ref().map(|master| format!("../{master}")));
        add("device.link", self.device.as_ref().map(|device| format!("../../../{device}")));
        if kind == "bridge" {
            add("bridge/bridge_id", after("bridge_id", &details).map(str::to_owned));
            add("bridge/ageing_time", number("ageing_time", &details));
            add("bridge/nf_call_iptables", number("nf_call_iptables", &details));
        }
        add("brport/port_id", after("port_id", &port).map(str::to_owned));
        add("brport/learning", is_on("learning"));
        add("brport/unicast_flood", is_on("flood"));
        if kind == "tun" {
            let tap = if after("type", &details) == Some("tap") { IFF_TAP } else { IFF_TUN };
            let header = if after("vnet_hdr", &details) == Some("on") { IFF_VNET_HDR } else { 0 };
            add("tun_flags", Some(format!("0x{:x}", tap | header)));
        }
        if ABOVE.contains(&kind) {
            let below = self.at.as_deref().or_else(|| after("dev", &details));
            // `if7` and `NONE` are in another namespace, or nowhere.
            let is_here = |below: &&str| {
                let index =
                    below.strip_prefix("if").is_some_and(|rest| rest.parse::<u32>().is_ok());
                !index && *below != "NONE" && !below.contains('/')
            };
            if let Some(below) = below.filter(is_here) {
                add(&format!("lower_{below}.link"), Some(format!("../{below}")));
            }
        }
        files
    }
}

/// Whether an indented line begins with the kind of an interface, and not with something else that
/// `ip` prints there.
fn is_kind(word: &str, rest: &[&str]) -> bool {
    const OTHERS: [&str; 9] = ["RX:", "TX:", "RX", "TX", "alias", "altname", "inet", "inet6", "vf"];
    let is_word = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    let is_lifetime = word == "valid_lft";
    let is_other = OTHERS.contains(&word) || word.ends_with("_slave") || word.starts_with("link/");
    !rest.is_empty() && is_word && !is_number && !is_lifetime && !is_other
}

/// The word behind another one.
fn after<'a>(name: &str, words: &[&'a str]) -> Option<&'a str> {
    words.windows(2).find(|two| two[0] == name).map(|two| two[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{Host, Interfaces, LinkStates, Mtus, NicRole, QueueLengths, Remarks, Stack};

    /// As iproute2 6.1 of Debian 12 prints it, shortened.
    const DEBIAN: &str = include_str!("links/debian-12.txt");
    /// As iproute2 of RHEL 8 prints it, shortened.
    const RHEL: &str = include_str!("links/rhel-8.txt");

    fn host(text: &str) -> Host {
        let path = "sos_commands/networking/ip_-s_-d_link".to_owned();
        Host::new(Source::Memory([(path, text.to_owned())].into()))
    }

    #[test]
    fn a_sos_report_of_debian_shows_links() {
        let host = host(DEBIAN);
        let nics: Interfaces = host.fact().expect("sound");
        assert_eq!(nics.names(), ["br0", "eth0", "tap0", "vb", "vx0"]);
        let mtus: Mtus = host.fact().expect("sound");
        let mtu = mtus.of("eth0").expect("known");
        assert_eq!(mtu.number(), Ok(9000));
        assert_eq!(mtu.origin(), "ip -s -d link, line 5, eth0");
        let lengths: QueueLengths = host.fact().expect("sound");
        assert_eq!(lengths.of("eth0").expect("known").number(), Ok(20000));
        let states: LinkStates = host.fact().expect("sound");
        assert_eq!(states.of("tap0").expect("known").value(), "down");
        assert_eq!(nics.device_type("vx0").as_deref(), Some("vxlan"));
        assert_eq!(nics.device_type("eth0"), None);
        assert_eq!(nics.role("tap0"), NicRole::Backend);
        assert_eq!(nics.has_offload_headers("tap0"), Some(true));
        assert!(nics.is_forwarding("eth0") && nics.is_forwarding("tap0"));
        let bridges: crate::fact::BridgeSettings = host.fact().expect("sound");
        assert_eq!(bridges.port("eth0", "learning").map(|(is_on, _)| is_on), Some(0));
        assert_eq!(bridges.bridge("br0", "ageing_time").map(|(time, _)| time), Some(30000));
        let stack: Stack = host.fact().expect("sound");
        // A tunnel that routes lead, and a veth, have nothing below.
        assert_eq!(stack.links.len(), 2, "{stack:?}");
    }

    #[test]
    fn a_sos_report_of_rhel_shows_links_and_counts_what_is_foreign() {
        let host = host(RHEL);
        let stack: Stack = host.fact().expect("sound");
        let below = |nic: &str| stack.below(nic).cloned().collect::<Vec<_>>();
        assert_eq!((below("ens3.7"), below("vxlan1")), (vec!["ens3".into()], vec!["ens3".into()]));
        let mtus: Mtus = host.fact().expect("sound");
        assert!(mtus.of("cni0").is_err());
        let Remarks(said) = host.fact().expect("sound");
        assert_eq!(said, ["1 lines of `ip -s -d link` could not be read"]);
    }

    #[test]
    fn a_torn_or_foreign_output_shows_nothing() {
        for text in
            ["", "garbage\n", "2: eth0: <UP> mtu 15", "2: ../x: <UP> mtu 1500\n", "2: a: mtu 1\n"]
        {
            let host = host(text);
            let nics: Interfaces = host.fact().expect("sound");
            assert_eq!(nics.names(), Vec::<String>::new(), "{text:?}");
        }
    }
}
