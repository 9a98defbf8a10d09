//! Finds the interfaces over which an administrator may be logged in.
//!
//! It includes one too many rather than too few: those of the route back to the SSH client, and
//! those of the default routes, because sudo hides the origin of a login; with all interfaces above
//! and below them.

use std::collections::BTreeSet;
use std::fs;

use ringway_evidence::tool;

/// Processes between us and the login.
const ANCESTORS_MAX: usize = 64;
/// Interfaces below one route: a VLAN on a bond on a card, and more.
const STACK_MAX: usize = 256;

/// The interfaces of the running host that must not be dropped.
pub fn admin_links() -> BTreeSet<String> {
    let mut links: BTreeSet<String> = default_route_links(
        &fs::read_to_string("/proc/net/route").unwrap_or_default(),
        &fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default(),
    );
    links.extend(clients().iter().filter_map(|client| link_to(client)));
    with_stack(links, |nic| {
        let entries = fs::read_dir(format!("/sys/class/net/{nic}")).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let other = name.strip_prefix("lower_").or_else(|| name.strip_prefix("upper_"));
            other.map(str::to_owned)
        };
        entries.filter_map(name).collect()
    })
}

/// Whether a program of this name runs.
pub fn is_running(name: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut names = processes.map(|process| fs::read_to_string(process.path().join("comm")));
    names.any(|found| found.is_ok_and(|found| found.trim_end() == name))
}

/// The addresses that our ancestors' logins came from: sudo clears our environment, but not theirs.
fn clients() -> Vec<String> {
    let mut clients = Vec::new();
    let mut pid = std::process::id();
    for _ in 0..ANCESTORS_MAX {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        clients.extend(environment.split(|byte| *byte == 0).filter_map(client_of));
        let parent = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        match parent.as_deref().and_then(parent_of) {
            Some(parent) if parent > 1 => pid = parent,
            _ => break,
        }
    }
    clients
}

/// The address in `SSH_CONNECTION=CLIENT PORT SERVER PORT`.
fn client_of(variable: &[u8]) -> Option<String> {
    let value = variable.strip_prefix(b"SSH_CONNECTION=")?;
    let client = std::str::from_utf8(value).ok()?.split(' ').next()?;
    // A link-local address has its interface after a percent sign.
    let address = client.split('%').next()?;
    address.parse::<std::net::IpAddr>().ok().map(|address| address.to_string())
}

/// The fourth word of `/proc/PID/stat`; the second may contain anything, and ends at the last
/// parenthesis.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn link_to(address: &str) -> Option<String> {
    let text = tool(&["ip", "-j", "route", "get", address]).ok()?;
    let routes: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(routes.get(0)?.get("dev")?.as_str()?.to_owned())
}

fn default_route_links(ipv4: &str, ipv6: &str) -> BTreeSet<String> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let ipv4 = ipv4.lines().skip(1).map(words).filter_map(|words| {
        let is_default = words.get(1)? == "00000000" && words.get(7)? == "00000000";
        is_default.then(|| words[0].clone())
    });
    let ipv6 = ipv6.lines().map(words).filter_map(|words| {
        let is_any = words.first()?.bytes().all(|byte| byte == b'0');
        let is_default = is_any && words.get(1)? == "00";
        is_default.then(|| words.last().cloned())?
    });
    ipv4.chain(ipv6).filter(|nic| nic != "lo").collect()
}

fn with_stack(
    mut links: BTreeSet<String>,
    neighbours: impl Fn(&str) -> Vec<String>,
) -> BTreeSet<String> {
    let mut open: Vec<String> = links.iter().cloned().collect();
    while let Some(nic) = open.pop() {
        for other in neighbours(&nic) {
            if links.len() < STACK_MAX && links.insert(other.clone()) {
                open.push(other);
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_the_default_route_is_guarded_down_to_the_card() {
        let ipv4 = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                    br0 00000000 0102A8C0 0003 0 0 0 00000000 0 0 0\n\
                    eth9 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        let none = "0".repeat(32);
        let ipv6 = format!("{none} 00 {none} 00 fe80 00000400 1 0 00000003 eth6\n");
        let links = default_route_links(ipv4, &ipv6);
        assert_eq!(links, ["br0".to_owned(), "eth6".to_owned()].into());
        let below = |nic: &str| match nic {
            "br0" => vec!["bond0".to_owned(), "vif1.0".to_owned()],
            "bond0" => vec!["eth0".to_owned(), "br0".to_owned()],
            _ => Vec::new(),
        };
        let links = with_stack(links, below);
        assert!(links.contains("eth0") && !links.contains("eth9"), "{links:?}");
    }

    #[test]
    fn a_login_is_found_in_an_environment() {
        let client = client_of(b"SSH_CONNECTION=192.0.2.7 50000 192.0.2.1 22");
        assert_eq!(client.as_deref(), Some("192.0.2.7"));
        let local = client_of(b"SSH_CONNECTION=fe80::1%eth0 50000 fe80::2%eth0 22");
        assert_eq!(local.as_deref(), Some("fe80::1"));
        assert_eq!(client_of(b"SSH_CONNECTION=-rf 1 2 3"), None);
        assert_eq!(parent_of("7 (a) b) S 5 7 7"), Some(5));
    }
}
