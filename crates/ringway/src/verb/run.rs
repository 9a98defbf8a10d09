//! `ringway run`: an emulated host on this machine, until Ctrl-C.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_control::RunDir;
use ringway_terminal::options::{Common, number};
use ringway_terminal::output::print;
use ringway_terminal::stop::Stop;
use ringway_worker::Policy;

use crate::description::{self, Host, Origin, Usage};
use crate::host::{
    Accepted, Ending, HypervisorKind, Keep, Show, Supervisor, check_path, default_dir,
    read_description, xen,
};
use crate::kernel;
use crate::socket_group;

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
/// Options override the description in --config. Once a host serves, its description is kept: in
/// $STATE_DIRECTORY if that is set, as for a service, else in the file DIR.accepted beside the run
/// directory. A start with a description that has faults prints them and serves the kept one, if
/// that was read from the same FILE; remove it to prevent this.
///
/// SIGHUP has it read FILE again (man ringway.toml says what applies then), unless its terminal is
/// gone or there is no FILE: then it ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ringway run\n  \
                        ringway run --config host.toml --workers 4 --policy static\n  \
                        ringway run --check host.toml\n  \
                        ringway run --hypervisor xen")]
pub(crate) struct Run {
    /// Where the guests run
    #[arg(long, value_name = "KIND", default_value = "emulated")]
    hypervisor: HypervisorKind,
    /// Description of the host in TOML: guests, switch, limits
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the description in FILE as --config would read it, for a host that runs with it also
    /// by the options of that host: print all faults, start nothing
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check: Option<PathBuf>,
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
    /// Of an earlier version, without effect
    #[arg(long, value_name = "WHEN", hide = true)]
    completion: Option<String>,
    /// Run one backend process per tenant, and the switch in another
    #[arg(long)]
    isolate: bool,
    /// Print events as JSON, one per line
    #[arg(long)]
    json: bool,
}

impl Run {
    fn usage(&self) -> Usage {
        Usage {
            workers: self.workers.map(usize::from),
            policy: self.policy,
            max_queues: self.max_queues,
            isolate: self.isolate,
            has_toolstack: self.hypervisor == HypervisorKind::Xen,
        }
    }
}

pub(crate) fn run(args: &Run, common: &Common) -> Result<()> {
    let usage = args.usage();
    if args.completion.is_some() {
        tracing::warn!("{}", description::COMPLETION_OBSOLETE.replacen('`', "`--", 1));
    }
    if let Some(file) = &args.check {
        return check(file, usage, args.dir.as_deref());
    }
    let Start { mut host, mut accepted } = Start::of(args, usage)?;
    warn_of_keys(&host);
    let dir = run_dir(args.dir.as_deref(), &host)?;
    let show = if args.json { Show::Json } else { Show::Sentences };
    ringway_sys::process::raise_open_files_limit()?;
    let (stop, hangup) = match host.origin {
        Some(_) => Stop::on_signals_and_hangup().map(|(stop, hangup)| (stop, Some(hangup)))?,
        None => (Stop::on_signals()?, None),
    };
    match args.hypervisor {
        HypervisorKind::Emulated => {
            // Without a description, the host is an example, and no other one follows it.
            let ending = if args.config.is_some() { Ending::OfGuests } else { Ending::All };
            let serve = |mut host: Host, accepted: &mut Option<Keep>| {
                host.lacks_landlock = kernel::check(host.without_landlock)?;
                Supervisor::start(host, &dir, common.log_level, show, ending)?
                    .run((&stop, hangup.as_ref()), accepted)
            };
            let Err(error) = serve(host, &mut accepted) else { return Ok(()) };
            // What is still to be kept has never served.
            let before = accepted.and_then(|Keep { kept, content }| {
                let (before, host) = kept.read(usage)?;
                (before != content).then_some((kept, host))
            });
            let Some((kept, mut host)) = before else { return Err(error) };
            tracing::error!("{error:#}");
            warn(&kept);
            host.refused = Some(format!("{}: {error:#}", kept.file().display()));
            host.origin = Some(Origin { file: kept.file().to_owned(), usage });
            serve(host, &mut None)
        }
        HypervisorKind::Xen => {
            host.lacks_landlock = kernel::check(host.without_landlock)?;
            xen::serve(host, &dir, common.log_level, show, (&stop, hangup), accepted)
        }
    }
}

