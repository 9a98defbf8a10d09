//! The counters of one machine of two: CPU time of the tools and of the machine, and what the
//! interface carried.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Instant;

use ringway_net::Netlink;
use ringway_rig::child::PartError;
use ringway_rig::cpu_time::Machine;
use ringway_rig::launcher;
use serde::{Deserialize, Serialize};

use crate::counters;
use crate::record::{Disturbance, EndUse, Interface, InterfaceUse};

const COUNTERS: &str = "/proc/self/net/dev";

/// Counters at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sample {
    /// Seconds since some moment that is the same for all samples of a process.
    pub at_seconds: f64,
    /// CPUs that may be used.
    pub cpus: u32,
    /// CPU seconds of the tools in user mode.
    pub user: f64,
    /// CPU seconds of the kernel on their behalf.
    pub system: f64,
    /// CPU seconds of the machine.
    pub machine: Machine,
    /// The mean frequency of the CPUs, in MHz.
    pub cpu_mhz: Option<f64>,
    /// What the interface has carried since it exists.
    pub interface: InterfaceUse,
}

/// The interface of this machine with one of these addresses: the first that it has.
///
/// # Errors
/// If the kernel does not report its addresses.
pub fn interface_with(addresses: &[Ipv4Addr]) -> Result<Option<Interface>, PartError> {
    let read = || -> std::io::Result<_> {
        let mut net = Netlink::open()?;
        Ok((net.addresses()?, net.links()?))
    };
    let (own, links) = read().map_err(PartError::at("list this machine's addresses"))?;
    let found = addresses.iter().find_map(|address| {
        let (index, ..) = own.iter().find(|(_, own, _)| *own == IpAddr::V4(*address))?;
        let link = links.iter().find(|link| link.index == *index)?;
        Some((*address, link))
    });
    Ok(found.map(|(address, link)| {
        let features = features(&link.name);
        Interface {
            name: link.name.clone(),
            address,
            mtu: link.mtu,
            tx_queues: queues(&link.name, link.index, "tx-"),
            rx_queues: queues(&link.name, link.index, "rx-"),
            gro: is_on(&features, "generic-receive-offload"),
            lro: is_on(&features, "large-receive-offload"),
        }
    }))
}

/// The interface from which this machine reaches an address.
///
/// # Errors
/// If there is no route.
pub fn interface_towards(address: Ipv4Addr) -> Result<Interface, PartError> {
    // A datagram socket only selects the route: nothing is sent.
    let source = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((address, PROBE_PORT))?;
        socket.local_addr()
    };
    let source = source().map_err(PartError::at(format!("reach {address} from this machine")))?;
    let IpAddr::V4(own) = source.ip() else {
        return Err(PartError::Failed(format!("{address} is not reached over IPv4")));
    };
    interface_with(&[own])?.ok_or_else(|| {
        PartError::Failed(format!("no interface has this machine's own address {own}"))
    })
}

impl Sample {
    /// Reads everything, for the tools with these process ids. `origin` is the moment from which
    /// time counts.
    ///
    /// # Errors
    /// If a process has ended, or there is no such interface.
    pub fn take(origin: Instant, pids: &[u32], interface: &str) -> Result<Sample, PartError> {
        let (user, system) = counters::sum(pids)?;
        let text = fs::read_to_string(COUNTERS).map_err(PartError::at("read /proc/net/dev"))?;
        let carried = carried(&text, interface).ok_or_else(|| {
            PartError::Failed(format!("/proc/net/dev has no interface {interface}"))
        })?;
        Ok(Sample {
            at_seconds: origin.elapsed().as_secs_f64(),
            cpus: std::thread::available_parallelism()
                .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX)),
            user,
            system,
            machine: Machine::now()?,
            cpu_mhz: counters::cpu_mhz(),
            interface: carried,
        })
    }

    /// What was counted between an earlier sample and this one.
    pub fn since(&self, before: &Sample) -> EndUse {
        let part = |now: f64, then: f64| (now - then).max(0.0);
        let (user, system) = (part(self.user, before.user), part(self.system, before.system));
        let steal = part(self.machine.steal, before.machine.steal);
        let busy = part(self.machine.busy, before.machine.busy);
        let seconds = part(self.at_seconds, before.at_seconds);
        let capacity = (seconds * f64::from(self.cpus)).max(1e-9);
        let (now, then) = (&self.interface, &before.interface);
        EndUse {
            interface: InterfaceUse {
                name: now.name.clone(),
                tx_packets: now.tx_packets.saturating_sub(then.tx_packets),
                tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
                rx_packets: now.rx_packets.saturating_sub(then.rx_packets),
                rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
            },
            tools_user: user,
            tools_system: system,
            host_softirq: part(self.machine.softirq, before.machine.softirq),
            steal,
            disturbance: Disturbance {
                steal_share: Some(steal / capacity),
                foreign_share: Some((busy - user - system).max(0.0) / capacity),
                cpu_mhz: self.cpu_mhz,
            },
        }
    }
}

