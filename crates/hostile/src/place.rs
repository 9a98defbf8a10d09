//! Prepares a hostile guest on an emulated host: the toolstack's work, for one domain and its vif.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringway_control::RunDir;
use ringway_datapath::MacAddr;
use ringway_emu::{EmuHypervisor, NewDomain, Role};
use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif, XenbusState};
use ringway_xenstore::Client;

const HOST: DomId = DomId(0);
/// Memory for the rings, buffers and grants of eight queues.
const MEMORY_BYTES: u64 = 16 << 20;
/// How long a backend may take to release a vif.
// waits: the domain then goes all the same, and what the backend makes of that is measured.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Domain 0 of a running emulated host, beside the process that started it.
#[derive(Debug)]
pub struct Toolstack {
    dir: PathBuf,
    hypervisor: EmuHypervisor,
    store: Client,
}

impl Toolstack {
    /// Joins a host through its run directory.
    ///
    /// # Errors
    /// If no host runs there.
    pub fn join(dir: &Path) -> Result<Toolstack> {
        let hypervisor = EmuHypervisor::connect(dir, HOST)
            .with_context(|| format!("no emulated host runs in {}", dir.display()))?;
        let store = Client::connect(&RunDir::new(dir).xenstore())?;
        Ok(Toolstack { dir: dir.to_owned(), hypervisor, store })
    }

    /// The run directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Domain 0's XenStore.
    pub fn store(&mut self) -> &mut Client {
        &mut self.store
    }

    /// Creates a domain with a vif, on a bridge or on the switch. `keys` are added to those that a
    /// toolstack always writes to the backend's directory.
    ///
    /// # Errors
    /// The errors of broker and store.
    pub fn make_guest(&mut self, bridge: Option<&str>, keys: &[(&str, &str)]) -> Result<Vif> {
        let vif = self.make_domain()?;
        let made = describe(vif, bridge);
        self.store.transaction(|tx| {
            device::make(tx, &made)?;
            let dir = vif.backend_dir();
            keys.iter().try_for_each(|(key, value)| tx.write(&format!("{dir}/{key}"), value))
        })?;
        Ok(vif)
    }

    /// Creates a domain and returns the vif that it would have.
    ///
    /// # Errors
    /// The errors of broker and store.
    pub fn make_domain(&mut self) -> Result<Vif> {
        let frontend = self.make_domain_as(Role::Guest)?;
        Ok(Vif { backend: HOST, frontend, handle: 0 })
    }

    /// Creates a driver domain and a vif of it for a guest.
    ///
    /// # Errors
    /// The errors of broker and store.
    pub fn make_backend(&mut self, frontend: DomId, handle: u32) -> Result<Vif> {
        let vif = Vif { backend: self.make_domain_as(Role::DriverDomain)?, frontend, handle };
        self.store.transaction(|tx| device::make(tx, &describe(vif, None)))?;
        Ok(vif)
    }

    /// Removes them.
    ///
    /// # Errors
    /// The errors of broker and store.
    pub fn remove_backend(&mut self, vif: Vif) -> Result<()> {
        self.store.transaction(|tx| {
            tx.remove(&vif.frontend_dir())?;
            device::remove_domain(tx, vif.backend, vif.backend)
        })?;
        self.hypervisor.destroy_domain(vif.backend).context("destroy a domain")
    }

    fn make_domain_as(&mut self, role: Role) -> Result<DomId> {
        let new = NewDomain { domid: None, memory_bytes: MEMORY_BYTES, role };
        let domid = self.hypervisor.create_domain(new).context("make a domain")?;
        let name = format!("hostile-{domid}");
        self.store.transaction(|tx| device::make_domain(tx, HOST, domid, &name))?;
        Ok(domid)
    }

    /// Removes the vif and the domain, as a toolstack does when a domain has ended.
    ///
    /// # Errors
    /// The errors of broker and store. A backend that does not release the vif in 10 s is not an
    /// error here: its behaviour is what is measured.
    pub fn remove_guest(&mut self, vif: Vif) -> Result<()> {
        device::change(&mut self.store, &vif.backend_dir(), &Device::removal_changes())?;
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while Instant::now() < deadline {
            let state = device::state(&mut self.store, &vif.backend_state())?;
            if matches!(state, XenbusState::Closed | XenbusState::Unknown) {
                break;
            }
            // waits: it reads again until the vif is released.
            std::thread::sleep(Duration::from_millis(2));
        }
        let domid = vif.frontend;
        self.store.transaction(|tx| device::remove_domain(tx, HOST, domid))?;
        self.hypervisor.destroy_domain(domid).context("destroy a domain")
    }
}

/// The vif of a hostile guest, in the toolstack's description.
pub fn describe(vif: Vif, bridge: Option<&str>) -> Device {
    let [high, low] = vif.frontend.0.to_be_bytes();
    let mac = MacAddr([0x00, 0x16, 0x3e, 0x66, high, low]);
    Device { bridge: bridge.map(str::to_owned), staging: true, ..Device::new(vif, mac) }
}
