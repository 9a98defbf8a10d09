//! A backend or a frontend in a domain of real Xen: one process, supervised by systemd or an
//! administrator. Domains and vifs belong to the toolstack.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use ringway_backend::Sockets;
use ringway_confine::{BACKEND_DEVICES, Confinement, Role};
use ringway_control::{Recipient, RunDir, files};
use ringway_hypervisor::Hypervisor;
use ringway_sys::hangup::Hangup;
use ringway_sys::xen::gntalloc::LIMIT_FILE;
use ringway_terminal::stop::Stop;
use ringway_vif_shell::device::remove_stale_errors;
use ringway_xen::XenHypervisor;
use ringway_xenbus::Vif;
use ringway_xenstore::{Client, DomId, unless_refused};
use tracing::level_filters::LevelFilter;

use super::HypervisorKind;
use super::accepted::Keep;
use super::claim::Claim;
use super::devices::check_uplink;
use super::isolation::{self, Isolation};
use super::process::ProcessRecord;
use super::progress::{Event, Show};
use super::reload::Reloads;
use super::this_domain::{connect_backend, own_domid};
use crate::confine::confine;
use crate::description::{self, GuestName, Host, OnExit};
use crate::verb::{backend, opener, plugger};

/// Exists while the module of the kernel's backend is loaded.
const KERNEL_BACKEND: &str = "/sys/module/xen_netback";

/// Exists while the module of the kernel's frontend is loaded.
const KERNEL_FRONTEND: &str = "/sys/module/xen_netfront";
/// Pages that programs may grant: half of what a domain's grant table holds (`gnttab_max_frames`).
const GRANTS_WANTED: u32 = 16384;

/// Serves all vifs of this domain until `stop`.
pub(crate) fn serve(
    mut host: Host,
    dir: &Path,
    level: LevelFilter,
    show: Show,
    (stop, hangup): (&Stop, Option<Hangup>),
    accepted: Option<Keep>,
) -> Result<()> {
    // Busy polling takes CPU time from other virtual CPUs, including those of the guests served.
    host.workers.poll_us.get_or_insert(0);
    if Path::new(KERNEL_BACKEND).exists() {
        bail!(
            "{KERNEL_BACKEND}: the kernel's backend is loaded and would serve the same vifs. When \
             no guest has a vif there any more, copy no-xen-netback.conf (in the package: \
             /usr/share/doc/ringway/examples) to /etc/modprobe.d, which prevents it from being \
             loaded again, and run `modprobe -r xen-netback`"
        );
    }
    check_uplink(&host, dir)?;
    let (hypervisor, mut store) = connect_backend()?;
    let domid = hypervisor.domid();
    let mut claim = claim(dir, &mut host)?;
    files::replace(&claim.dir().xen_domain(), domid.to_string().as_bytes())?;
    if host.is_isolated {
        drop(hypervisor);
        if let Some(accepted) = accepted {
            accepted.keep();
        }
        let signals = (stop, hangup.as_ref());
        return supervise(&host, &mut store, &mut claim, (domid, level, show), signals);
    }
    let (dir, own) = (claim.dir(), claim.dir().serving());
    own.make()?;
    let opener = opener::start(dir, None)?;
    let plugger = plugger::start(dir)?;
    let config = backend::config(&host, dir, Recipient::from_env())?;
    let sockets = Sockets::open(dir)?.with_opener(opener).with_plugger(plugger);
    let sockets = sockets.with_hangup(hangup);
    if let Some(accepted) = accepted {
        accepted.keep();
    }
    // Everything that needs more privileges is open, and no thread has been started.
    confine(&Confinement {
        files: Some(own.path()),
        // It empties the run directory at its end.
        sockets: Some(dir.path()),
        devices: BACKEND_DEVICES,
        ..Confinement::of(Role::Vifs)
    })?;
    let dir = dir.path().display().to_string();
    show.event(&Event::Serving { dir: &dir, domid: domid.0 });
    ringway_backend::run(hypervisor, store, config, sockets, stop)?;
    Ok(())
}

