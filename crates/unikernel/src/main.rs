//! A guest that does not use a kernel's TCP/IP: smoltcp on `ringway-netfront`, serving HTTP.
//!
//! It becomes a domain of a running emulated host, connects its vif to the host's backend, and
//! serves `GET /` and `GET /bytes/N`. All of TCP/IP is in this process: it has no TAP device and no
//! address known to Linux, and needs no privileges except access to the run directory.
//!
//! ```text
//! ringway run                                                   # in one shell
//! cargo run --package ringway-unikernel -- --address 10.77.0.9/24    # in another
//! ringway guest exec a -- curl http://10.77.0.9/                # in a third
//! ```
//!
//! Read `device.rs` first: it is the only code that joins the two libraries. `vif.rs` has the
//! handshake, `http.rs` the server, `toolstack.rs` what a toolstack does for each guest.

mod device;
mod http;
mod toolstack;
mod vif;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use ringway_datapath::Pending;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, Ipv4Address, Ipv4Cidr};

use crate::device::VifDevice;
use crate::http::Server;
use crate::toolstack::Toolstack;
use crate::vif::Guest;

/// The port that the server listens on.
const HTTP_PORT: u16 = 80;
/// How long the backend may take to release the vif at the end.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// How often to check for a signal if nothing else happens.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Serve HTTP from a guest that has no kernel
#[derive(Debug, Parser)]
struct Arguments {
    /// Run directory of the host
    #[arg(long, env = "RINGWAY_DIR", value_name = "DIR", default_value = "/run/ringway/default")]
    dir: PathBuf,
    /// The guest's address on the host's switch
    #[arg(long, value_name = "ADDRESS/LENGTH", value_parser = network)]
    address: Ipv4Cidr,
    /// Where what is not on that network is sent
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<Ipv4Address>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let should_stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&should_stop))?;
    }
    let mut toolstack = Toolstack::join(&arguments.dir)?;
    let vif = toolstack.make_guest("unikernel").context("make a domain with a vif")?;
    let served =
        Guest::join(&arguments.dir, vif).and_then(|guest| serve(&arguments, guest, &should_stop));
    toolstack.remove_guest(vif)?;
    served
}

/// Runs the guest until a signal comes.
fn serve(arguments: &Arguments, mut guest: Guest, should_stop: &AtomicBool) -> Result<()> {
    let mut device = VifDevice::new();
    let mut config = Config::new(EthernetAddress(guest.mac().0).into());
    config.random_seed = seed()?;
    let mut interface = Interface::new(config, &mut device, now());
    interface.update_ip_addrs(|addresses| {
        addresses.push(arguments.address.into()).expect("a new interface has room for one");
    });
    if let Some(gateway) = arguments.gateway {
        interface.routes_mut().add_default_ipv4_route(gateway)?;
    }
    let mut sockets = SocketSet::new(Vec::new());
    let mut server = Server::listen(HTTP_PORT, &mut sockets);
    guest.start(&mut device)?;
    let mut was_connected = false;
    while !should_stop.load(Ordering::Relaxed) {
        guest.take_watches(&mut device)?;
        if guest.is_connected() && !was_connected {
            println!("http://{}/", arguments.address.address());
        }
        was_connected = guest.is_connected();
        interface.poll(now(), &mut device, &mut sockets);
        server.serve(&mut sockets);
        // Send what the server has written before sleeping.
        interface.poll(now(), &mut device, &mut sockets);
        match device.exchange().and_then(|()| device.arm()) {
            Ok(Pending::Work) => {}
            Ok(Pending::Nothing) => {
                let delay = interface.poll_delay(now(), &sockets).map_or(WAIT_MAX, Duration::from);
                guest.wait(delay.min(WAIT_MAX))?;
                device.woken()?;
            }
            Err(down) => guest.recover(&mut device, &down)?,
        }
    }
    guest.leave(&mut device, LEAVE_MAX)
}

/// An address and the length of its network's prefix.
fn network(text: &str) -> Result<Ipv4Cidr, String> {
    let parts = text.split_once('/').and_then(|(address, len)| {
        Some((address.parse().ok()?, len.parse().ok().filter(|len| *len <= 32)?))
    });
    let (address, len) = parts.ok_or("expected an address and a length, as in 10.77.0.9/24")?;
    Ok(Ipv4Cidr::new(address, len))
}

fn now() -> Instant {
    Instant::now()
}

/// Initial sequence numbers must differ each time; otherwise packets of an earlier connection could
/// be mistaken for those of a new one.
fn seed() -> Result<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
