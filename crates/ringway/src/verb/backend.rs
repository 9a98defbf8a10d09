//! `ringway backend`: the process that serves all vifs of a host.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use ringway_backend::{BackendConfig, Service, Sockets, Uplink};
use ringway_confine::{BACKEND_DEVICES, Role};
use ringway_control::RunDir;
use ringway_emu::EmuHypervisor;
use ringway_xenstore::{Client, DomId};

use crate::confine::confine;
use crate::description::Host;
use crate::host::read_description;
use crate::stop::Stop;

/// The backend of one host. `ringway run` starts it, and starts it again when it ends.
#[derive(Debug, Args)]
pub(crate) struct Backend {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Backend) -> Result<()> {
    let stop = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let host = read_description(&dir)?;
    let hypervisor = EmuHypervisor::connect(dir.path(), DomId(0))
        .context("connect to the broker as domain 0")?;
    let store = Client::connect(&dir.xenstore())?;
    let sockets = Sockets::open(&dir)?;
    let config = config(&host, dir)?;
    confine(config.dir.path(), BACKEND_DEVICES, Role::Vifs)?;
    ringway_backend::run(hypervisor, store, config, sockets, stop)?;
    Ok(())
}

/// What the description means for the backend.
pub(crate) fn config(host: &Host, dir: RunDir) -> Result<BackendConfig> {
    // The seed of a hash map, which the system draws at random for each process.
    let hash_seed = RandomState::new().build_hasher().finish();
    Ok(BackendConfig {
        dir,
        workers: host.backend_workers()?,
        max_queues: host.max_queues,
        completion: host.completion,
        split_event_channels: host.split_event_channels,
        offloads: host.offloads.caps(),
        uplink: host.uplink.as_ref().map(|uplink| Uplink {
            name: uplink.name.0.clone(),
            addresses: uplink
                .addresses
                .iter()
                .map(|cidr| (cidr.address, cidr.prefix_len))
                .collect(),
            queues: uplink.queues,
            mtu: u32::from(uplink.mtu),
            vlan: uplink.vlan_rules(),
        }),
        locking: host.switch.locking_mode.map(|locking| locking.0),
        switch: host.switch_config(hash_seed),
        service: Service::from_env(),
    })
}
