//! `ringway attacher`: the process that makes network devices in network namespaces, which neither
//! a backend nor an opener may enter.
//!
//! It serves no guest, and a compromised backend cannot reach it: it follows the opener, which
//! has its orders from the host's description.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use clap::Args;
use ringway_confine::Unlisted;
use ringway_control::{Link, RunDir};
use ringway_terminal::stop::Stop;
use tracing::level_filters::LevelFilter;

use crate::description::Vhost;
use crate::host::{Process, owner};
use crate::own_mac::own_mac;

/// Makes network devices for the opener that starts it.
#[derive(Debug, Args)]
pub(crate) struct Attacher {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Starts the attacher for this process, if one of these vifs is of a network namespace, and
/// returns the link to it. It ends with this process.
pub(crate) fn start<'a>(
    dir: &RunDir,
    mut vifs: impl Iterator<Item = &'a Vhost>,
) -> Result<Option<Link>> {
    if vifs.all(|vif| vif.place.namespace().is_none()) {
        return Ok(None);
    }
    let (link, theirs) = Link::pair().context("a pair of sockets")?;
    let arguments = ["attacher".as_ref(), "--dir".as_ref(), dir.path().as_os_str()];
    Process::start_beside("attacher", LevelFilter::current(), arguments, Stdio::from(theirs))?;
    Ok(Some(link))
}

pub(crate) fn run(args: &Attacher) -> Result<()> {
    // Signals are ignored: the backend gets them, too, and may need the attacher until it ends.
    let _signals = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    ringway_confine::give_up_privileges(Unlisted::Attacher)?;
    let link = rustix::stdio::stdin().try_clone_to_owned().context("standard input")?;
    let dir = RunDir::new(&args.dir);
    let mac_of = |name: &str| own_mac(name, &dir);
    let attacher =
        ringway_host_shell::Attacher::new(Link::new(link), &dir, owner(dir.path()), mac_of)?;
    Ok(attacher.run()?)
}