/// Serves the vifs of this domain with one process per tenant, until `stop`.
fn supervise(
    host: &Host,
    store: &mut Client,
    claim: &mut Claim,
    (domid, level, show): (DomId, LevelFilter, Show),
    (stop, hangup): (&Stop, Option<&Hangup>),
) -> Result<()> {
    let root = Vif::backend_root(domid);
    // In a driver domain the toolstack may not have created this node and granted access to it yet.
    unless_refused(store.mkdir(&root), ())?;
    store.watch(&root, "vifs")?;
    remove_stale_errors(store, domid)?;
    let setup = isolation::Setup {
        dir: claim.dir().clone(),
        hypervisor: HypervisorKind::Xen,
        domid,
        level,
        show,
        host: host.clone(),
    };
    let mut isolation = Isolation::start(setup, store)?;
    let mut reloads = Reloads::on(hangup, host, claim.dir())?;
    let dir = claim.dir().path().display().to_string();
    show.event(&Event::Serving { dir: &dir, domid: domid.0 });
    loop {
        isolation.poll(store, false)?;
        if isolation.has_changed() {
            let ours = ProcessRecord::of("ringway", std::process::id())?;
            let processes = [ours].into_iter().chain(isolation.records()).collect();
            claim.record(|state| state.processes = processes)?;
        }
        // An event that came together with a reply does not make the descriptor readable.
        if isolation.take_watches(store)? {
            continue;
        }
        reloads.iter_mut().try_for_each(|reloads| reloads.serve_isolated(&mut isolation))?;
        let fds = [store.as_fd()].into_iter().chain(isolation.wakers());
        let fds: Vec<_> = fds.chain(reloads.iter().flat_map(Reloads::wakers)).collect();
        let pause = isolation.deadline().saturating_duration_since(Instant::now());
        if stop.wait_beside(&fds, Some(pause))? {
            isolation.stopping();
            isolation.end();
            return Ok(());
        }
    }
}

/// Shows the guests of the host that was stopped in a run directory that their links are down, if
/// it served vifs of real Xen. The next host that serves them shows what they were.
pub(crate) fn cut_links(dir: &RunDir) -> Result<()> {
    let Ok(domid) = fs::read_to_string(dir.xen_domain()) else { return Ok(()) };
    let Ok(domid) = domid.trim().parse().map(DomId) else { return Ok(()) };
    let cut = ringway_host::cut_links(&mut Client::of_this_domain()?, domid)?;
    tracing::debug!(cut, "links are down");
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
                "{KERNEL_FRONTEND}: the kernel's frontend is loaded and uses the same vifs. Put a \
                 line `blacklist xen-netfront` into /etc/modprobe.d/no-xen-netfront.conf, which \
                 prevents it from being loaded again, and run `modprobe -r xen-netfront`"
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

    /// The guest's description for other commands.
    pub(crate) fn description(&self) -> description::Guest {
        description::Guest {
            name: self.name.clone(),
            vm_uuid: None,
            memory_mib: 0,
            on_exit: OnExit::Destroy,
            vifs: Vec::new(),
        }
    }
}

/// Takes a run directory for this process.
pub(crate) fn claim(dir: &Path, host: &mut Host) -> Result<Claim> {
    let mut claim = Claim::take(dir)?;
    claim.write_description(host)?;
    let process = ProcessRecord::of("ringway", std::process::id())?;
    claim.record(|state| state.processes = vec![process])?;
    Ok(claim)
}

/// Raises the limit of pages that programs may grant to what 31 queues take: the kernel's default
/// suffices for one. Where that is not permitted, the first queue that cannot grant its pages
/// reports what to do.
fn raise_grant_limit() {
    let limit = fs::read_to_string(LIMIT_FILE).ok().and_then(|limit| limit.trim().parse().ok());
    if limit.is_some_and(|limit: u32| limit < GRANTS_WANTED)
        && fs::write(LIMIT_FILE, GRANTS_WANTED.to_string()).is_ok()
    {
        tracing::info!("raised {LIMIT_FILE} from {} to {GRANTS_WANTED}", limit.unwrap_or(0));
    }
}
