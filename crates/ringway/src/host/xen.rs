//! A backend or a frontend in a domain of real Xen: one process, which systemd or an administrator
//! looks after. Domains and vifs are the toolstack's.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringway_backend::Sockets;
use ringway_confine::{BACKEND_DEVICES, Role};
use ringway_control::RunDir;
use ringway_sys::xen::gntalloc::LIMIT_FILE;

use ringway_xen::XenHypervisor;
use ringway_xenstore::{Client, DomId};

use super::claim::Claim;
use super::process::ProcessRecord;
use super::progress::{Event, Show};
use crate::confine::confine;
use crate::description::{self, GuestName, Host, OnExit};
use crate::stop::Stop;
use crate::verb::backend;

/// The kernel's backend, while its module is loaded.
const KERNEL_BACKEND: &str = "/sys/module/xen_netback";

/// The kernel's frontend, likewise.
const KERNEL_FRONTEND: &str = "/sys/module/xen_netfront";
/// Pages that programs may grant, half of what a domain's grant table holds
/// (`gnttab_max_frames`).
const GRANTS_WANTED: u32 = 16384;

/// Serves all vifs of this domain until `stop`.
pub(crate) fn serve(mut host: Host, dir: &Path, show: Show, stop: &Stop) -> Result<()> {
    check(&host)?;
    // Polling takes time from virtual CPUs, those of the guests that it serves among them.
    host.workers.poll_us.get_or_insert(0);
    if Path::new(KERNEL_BACKEND).exists() {
        bail!(
            "{KERNEL_BACKEND}: the kernel's backend is loaded and would serve the same vifs; \
             once no guest has a vif there, copy no-xen-netback.conf (in the package: \
             /usr/share/doc/ringway/examples) to /etc/modprobe.d, which keeps it from coming back, \
             and run `modprobe -r xen-netback`"
        );
    }
    let mut store = Client::of_this_domain()?;
    let domid = own_domid(&mut store)?;
    let hypervisor = XenHypervisor::backend(domid)?;
    let _claim = claim(dir, &host)?;
    let config = backend::config(&host, RunDir::new(dir))?;
    let sockets = Sockets::open(&config.dir)?;
    // Everything that needs more rights is open, and no thread has been started.
    confine(dir, BACKEND_DEVICES, Role::Vifs)?;
    let dir = dir.display().to_string();
    show.event(&Event::Serving { dir: &dir, domid: domid.0 });
    ringway_backend::run(hypervisor, store, config, sockets, stop)?;
    Ok(())
}

/// What a frontend needs of the domain that it runs in.
pub(crate) struct Guest {
    pub(crate) name: GuestName,
    pub(crate) hypervisor: XenHypervisor,
    pub(crate) store: Client,
}

impl Guest {
    /// Opens everything.
    pub(crate) fn of_this_domain() -> Result<Guest> {
        if Path::new(KERNEL_FRONTEND).exists() {
            bail!(
                "{KERNEL_FRONTEND}: the kernel's frontend is loaded and has the same vifs; \
                 put a line `blacklist xen-netfront` into /etc/modprobe.d/no-xen-netfront.conf, \
                 which keeps it from coming back, and run `modprobe -r xen-netfront`"
            );
        }
        let mut store = Client::of_this_domain()?;
        let domid = own_domid(&mut store)?;
        let hypervisor = XenHypervisor::frontend(domid)?;
        raise_grant_limit();
        let name = store.read("name").ok().flatten();
        let name = name.and_then(|name| name.parse().ok());
        let unnamed = || GuestName(format!("domain{domid}"));
        Ok(Guest { name: name.unwrap_or_else(unnamed), hypervisor, store })
    }

    /// The guest as other commands find it.
    pub(crate) fn description(&self) -> description::Guest {
        description::Guest {
            name: self.name.clone(),
            memory_mib: 0,
            on_exit: OnExit::Destroy,
            vifs: Vec::new(),
        }
    }
}

/// Takes a run directory for this process.
pub(crate) fn claim(dir: &Path, host: &Host) -> Result<Claim> {
    let mut claim = Claim::take(dir)?;
    claim.write_description(host)?;
    let process = ProcessRecord::of("ringway", std::process::id())?;
    claim.record(|state| state.processes = vec![process])?;
    Ok(claim)
}

/// Lets programs grant as many pages as 31 queues take: the kernel's own limit is for one. Where
/// that is not permitted, the queue that finds no room says what to do.
fn raise_grant_limit() {
    let limit = fs::read_to_string(LIMIT_FILE).ok().and_then(|limit| limit.trim().parse().ok());
    if limit.is_some_and(|limit: u32| limit < GRANTS_WANTED)
        && fs::write(LIMIT_FILE, GRANTS_WANTED.to_string()).is_ok()
    {
        tracing::info!("{LIMIT_FILE} was {}, and is {GRANTS_WANTED} now", limit.unwrap_or(0));
    }
}

/// The domain that this program runs in.
fn own_domid(store: &mut Client) -> Result<DomId> {
    let domid = store.read("domid").context("XenStore: read the number of this domain")?;
    let domid = domid.and_then(|domid| domid.parse().ok()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "XenStore has no node `domid` for this domain; in a domain 0 `xen-init-dom0` writes it",
        )
    })?;
    Ok(DomId(domid))
}

/// Whether a description makes sense where domains are not ours to make.
fn check(host: &Host) -> Result<()> {
    let foreign = [("guest", host.guests.is_empty()), ("bridge", host.bridges.is_empty())];
    for (section, is_empty) in foreign {
        if !is_empty {
            bail!(
                "the description has a section [[{section}]]; with --hypervisor xen guests and \
                 bridges are the toolstack's, so remove it"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_of_an_emulated_host_are_refused() {
        let refusal = check(&Host::example()).expect_err("it has guests").to_string();
        assert!(refusal.contains("[[guest]]"), "{refusal}");
        check(&Host::empty()).expect("it has none");
    }
}
