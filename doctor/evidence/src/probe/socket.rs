//! One packet of a given length that no router may fragment, and its reply.
//!
//! It needs no privileges: routers' reports come from the socket's error queue, as with
//! `tracepath`. Each packet has its own socket, so that a late reply to another packet cannot be
//! mistaken for its own.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt,
    sockopt::{Ipv4RecvErr, Ipv6RecvErr},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover, set_ip_ttl,
    set_ipv6_mtu_discover, set_ipv6_unicast_hops,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with,
};

use super::search::Outcome;
use crate::parse::path::Means;

/// The port of datagrams, on which no program is expected to listen, as with `traceroute`.
const PORT: u16 = 33434;
/// Bytes of the header of ICMP, and of UDP.
const HEADER: u32 = 8;
/// Types of ICMP.
const ECHO: u8 = 8;
const ECHO_V6: u8 = 128;
const UNREACHABLE: u8 = 3;
const UNREACHABLE_PORT: u8 = 3;
const UNREACHABLE_V6: u8 = 1;
const UNREACHABLE_PORT_V6: u8 = 4;
const EXPIRED: u8 = 11;
const EXPIRED_V6: u8 = 3;
/// More entries of the error queue than one packet causes.
const ERRORS_MAX: usize = 16;

/// A report about a packet, and its origin.
#[derive(Debug, Clone, Copy)]
struct Report {
    is_local: bool,
    errno: Option<Errno>,
    kind: u8,
    code: u8,
    info: u32,
    by: Option<IpAddr>,
}

/// A packet's socket.
pub(super) struct Packet {
    socket: OwnedFd,
    address: IpAddr,
    means: Means,
}

/// Bytes of the header of IP.
fn ip_header(address: IpAddr) -> u32 {
    if address.is_ipv4() { 20 } else { 40 }
}

impl Packet {
    /// A socket to an address.
    pub(super) fn new(address: IpAddr, means: Means) -> io::Result<Packet> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let protocol = match (means, address.is_ipv4()) {
            (Means::Datagram, _) => ipproto::UDP,
            (Means::Echo, true) => ipproto::ICMP,
            (Means::Echo, false) => ipproto::ICMPV6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
        if address.is_ipv4() {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
            setsockopt(&socket, Ipv4RecvErr, &true)?;
        } else {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
            setsockopt(&socket, Ipv6RecvErr, &true)?;
        }
        connect(&socket, &SocketAddr::new(address, PORT))?;
        Ok(Packet { socket, address, means })
    }

    /// The longest packet that the kernel would send there.
    pub(super) fn known_mtu(&self) -> io::Result<u32> {
        let known =
            if self.address.is_ipv4() { ip_mtu(&self.socket) } else { ipv6_mtu(&self.socket) };
        Ok(known?)
    }

