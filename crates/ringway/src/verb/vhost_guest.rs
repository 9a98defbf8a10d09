//! `ringway guest --vhost`: a guest without a virtual machine monitor.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ringway_confine::{Confinement, Role, TAP_DEVICES};
use ringway_datapath::MacAddr;
use ringway_frontend::{Interface, VhostConfig, VhostSockets};
use ringway_terminal::options::bytes;
use ringway_terminal::stop::Stop;
use ringway_vhost_shell::Mode;

use crate::confine::confine;
use crate::description::{self, Cidr, FlowKeyText, Host, Mac};
use crate::kernel;

/// The options of such a guest.
#[derive(Debug, Args)]
pub(crate) struct VhostGuest {
    /// Be a guest behind this vhost-user socket, with a device in this network namespace
    #[arg(long, value_name = "SOCKET", conflicts_with = "hypervisor")]
    vhost: Option<PathBuf>,
    /// Who creates the socket: with `client` the back-end, with `server` this process
    #[arg(long, value_name = "MODE", default_value = "client", requires = "vhost")]
    mode: SocketMode,
    /// An address of the device, such as 10.77.0.9/24; may be repeated
    #[arg(long = "address", value_name = "ADDRESS", requires = "vhost")]
    addresses: Vec<Cidr>,
    /// The device's Ethernet address [default: a random one]
    #[arg(long, value_name = "MAC", requires = "vhost")]
    mac: Option<Mac>,
    /// The device's MTU
    #[arg(long, value_name = "BYTES", default_value_t = 1500, requires = "vhost")]
    #[arg(value_parser = bytes::<u16>(68..=65_521))]
    mtu: u16,
    /// The key by which it chooses a queue of a flow [default: a random one]
    #[arg(long, value_name = "KEY", hide = true, requires = "vhost")]
    flow_key: Option<FlowKeyText>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SocketMode {
    /// The back-end creates the socket
    Client,
    /// This process creates it
    Server,
}

impl VhostGuest {
    /// The socket, if this process should be such a guest.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.vhost.as_deref()
    }
}

/// Drives the device until Ctrl-C.
pub(crate) fn run(
    args: &VhostGuest,
    socket: &Path,
    (device, workers, queues): (String, Option<u16>, Option<u16>),
) -> Result<()> {
    kernel::check(false)?;
    let stop = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    ringway_sys::guest_memory::prepare();
    let socket = std::path::absolute(socket)?;
    let mut host = Host::empty(description::Usage::default())?;
    host.workers.count = workers.map(usize::from);
    host.workers.poll_us = Some(0);
    host.flow_key = args.flow_key;
    let config = VhostConfig {
        mode: match args.mode {
            SocketMode::Client => Mode::Client,
            SocketMode::Server => Mode::Server,
        },
        device,
        mac: args.mac.map_or_else(random_mac, |mac| mac.0),
        mtu: args.mtu,
        interface: Interface {
            addresses: args.addresses.iter().map(|it| (it.address, it.prefix_len)).collect(),
            queues,
            ..Interface::default()
        },
        workers: host.guest_workers()?,
        socket,
    };
    let sockets = VhostSockets::open(&config)?;
    let dir = config.socket.parent().unwrap_or(Path::new("/"));
    anyhow::ensure!(
        dir.is_dir(),
        "{}: the directory does not exist: create it, or give the path of the back-end's socket",
        dir.display()
    );
    confine(&Confinement {
        sockets: Some(dir),
        devices: TAP_DEVICES,
        ..Confinement::of(Role::VirtioGuest)
    })?;
    ringway_frontend::run_vhost(config, sockets, stop).context("the guest")?;
    Ok(())
}

/// A locally administered (second bit) unicast (first bit) address.
fn random_mac() -> MacAddr {
    let [first, second, third, fourth, fifth, ..] =
        RandomState::new().build_hasher().finish().to_be_bytes();
    MacAddr([2, first, second, third, fourth, fifth])
}
