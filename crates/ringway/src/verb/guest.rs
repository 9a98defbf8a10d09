//! `ringway guest`: the process of a guest, and what one can do with guests that run.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ringway_control::RunDir;
use ringway_emu::EmuHypervisor;
use ringway_frontend::{FrontendConfig, Interface};
use ringway_net::{LinkSetting, Netlink};
use ringway_sys::namespace;
use ringway_xenstore::{Client, DomId};

use crate::description::Guest as Description;
use crate::host::read_description;
use crate::stop::Stop;

/// Guests: list them, run commands in them, change their queues.
#[derive(Debug, Args)]
pub(crate) struct Guest {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[command(hide = true)]
    Run(RunOne),
}

/// The process of one guest. `ringway run` starts it.
#[derive(Debug, Args)]
struct RunOne {
    /// The guest's name in the host's description
    name: String,
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The guest's domain
    #[arg(long, value_name = "N")]
    domid: u16,
}

impl Guest {
    /// What the log calls this process.
    pub(crate) fn process_name(&self) -> String {
        match &self.verb {
            Verb::Run(args) => format!("guest {}", args.name),
        }
    }
}

pub(crate) fn run(args: &Guest) -> Result<()> {
    match &args.verb {
        Verb::Run(args) => run_one(args),
    }
}

fn run_one(args: &RunOne) -> Result<()> {
    let stop = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let host = read_description(&dir)?;
    let guest = host
        .guests
        .iter()
        .find(|guest| guest.name.0 == args.name)
        .with_context(|| format!("the host has no guest {:?}", args.name))?;
    namespace::unshare_network()?;
    Netlink::open()?.set("lo", &[LinkSetting::Up])?;
    let hypervisor = EmuHypervisor::connect(dir.path(), DomId(args.domid))
        .with_context(|| format!("connect to the broker as domain {}", args.domid))?;
    let store = Client::connect(&dir.xenstore_of(args.domid))?;
    let config = FrontendConfig {
        name: args.name.clone(),
        control: dir.guest(&args.name),
        workers: host.guest_workers()?,
        interfaces: interfaces(guest),
    };
    ringway_frontend::run(hypervisor, store, config, stop)?;
    Ok(())
}

fn interfaces(guest: &Description) -> Vec<Interface> {
    let interface = |(handle, vif): (u32, &crate::description::GuestVif)| Interface {
        handle,
        name: format!("eth{handle}"),
        mac: vif.mac.0.0,
        addresses: vif.addresses.iter().map(|cidr| (cidr.address, cidr.prefix_len)).collect(),
        gateway: vif.gateway,
        mtu: u32::from(vif.mtu),
        queues: vif.queues,
        offloads: vif.offloads.caps(),
    };
    (0..).zip(&guest.vifs).map(interface).collect()
}