    /// The interface's MTU, from its refusal of the longest possible packet.
    pub(super) fn local_mtu(&self) -> io::Result<Option<u32>> {
        // The longest packet that a 16-bit length allows; for IPv6 the length excludes the header.
        match self.send(u32::from(u16::MAX)) {
            // The interface accepts any length, like loopback.
            Ok(()) => Ok(Some(u32::from(u16::MAX))),
            Err(Errno::MSGSIZE) => {
                let reports = self.reports()?;
                Ok(reports.into_iter().find(|report| report.is_local).map(|report| report.info))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends the packet with a total length and a hop limit, and waits for the outcome.
    pub(super) fn ask(
        &self,
        len: u32,
        hops: Option<u8>,
        wait: Duration,
    ) -> io::Result<Result<Outcome, String>> {
        if let Some(hops) = hops {
            if self.address.is_ipv4() {
                set_ip_ttl(&self.socket, u32::from(hops))?;
            } else {
                set_ipv6_unicast_hops(&self.socket, Some(hops))?;
            }
        }
        let sent = Instant::now();
        match self.send(len) {
            Ok(()) => {}
            // The interface's MTU has become smaller meanwhile, or its queue is full.
            Err(Errno::MSGSIZE | Errno::NOBUFS) => return Ok(Ok(Outcome::Silence)),
            Err(errno) => return Err(errno.into()),
        }
        while let Some(left) = wait.checked_sub(sent.elapsed()) {
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let polled = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
            match polled {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let micros = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
            for report in self.reports()? {
                match self.outcome(&report, micros) {
                    Some(Err(why)) => return Ok(Err(why)),
                    Some(Ok(outcome)) => return Ok(Ok(outcome)),
                    None => {}
                }
            }
            if self.is_replied()? {
                return Ok(Ok(Outcome::Arrived { micros }));
            }
        }
        Ok(Ok(Outcome::Silence))
    }

    fn send(&self, len: u32) -> rustix::io::Result<()> {
        let headers = ip_header(self.address);
        let mut payload = match self.means {
            Means::Echo => vec![0; bytes(len.saturating_sub(headers)).max(bytes(HEADER))],
            Means::Datagram => vec![0; bytes(len.saturating_sub(headers + HEADER))],
        };
        if self.means == Means::Echo {
            // The kernel fills in what the rest of the header is.
            payload[0] = if self.address.is_ipv4() { ECHO } else { ECHO_V6 };
        }
        send(&self.socket, &payload, SendFlags::empty()).map(|_| ())
    }

    /// Whether the host replied; on a connected socket no other host can.
    fn is_replied(&self) -> io::Result<bool> {
        let mut byte = [0];
        match recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT) {
            Ok(_) => Ok(true),
            // Errors that the error queue has already reported.
            Err(
                Errno::AGAIN
                | Errno::CONNREFUSED
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::MSGSIZE
                | Errno::ACCESS,
            ) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What a report means; an error ends the search, because nothing passes.
    fn outcome(&self, report: &Report, micros: u64) -> Option<Result<Outcome, String>> {
        let by = report.by?;
        let is_v4 = self.address.is_ipv4();
        if report.errno == Some(Errno::MSGSIZE) {
            return Some(Ok(Outcome::TooLong { by, mtu: report.info }));
        }
        if report.kind == if is_v4 { EXPIRED } else { EXPIRED_V6 } {
            return Some(Ok(Outcome::Expired { by }));
        }
        let port = if is_v4 {
            (UNREACHABLE, UNREACHABLE_PORT)
        } else {
            (UNREACHABLE_V6, UNREACHABLE_PORT_V6)
        };
        if (report.kind, report.code) == port && by == self.address {
            return Some(Ok(Outcome::Arrived { micros }));
        }
        let why = report.errno.map_or_else(|| "refused".to_owned(), |errno| errno.to_string());
        Some(Err(format!("{by} says: {why}")))
    }

    /// The content of the error queue.
    fn reports(&self) -> io::Result<Vec<Report>> {
        let mut reports = Vec::new();
        while reports.len() < ERRORS_MAX {
            let mut payload = [0; 64];
            let mut space = nix::cmsg_space!([u8; 256]);
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let mut parts = [IoSliceMut::new(&mut payload)];
            let received = recvmsg::<SockaddrStorage>(
                self.socket.as_raw_fd(),
                &mut parts,
                Some(&mut space),
                flags,
            );
            let message = match received {
                Ok(message) => message,
                Err(nix::Error::EAGAIN) => break,
                Err(errno) => return Err(errno.into()),
            };
            reports.extend(message.cmsgs()?.filter_map(|message| report(&message)));
        }
        Ok(reports)
    }
}

fn report(message: &ControlMessageOwned) -> Option<Report> {
    let (error, by) = match message {
        ControlMessageOwned::Ipv4RecvErr(error, by) => {
            let by = by.map(|by| IpAddr::from(Ipv4Addr::from(by.sin_addr.s_addr.to_ne_bytes())));
            (error, by)
        }
        ControlMessageOwned::Ipv6RecvErr(error, by) => {
            (error, by.map(|by| IpAddr::from(Ipv6Addr::from(by.sin6_addr.s6_addr))))
        }
        _ => return None,
    };
    let errno = i32::try_from(error.ee_errno).ok().map(Errno::from_raw_os_error);
    Some(Report {
        is_local: error.ee_origin == SO_EE_ORIGIN_LOCAL,
        errno,
        kind: error.ee_type,
        code: error.ee_code,
        info: error.ee_info,
        by: by.filter(|by| !by.is_unspecified()),
    })
}

/// `linux/errqueue.h`: the report comes from this kernel itself.
const SO_EE_ORIGIN_LOCAL: u8 = 1;

fn bytes(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