/// The processes get this path, and may have another working directory.
fn run_dir(given: Option<&Path>, host: &Host) -> Result<PathBuf> {
    let dir = given.map(Path::to_owned).or_else(|| host.dir.clone()).unwrap_or_else(default_dir);
    Ok(std::path::absolute(dir)?)
}

/// Checks a description as a start would, or the host that runs with it when it reads it again.
fn check(file: &Path, usage: Usage, dir: Option<&Path>) -> Result<()> {
    let usage = usage.or(usage_of_host(file, dir).unwrap_or_default());
    let (_, host) = description::read(file, usage)?;
    check_path(&run_dir(dir, &host)?)?;
    warn_of_keys(&host);
    if let Some(group) = &host.socket_group {
        socket_group::find(group).with_context(|| file.display().to_string())?;
    }
    print(&format!("{}: no faults\n", file.display()))
}

/// The options of the host that runs with a description in a run directory, if one does. What a
/// service manager has added to them is in no command line that checks.
fn usage_of_host(file: &Path, dir: Option<&Path>) -> Option<Usage> {
    let dir = dir.map_or_else(default_dir, Path::to_owned);
    let origin = read_description(&RunDir::new(dir)).ok()?.origin?;
    (origin.file == std::path::absolute(file).ok()?).then_some(origin.usage)
}

/// Warns of keys without effect.
fn warn_of_keys(host: &Host) {
    host.obsolete.iter().for_each(|key| tracing::warn!("{key}"));
    // Unpinned workers serve, so CPUs may come and go.
    let Ok(allowed) = ringway_sys::process::allowed_cpus() else { return };
    for cpu in host.workers.cpus.iter().filter(|cpu| !allowed.contains(cpu)) {
        tracing::warn!(
            "host.cpus: no worker can be pinned to CPU {cpu}: it is offline, or not of this service"
        );
    }
}

fn warn(accepted: &Accepted) {
    tracing::warn!(
        "this host serves the last accepted description instead, as kept in {}: correct {} and \
         start it again; without the kept one it would not start",
        accepted.kept().display(),
        accepted.file().display()
    );
}

/// What a host starts with.
struct Start {
    host: Host,
    /// The description to keep once the host serves, and where, if it came from a file.
    accepted: Option<Keep>,
}

impl Start {
    fn of(args: &Run, usage: Usage) -> Result<Start> {
        let Some(file) = &args.config else {
            let host = match args.hypervisor {
                HypervisorKind::Emulated => Host::example(usage)?,
                HypervisorKind::Xen => Host::empty(usage)?,
            };
            return Ok(Start { host, accepted: None });
        };
        let error = match description::read(file, usage) {
            Ok((content, mut host)) => {
                let kept = Accepted::of(file, &run_dir(args.dir.as_deref(), &host)?)?;
                host.origin = Some(Origin { file: kept.file().to_owned(), usage });
                return Ok(Start { host, accepted: Some(Keep { kept, content }) });
            }
            Err(error) => error,
        };
        let dir = args.dir.clone().unwrap_or_else(default_dir);
        let kept = Accepted::of(file, &dir)?;
        let Some((_, mut host)) = kept.read(usage) else { bail!(error) };
        tracing::error!("{error}");
        warn(&kept);
        host.refused = Some(error.summary());
        host.origin = Some(Origin { file: kept.file().to_owned(), usage });
        Ok(Start { host, accepted: None })
    }
}
