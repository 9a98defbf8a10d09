//! A backend in a domain 0 or driver domain of real Xen: one process, which systemd or an
//! administrator looks after. Domains and vifs are the toolstack's.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringway_control::RunDir;

use ringway_xen::XenHypervisor;
use ringway_xenstore::{Client, DomId};

use super::claim::Claim;
use super::process::ProcessRecord;
use super::progress::{Event, Show};
use crate::description::Host;
use crate::stop::Stop;
use crate::verb::backend;

/// The kernel's backend, while its module is loaded.
const KERNEL_BACKEND: &str = "/sys/module/xen_netback";

/// Serves all vifs of this domain until `stop`.
pub(crate) fn serve(host: &Host, dir: &Path, show: Show, stop: &Stop) -> Result<()> {
    check(host)?;
    if Path::new(KERNEL_BACKEND).exists() {
        bail!(
            "{KERNEL_BACKEND}: the kernel's backend is loaded and would serve the same vifs; \
             `rmmod xen-netback`, once no guest has a vif there, and keep it from coming back \
             with a line `blacklist xen-netback` in /etc/modprobe.d/ringway.conf"
        );
    }
    let mut store = Client::of_this_domain()?;
    let domid = own_domid(&mut store)?;
    let hypervisor = XenHypervisor::backend(domid)?;
    let mut claim = Claim::take(dir)?;
    claim.write_description(host)?;
    let process = ProcessRecord::of("ringway run", std::process::id())?;
    claim.record(|state| state.processes = vec![process])?;
    let config = backend::config(host, RunDir::new(dir))?;
    let dir = dir.display().to_string();
    show.event(&Event::Serving { dir: &dir, domid: domid.0 });
    ringway_backend::run(hypervisor, store, config, stop)?;
    Ok(())
}

/// The domain that this program runs in.
pub(crate) fn own_domid(store: &mut Client) -> Result<DomId> {
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