/// Any port will do: nothing is sent to it.
const PROBE_PORT: u16 = 9;

/// The number of an interface's queues in one direction. `None` if sysfs shows another network
/// namespace than ours.
fn queues(name: &str, index: u32, prefix: &str) -> Option<u16> {
    let dir = format!("/sys/class/net/{name}");
    let shown = fs::read_to_string(format!("{dir}/ifindex")).ok()?;
    if shown.trim().parse() != Ok(index) {
        return None;
    }
    let entries = fs::read_dir(format!("{dir}/queues")).ok()?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let count = names.filter(|name| name.to_string_lossy().starts_with(prefix)).count();
    u16::try_from(count).ok()
}

/// The features of an interface, as `ethtool -k` prints them; empty if it is not installed.
fn features(name: &str) -> String {
    let Some(program) = launcher::find("ethtool") else { return String::new() };
    let output = Command::new(program).args(["-k", name]).output();
    output.map_or_else(|_| String::new(), |it| String::from_utf8_lossy(&it.stdout).into_owned())
}

/// Whether a feature is on; `None` if it is not there.
fn is_on(features: &str, name: &str) -> Option<bool> {
    let of_line =
        |line: &str| line.trim().strip_prefix(name)?.strip_prefix(": ").map(str::to_owned);
    let state = features.lines().find_map(of_line)?;
    match state.split(' ').next() {
        Some("on") => Some(true),
        Some("off") => Some(false),
        _ => None,
    }
}

/// What an interface has carried, from `/proc/net/dev`.
fn carried(table: &str, name: &str) -> Option<InterfaceUse> {
    let line = table.lines().find_map(|line| {
        let (interface, numbers) = line.split_once(':')?;
        (interface.trim() == name).then_some(numbers)
    })?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [rx_bytes, rx_packets, _, _, _, _, _, _, tx_bytes, tx_packets, ..] = numbers[..] else {
        return None;
    };
    Some(InterfaceUse { name: name.to_owned(), tx_packets, tx_bytes, rx_packets, rx_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_in_the_table_of_the_kernel() {
        let table = "Inter-|   Receive                   |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes packets\n\
            \x20   lo:  10       1    0    0    0     0          0         0   20       2    0\n\
            \x20eth10: 1000      11    0    0    0     0          0         0 2000      22    0\n";
        let found = carried(table, "eth10").expect("it is there");
        let all = [found.rx_bytes, found.rx_packets, found.tx_bytes, found.tx_packets];
        assert_eq!(all, [1000, 11, 2000, 22]);
        assert_eq!(carried(table, "eth1"), None);
        assert_eq!(carried("eth1: 1 2 three", "eth1"), None);
    }

    #[test]
    fn features_are_on_or_off_or_unknown() {
        let printed = "Features for eth0:\nrx-checksumming: on [fixed]\n\
            generic-receive-offload: on\nlarge-receive-offload: off [fixed]\n\
            rx-gro-list: maybe\n";
        assert_eq!(is_on(printed, "generic-receive-offload"), Some(true));
        assert_eq!(is_on(printed, "large-receive-offload"), Some(false));
        assert_eq!((is_on(printed, "rx-gro-list"), is_on("", "rx-gro-list")), (None, None));
    }

    #[test]
    fn counters_of_a_peer_that_run_backwards_count_as_nothing() {
        let sample = |seconds: f64, bytes: u64| Sample {
            at_seconds: seconds,
            cpus: 0,
            user: seconds,
            system: 0.0,
            machine: Machine { busy: seconds, softirq: 0.0, steal: 0.0 },
            cpu_mhz: None,
            interface: InterfaceUse {
                name: "eth0".to_owned(),
                tx_packets: bytes,
                tx_bytes: bytes,
                rx_packets: bytes,
                rx_bytes: bytes,
            },
        };
        let used = sample(1.0, 5).since(&sample(2.0, 9));
        assert_eq!((used.interface.tx_bytes, used.tools_user), (0, 0.0));
        assert!(used.disturbance.foreign_share.is_some_and(f64::is_finite));
    }
}
