//! Finds the longest packet that reaches a host, and what stops longer ones.
//!
//! It sends at most [`PACKETS_MAX`] packets in at most [`TIME_MAX`] to each address, and changes
//! nothing. The result is evidence like any other: [`crate::parse::path`] reads it.

mod search;
mod socket;

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use search::Outcome;
use socket::Packet;

use crate::parse::path::{Means, Step};
use crate::{Piece, Source, tool};

/// Packets to one address.
const PACKETS_MAX: u32 = 100;
/// Time for one address.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Attempts for a packet that gets no reply.
const TRIES: u32 = 2;
/// How long to wait for a reply while the distance of the host is unknown.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// An echo is late when it takes this many times as long as the first one.
const WAIT_FACTOR: u32 = 4;
/// The least time to wait, because a CPU may be busy.
const WAIT_MIN: Duration = Duration::from_millis(300);
/// Linux sends a host one ICMP error for a datagram per second, after a burst of six
/// (`icmp_ratelimit`).
const DATAGRAM_WAIT: Duration = Duration::from_millis(1200);
/// The least MTU of IPv4 links in practice; RFC 791 requires hosts to accept this length.
const LEAST_V4: u32 = 576;
/// The least MTU of IPv6 links (RFC 8200).
const LEAST_V6: u32 = 1280;

/// Hosts that are probed concurrently.
pub const HOSTS_MAX: usize = 8;
/// The folder of results in a record.
pub(crate) const FOLDER: &str = "probes";

/// Collects these pieces of this host, with the paths to some other hosts, which are probed between
/// the samples.
///
/// # Errors
/// If a host has no address, which is reported at once, or none that is routable.
pub fn collect(interval: Duration, hosts: &[String], pieces: &[Piece]) -> io::Result<Source> {
    let addresses: Vec<Vec<IpAddr>> =
        hosts.iter().take(HOSTS_MAX).map(|host| addresses(host)).collect::<io::Result<_>>()?;
    let (source, probed) = thread::scope(|scope| {
        let hosts = hosts.iter().zip(&addresses);
        let probes: Vec<_> =
            hosts.map(|(host, addresses)| scope.spawn(move || paths(host, addresses))).collect();
        let source = crate::collect(interval, pieces);
        let failed = |_| Err(io::Error::other("a probe failed"));
        (source, probes.into_iter().map(|probe| probe.join().unwrap_or_else(failed)).collect())
    });
    let probed: io::Result<Vec<Vec<(String, String)>>> = probed;
    Ok(source.with(probed?.into_iter().flatten()))
}

/// A host's first address of each family.
fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    let about = |error: io::Error| io::Error::new(error.kind(), format!("{host}: {error}"));
    let all: Vec<IpAddr> =
        (host, 0).to_socket_addrs().map_err(about)?.map(|address| address.ip()).collect();
    let first = |is_v4| all.iter().find(|address| address.is_ipv4() == is_v4).copied();
    Ok([first(true), first(false)].into_iter().flatten().collect())
}

/// The paths to a host's addresses, as pieces of evidence.
fn paths(host: &str, addresses: &[IpAddr]) -> io::Result<Vec<(String, String)>> {
    let mut pieces = Vec::new();
    let mut refusal = io::Error::other("no address");
    for address in addresses {
        match path(*address) {
            Ok(steps) => {
                pieces.push((format!("{FOLDER}/{address}"), write(host, *address, &steps)));
            }
            // Many hosts have an address of a family without a route from here.
            Err(error) => refusal = io::Error::new(error.kind(), format!("{host}: {error}")),
        }
    }
    if pieces.is_empty() { Err(refusal) } else { Ok(pieces) }
}

fn write(host: &str, address: IpAddr, steps: &[Step]) -> String {
    let lines = steps.iter().chain([&Step::End]).map(|step| format!("{step}\n"));
    format!("path to {host} at {address}\n") + &lines.collect::<String>()
}

fn path(address: IpAddr) -> io::Result<Vec<Step>> {
    // A setting limits which users may send echo requests (`net.ipv4.ping_group_range`).
    let echo = Packet::new(address, Means::Echo);
    let (first, means) = match echo {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (Packet::new(address, Means::Datagram)?, Means::Datagram)
        }
        other => (other?, Means::Echo),
    };
    let mut steps = vec![Step::Asked(means)];
    steps.extend(interface(address).map(Step::Through));
    let known = first.known_mtu()?;
    let local = first.local_mtu()?.unwrap_or(known);
    steps.extend([Step::Local(local), Step::Known(known)]);
    let least = if address.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
    let mut prober = Prober::new(address, means);
    steps.extend(search::search(&mut |len, hops| prober.ask(len, hops), least, local));
    Ok(steps)
}

/// The outgoing interface for an address.
fn interface(address: IpAddr) -> Option<String> {
    let text = tool(&["ip", "-j", "route", "get", &address.to_string()]).ok()?;
    let routes: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(routes.get(0)?.get("dev")?.as_str()?.to_owned())
}

/// Sends packets within the limits.
struct Prober {
    address: IpAddr,
    means: Means,
    begun: Instant,
    sent: u32,
    wait: Duration,
}

impl Prober {
    fn new(address: IpAddr, means: Means) -> Prober {
        Prober { address, means, begun: Instant::now(), sent: 0, wait: FIRST_WAIT }
    }

    fn ask(&mut self, len: u32, hops: Option<u8>) -> Result<Outcome, String> {
        for _ in 0..TRIES {
            if self.begun.elapsed() > TIME_MAX {
                return Err(format!("after {} s", TIME_MAX.as_secs()));
            }
            if self.sent == PACKETS_MAX {
                return Err(format!("after {PACKETS_MAX} packets"));
            }
            self.sent += 1;
            let packet = Packet::new(self.address, self.means);
            let outcome = packet.and_then(|packet| packet.ask(len, hops, self.wait));
            let outcome = outcome.map_err(|error| error.to_string())??;
            if let Outcome::Arrived { micros } = outcome {
                let rtt = Duration::from_micros(micros);
                self.wait = match self.means {
                    Means::Echo => (rtt * WAIT_FACTOR).clamp(WAIT_MIN, FIRST_WAIT),
                    Means::Datagram => DATAGRAM_WAIT,
                };
            }
            if outcome != Outcome::Silence {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;
    use crate::parse::path::Path;

    #[test]
    fn the_way_to_ourselves_takes_the_longest_packets() {
        let address = "127.0.0.1".parse().expect("an address");
        let steps = path(address).expect("there is a loopback");
        let text = Text::new("path", write("localhost", address, &steps));
        let path = Path::parse(&text).expect("whole");
        let local = path.find(|step| match step {
            Step::Local(mtu) => Some(*mtu),
            _ => None,
        });
        let (local, _) = local.expect("it says what the interface takes");
        assert_eq!(path.longest().map(|(len, _)| len), Some(local), "{}", text.body());
    }

    #[test]
    fn a_host_that_is_none_is_an_error_at_once() {
        for host in ["no host", ""] {
            assert!(collect(Duration::from_secs(3600), &[host.to_owned()], &[]).is_err());
        }
    }
}
