//! `ringway backend`: the process that serves all vifs of a host.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ringway_backend::{BackendConfig, Common, Sockets};
use ringway_confine::Role::{Tenant, Vifs};
use ringway_confine::{BACKEND_DEVICES, Confinement, TAP_DEVICES, TENANT_DEVICES};
use ringway_control::{Link, Recipient, RunDir};
use ringway_emu::EmuHypervisor;
use ringway_host::{Defaults, HostConfig, PortDevice, Uplink, UplinkRules};
use ringway_host_shell::{Tenancy, VhostVif};
use ringway_hypervisor::Hypervisor;
use ringway_sys::guest_memory::FRONT_ENDS_MAX;
use ringway_terminal::stop::Stop;
use ringway_xenstore::{Client, DomId};

use crate::confine::{FILES, confine};
use crate::description::{self, Host, VHOSTS_MAX, Vhost};
use crate::host::{HypervisorKind, owner, read_description, this_domain};
use crate::own_mac::own_mac;
use crate::verb::{opener, plugger};
use crate::vhosts;

/// Ethernet's MTU, in bytes.
const MTU: u32 = 1500;

/// The backend of one host. `ringway run` starts it, and starts it again when it ends.
#[derive(Debug, Args)]
pub(crate) struct Backend {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where the guests run
    #[arg(long, value_name = "KIND", default_value = "emulated")]
    hypervisor: HypervisorKind,
    /// What the process does
    #[arg(long, value_name = "ROLE", default_value = "all")]
    role: Role,
    /// Whose vifs it serves; its standard input is the way to its supervisor
    #[arg(long, value_name = "NAME", required_if_eq("role", "tenant"))]
    tenant: Option<String>,
    /// Start a process that opens the sockets of the tenant's virtio vifs
    #[arg(long)]
    virtio: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// It serves all vifs.
    All,
    /// It serves the vifs of one tenant.
    Tenant,
    /// It joins the tenants and the uplink.
    Switch,
}

impl Backend {
    /// What the log calls this process.
    pub(crate) fn process_name(&self) -> String {
        match (self.role, &self.tenant) {
            (Role::Switch, _) => "switch".to_owned(),
            (Role::Tenant, Some(tenant)) => format!("tenant {tenant}"),
            _ => "backend".to_owned(),
        }
    }
}

pub(crate) fn run(args: &Backend) -> Result<()> {
    let stop = Stop::on_signals_of_child()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let host = read_description(&dir)?;
    match (args.role, &args.tenant) {
        (Role::Switch, _) => run_switch(&host, &dir, &stop),
        (Role::Tenant, Some(tenant)) => run_tenant(&host, &dir, tenant, args, &stop),
        _ => {
            let opener = opener::start(&dir, None)?;
            let plugger = plugger::start(&dir)?;
            let (hypervisor, store) = connect(&dir)?;
            let own = dir.serving();
            own.make()?;
            let config = config(&host, &dir, Recipient::from_env())?;
            let sockets = Sockets::open(&dir)?.with_opener(opener).with_plugger(plugger);
            confine(&serving_in(&own, BACKEND_DEVICES, Vifs))?;
            Ok(ringway_backend::run(hypervisor, store, config, sockets, stop)?)
        }
    }
}

fn connect(dir: &RunDir) -> Result<(EmuHypervisor, Client)> {
    let hypervisor = EmuHypervisor::connect(dir.path(), DomId(0))
        .context("connect to the broker as domain 0")?;
    Ok((hypervisor, Client::connect(&dir.xenstore())?))
}

/// Switches frames between the trunks of all tenants and the uplink.
fn run_switch(host: &Host, dir: &RunDir, stop: &Stop) -> Result<()> {
    let link = link()?;
    let own = dir.switch();
    let config = config(host, dir, Recipient::of_supervisor(Arc::clone(&link)))?;
    let sockets = Sockets::open(&own)?;
    confine(&serving_in(&own, TAP_DEVICES, Vifs))?;
    Ok(ringway_backend::run_switch(config, sockets, link, stop)?)
}

