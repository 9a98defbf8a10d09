//! One echo request of ICMP from guest a to guest b, which has no ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with,
};

/// How long the reply may take.
pub(super) const SECONDS: u32 = 30;
/// How long to wait before another request: the first may be too early for the other guest.
const PAUSE: Duration = Duration::from_secs(2);
/// Type 8, code 0, its checksum; identifier and sequence number are 0.
const REQUEST: [u8; 8] = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
/// Bytes of the header of IPv4, which a raw socket shows before what it carries.
const IP_HEADER_LEN: usize = 20;
const REPLY_TYPE: u8 = 0;

/// Sends the request, again if need be, and waits for the reply.
pub(super) fn ping(to: Ipv4Addr) -> Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PAUSE))?;
    connect(&socket, &SocketAddr::from((to, 0)))?;
    let mut reply = [0; IP_HEADER_LEN + REQUEST.len()];
    let deadline = Instant::now() + Duration::from_secs(SECONDS.into());
    loop {
        let sent = send(&socket, &REQUEST, SendFlags::empty());
        let asked = sent.and_then(|_| recv(&socket, &mut reply, RecvFlags::empty()).map(drop));
        match asked {
            Ok(()) => break,
            // The second is the end of ARP.
            Err(Errno::AGAIN | Errno::HOSTUNREACH) if Instant::now() < deadline => {}
            Err(error) => return Err(error).with_context(|| format!("{to}: no reply")),
        }
    }
    let kind = reply[IP_HEADER_LEN];
    ensure!(kind == REPLY_TYPE, "type {kind} of ICMP from {to}");
    Ok(())
}
