//! `ringway stop`: ends a host.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_control::RunDir;
use ringway_sys::poll::wait_readable;

use crate::host::{ProcessRecord, default_dir, read_state, remove_all, xen};

/// How long a host may take to end: guests, tenants, backend and broker end one after another.
const END_TIMEOUT: Duration = Duration::from_secs(45);

/// Stop a host in order, and wait until it has ended.
///
/// Its network devices stay, with all that was set on them, and the next host with the same
/// run directory takes them over. --remove-devices deletes them, also if no host runs.
///
/// On Xen, frontends that read `carrier`, as ringway's does, see that their links are down until a
/// host serves them again.
///
/// A service manager starts its service again: `systemctl stop ringway` first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ringway stop\n  ringway stop --remove-devices")]
pub(crate) struct StopHost {
    /// Run directory; the default is /run/ringway/default for root
    #[arg(long, value_name = "DIR", env = "RINGWAY_DIR")]
    dir: Option<PathBuf>,
    /// Delete its network devices: the uplink, and those of vifs on bridges and in namespaces
    #[arg(long)]
    remove_devices: bool,
}

pub(crate) fn run(args: &StopHost) -> Result<()> {
    let dir = std::path::absolute(args.dir.clone().unwrap_or_else(default_dir))?;
    let shown = dir.display();
    let run_dir = RunDir::new(&dir);
    match read_state(&run_dir).processes.first().map(ProcessRecord::terminate) {
        Some(Ok(Some(process))) => {
            if !wait_readable(&process, Some(END_TIMEOUT))? {
                bail!("{shown}: the host has not ended in {} s", END_TIMEOUT.as_secs());
            }
        }
        Some(Err(error)) => return Err(error).with_context(|| format!("{shown}: end the host")),
        None | Some(Ok(None)) if args.remove_devices => {}
        None | Some(Ok(None)) => bail!("no host runs in {shown}; --dir names another directory"),
    }
    let next = read_state(&run_dir).processes.into_iter().next();
    if let Some(next) = next.filter(ProcessRecord::is_alive) {
        if args.remove_devices {
            bail!(
                "{shown}: another host runs already (process {}), so its devices stay: stop the \
                 service that starts it",
                next.pid
            );
        }
        return Ok(());
    }
    let cut = xen::cut_links(&run_dir);
    if args.remove_devices {
        remove_all(&run_dir)?;
    }
    cut.context("the host has ended, and its guests do not see that")
}
