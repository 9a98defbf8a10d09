//! What a toolstack does for a guest: it makes the domain and its vif, and removes them. On Xen
//! `xl` does this, and the guest is a domain already.

use std::path::Path;

use anyhow::{Context as _, Result};
use ringway_datapath::MacAddr;
use ringway_emu::{EmuHypervisor, NewDomain, Role};
use ringway_vif_shell::device;
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::{Client, DomId};

/// The domain of the toolstack, and of the backend.
const HOST: DomId = DomId(0);
/// Memory for the rings, buffers and grants of a queue.
const MEMORY_BYTES: u64 = 16 << 20;

/// The XenStore of a domain of the emulated host in `dir`.
///
/// # Errors
/// No host runs there, or it has no such domain.
pub(crate) fn store_of(dir: &Path, domid: DomId) -> Result<Client> {
    let socket = match domid {
        HOST => "xenstored.sock".to_owned(),
        guest => format!("xenstored-{guest}.sock"),
    };
    Ok(Client::connect(&dir.join(socket))?)
}

/// Domain 0 of an emulated host, beside the process that started it.
pub(crate) struct Toolstack {
    hypervisor: EmuHypervisor,
    store: Client,
}

impl Toolstack {
    /// Joins a host through its run directory.
    ///
    /// # Errors
    /// No host runs there.
    pub(crate) fn join(dir: &Path) -> Result<Toolstack> {
        let hypervisor = EmuHypervisor::connect(dir, HOST)
            .with_context(|| format!("no emulated host runs in {}", dir.display()))?;
        Ok(Toolstack { hypervisor, store: store_of(dir, HOST)? })
    }

    /// Makes a domain with this name, and its vif on the host's switch.
    ///
    /// # Errors
    /// Those of the hypervisor and of XenStore.
    pub(crate) fn make_guest(&mut self, name: &str) -> Result<Vif> {
        let new = NewDomain { domid: None, memory_bytes: MEMORY_BYTES, role: Role::Guest };
        let domid = self.hypervisor.create_domain(new).context("make a domain")?;
        let vif = Vif { backend: HOST, frontend: domid, handle: 0 };
        let [high, low] = domid.0.to_be_bytes();
        let made = Device::new(vif, MacAddr([0x00, 0x16, 0x3e, 0x6e, high, low]));
        self.store.transaction(|tx| {
            device::make_domain(tx, HOST, domid, name)?;
            device::make(tx, &made)
        })?;
        Ok(vif)
    }

    /// Removes a domain that has disconnected from its backend.
    ///
    /// # Errors
    /// Those of the hypervisor and of XenStore.
    pub(crate) fn remove_guest(mut self, vif: Vif) -> Result<()> {
        self.store.transaction(|tx| device::remove_domain(tx, HOST, vif.frontend))?;
        self.hypervisor.destroy_domain(vif.frontend).context("destroy the domain")
    }
}
