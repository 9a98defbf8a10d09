//! `ringway broker`: the process that owns the domains of a host and its XenStore.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ringway_confine::{BROKER_DEVICES, Confinement, Role};
use ringway_control::RunDir;
use ringway_control::files::bind;
use ringway_emu::{Broker as Domains, DomainEvent};
use ringway_terminal::output::print;
use ringway_terminal::stop::Stop;
use ringway_xenstore::{DomId, Quota, Server, ServerHandle};
use rustix::fs::Mode;

use crate::confine::confine;
use crate::host::BROKER_READY;

/// The emulated hypervisor and XenStore of one host. `ringway run` starts it.
#[derive(Debug, Args)]
pub(crate) struct Broker {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Broker) -> Result<()> {
    // Its sockets are for this user only. A confined process cannot change their modes.
    rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let stop = Stop::on_signals_of_child()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let store = Server::new(Quota::default())?;
    let handle = store.handle();
    handle.listen(bind(&dir.xenstore())?, DomId(0))?;
    let mut domains = Domains::bind(dir.path())
        .with_context(|| format!("take {} as broker", dir.path().display()))?;
    domains.on_change(move |event| {
        if let Err(error) = follow(&dir, &handle, event) {
            tracing::error!("XenStore, after {event:?}: {error}");
        }
    });
    // No thread has been started.
    confine(&Confinement {
        sockets: Some(&args.dir),
        devices: BROKER_DEVICES,
        ..Confinement::of(Role::Broker)
    })?;
    let (stop_domains, stop_store) = (domains.handle(), store.handle());
    let store = thread::Builder::new().name("xenstore".into()).spawn(move || store.run())?;
    let domains = thread::Builder::new().name("domains".into()).spawn(move || domains.run())?;
    print(&format!("{BROKER_READY}\n"))?;
    while !stop.wait(std::time::Duration::from_secs(1))? {
        // Either thread ends only on a failure, which ends the host.
        if store.is_finished() || domains.is_finished() {
            break;
        }
    }
    stop_domains.stop();
    stop_store.stop();
    domains.join().map_err(|_| anyhow!("the broker's thread has panicked"))??;
    store.join().map_err(|_| anyhow!("XenStore's thread has panicked"))??;
    Ok(())
}

/// Introduces a domain to XenStore, and XenStore to the domain.
fn follow(dir: &RunDir, store: &ServerHandle, event: DomainEvent) -> io::Result<()> {
    match event {
        DomainEvent::Created(domid) => {
            store.introduce(domid)?;
            store.listen(bind(&dir.xenstore_of(domid.0))?, domid)
        }
        // Its nodes stay until the toolstack has removed its devices.
        DomainEvent::Died(_) => Ok(()),
        DomainEvent::Destroyed(domid) => {
            store.release(domid)?;
            fs::remove_file(dir.xenstore_of(domid.0))
        }
    }
}
