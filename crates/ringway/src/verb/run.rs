//! `ringway run`: an emulated host on this machine, until Ctrl-C.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use ringway_datapath::Completion;
use ringway_worker::Policy;

use crate::description::{self, Host};
use crate::host::{Ending, HypervisorKind, Show, Supervisor, default_dir, xen};
use crate::options::{Common, number};
use crate::stop::Stop;

/// Run the backend until Ctrl-C: on Xen, or with an emulated host and its guests.
///
/// With --hypervisor xen it is the backend of dom0 or a driver domain and replaces the kernel's
/// module xen-netback: it serves every vif that the toolstack creates there. When it ends or is
/// killed, guests keep their vifs; start it again and it takes them over.
///
/// Otherwise it creates an emulated host: guests, and a switch between them. Each guest is a
/// network namespace with a Xen netfront, which the backend serves as netback does. Without
/// --config there are two guests, `a` (10.77.0.1) and `b` (10.77.0.2), and an interface `ringway0`
/// (10.77.0.254) on the host.
///
/// For a user other than root, the host is a network namespace inside a new user namespace.
///
/// Options override the description in --config.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ringway run\n  \
                        ringway run --config host.toml --workers 4 --policy static\n  \
                        ringway run --hypervisor xen")]
pub(crate) struct Run {
    /// Where the guests run
    #[arg(long, value_name = "KIND", default_value = "emulated")]
    hypervisor: HypervisorKind,
    /// Description of the host in TOML: guests, switch, limits
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Run directory; the default is /run/ringway/default for root
    #[arg(long, value_name = "DIR", env = "RINGWAY_DIR")]
    dir: Option<PathBuf>,
    /// Worker threads of the backend [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=1024))]
    workers: Option<u16>,
    /// How queues are placed on workers: balanced, static or per-queue [default: balanced]
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,
    /// The maximum number of queues of a vif [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=64))]
    max_queues: Option<u16>,
    /// When the backend responds to transmit requests: copied or sent [default: copied]
    #[arg(long, value_name = "WHEN")]
    completion: Option<Completion>,
    /// Run one backend process per tenant, and the switch in another
    #[arg(long)]
    isolate: bool,
    /// Print events as JSON, one per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Run, common: &Common) -> Result<()> {
    let mut host = match (&args.config, args.hypervisor) {
        (Some(file), _) => description::read(file)?,
        (None, HypervisorKind::Emulated) => Host::example(),
        (None, HypervisorKind::Xen) => Host::empty(),
    };
    host.workers.count = args.workers.map(usize::from).or(host.workers.count);
    host.workers.policy = args.policy.unwrap_or(host.workers.policy);
    host.max_queues = args.max_queues.unwrap_or(host.max_queues);
    host.completion = args.completion.unwrap_or(host.completion);
    host.is_isolated |= args.isolate;
    if let Some(reason) = host.obstacle_to_isolation().filter(|_| host.is_isolated) {
        match &args.config {
            Some(file) => bail!("{}: {reason}", file.display()),
            None => bail!("{reason}"),
        }
    }
    let dir = args.dir.or_else(|| host.dir.clone()).unwrap_or_else(default_dir);
    // The processes get this path, and may have another working directory.
    let dir = std::path::absolute(dir)?;
    let show = if args.json { Show::Json } else { Show::Sentences };
    ringway_sys::process::raise_open_files_limit()?;
    let stop = Stop::on_signals()?;
    match args.hypervisor {
        HypervisorKind::Emulated => {
            // Without a description, the host is an example, and no other one follows it.
            let ending = if args.config.is_some() { Ending::OfGuests } else { Ending::All };
            Supervisor::start(host, &dir, common.log_level, show, ending)?.run(&stop)
        }
        HypervisorKind::Xen => xen::serve(host, &dir, common.log_level, show, &stop),
    }
}