/// Serves the vifs of a tenant.
fn run_tenant(host: &Host, dir: &RunDir, tenant: &str, args: &Backend, stop: &Stop) -> Result<()> {
    let link = link()?;
    let own = dir.tenant(tenant);
    // The uplink belongs to the switch process.
    let host = Host { uplink: None, ..host.clone() };
    let config = config(&host, dir, Recipient::of_supervisor(Arc::clone(&link)))?;
    let sockets = Sockets::without_netlink(&own)?;
    let sockets = match args.virtio {
        true => sockets.with_opener(opener::start(dir, Some(tenant))?),
        false => sockets,
    };
    match args.hypervisor {
        HypervisorKind::Emulated => {
            let (hypervisor, store) = connect(dir)?;
            let tenancy = Tenancy::wait(link, hypervisor.domid())?;
            confine(&serving_in(&own, TENANT_DEVICES, Tenant))?;
            ringway_backend::run_tenant(hypervisor, store, config, sockets, tenancy, stop)?;
        }
        HypervisorKind::Xen => {
            let (hypervisor, store) = this_domain::connect_backend()?;
            let tenancy = Tenancy::wait(link, hypervisor.domid())?;
            confine(&serving_in(&own, TENANT_DEVICES, Tenant))?;
            ringway_backend::run_tenant(hypervisor, store, config, sockets, tenancy, stop)?;
        }
    }
    Ok(())
}

/// What a process keeps that serves vifs and has a directory of its own.
fn serving_in<'a>(
    own: &'a RunDir,
    devices: &'a [&'a str],
    role: ringway_confine::Role,
) -> Confinement<'a> {
    let files = Some(own.path());
    Confinement { files, user_of: files, devices, ..Confinement::of(role) }
}

/// The link to the supervisor: this process's standard input.
pub(crate) fn link() -> Result<Arc<Link>> {
    let link = rustix::stdio::stdin().try_clone_to_owned();
    Ok(Arc::new(Link::new(link.context("standard input, the connection to the supervisor")?)))
}

/// Each has an equal share of the address space that a process can map.
const _: () = assert!(VHOSTS_MAX == FRONT_ENDS_MAX);

/// A vif of virtio, as the opener passes it on.
fn read_vhost(passed: serde_json::Value) -> Result<VhostVif, String> {
    let described: Vhost = serde_json::from_value(passed).map_err(|error| error.to_string())?;
    Ok(vhosts::config(&described))
}

/// What a description that was read again says of the switch, the uplink and queues, as the opener
/// passed it on.
fn read_common(passed: serde_json::Value) -> Result<Common, String> {
    let (switch, uplink, queues_max): (description::Switch, Option<description::Uplink>, u16) =
        serde_json::from_value(passed).map_err(|error| error.to_string())?;
    let config = switch.config(0);
    let defaults = Defaults {
        flood: config.flood,
        storm: config.storm,
        locking: switch.locking(),
        addresses_max: config.addresses_per_port_max,
        queues_max,
    };
    Ok(Common { defaults, uplink: uplink.as_ref().map(uplink_rules) })
}

fn uplink_rules(uplink: &description::Uplink) -> UplinkRules {
    UplinkRules {
        vlan: uplink.vlan_rules(),
        multicast_router: uplink.multicast_router,
        storm: uplink.storm(),
    }
}

/// The configuration that the description implies for a backend process of a host with this run
/// directory.
pub(crate) fn config(
    host: &Host,
    host_dir: &RunDir,
    reports_to: Recipient,
) -> Result<BackendConfig> {
    // The seed of a hash map, which the system draws at random for each process.
    let hash_seed = RandomState::new().build_hasher().finish();
    Ok(BackendConfig {
        dir: RunDir::new(FILES),
        owner: owner(host_dir.path()),
        workers: host.backend_workers()?,
        host: HostConfig {
            max_queues: host.max_queues,
            balances_flows: host.balances_flows,
            split_event_channels: host.split_event_channels,
            offloads: host.offloads.caps(),
            locking: host.switch.locking(),
            switch: host.switch.config(hash_seed),
            mtu: host.uplink.as_ref().map_or(MTU, |uplink| u32::from(uplink.mtu).max(MTU)),
        },
        read_vhost,
        read_common,
        uplink: host.uplink.as_ref().map(|uplink| Uplink {
            device: PortDevice {
                name: uplink.name.0.clone(),
                mac: uplink.mac.map_or_else(|| own_mac(&uplink.name.0, host_dir), |mac| mac.0),
                addresses: uplink
                    .addresses
                    .iter()
                    .map(|cidr| (cidr.address, cidr.prefix_len))
                    .collect(),
                queues: uplink.queues,
                mtu: u32::from(uplink.mtu),
            },
            rules: uplink_rules(uplink),
        }),
        reports_to: reports_to.with_notice(host.notice().as_deref()),
    })
}
