//! A domain with one vif: it performs the handshake of an honest frontend, with any of the keys
//! replaced.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_control::RunDir;
use ringway_datapath::MacAddr;
use ringway_emu::EmuHypervisor;
use ringway_wire::DomId;
use ringway_xen::XenHypervisor;
use ringway_xenbus::Vif;
use ringway_xenstore::Client;

use crate::control_ring::ControlRing;
use crate::machine::{Machine, SOON};
use crate::queue::Queue;
use crate::store_access::StoreAccess;

/// The pause between two reads of a node.
const PAUSE: Duration = Duration::from_millis(2);
/// The vif's directory, relative to the guest's own.
pub const VIF: &str = "device/vif/0";

/// States of `xenbus_state`, as XenStore has them.
pub mod state {
    /// `XenbusStateInitialising`
    pub const INITIALISING: &str = "1";
    /// `XenbusStateInitWait`
    pub const INIT_WAIT: &str = "2";
    /// `XenbusStateConnected`
    pub const CONNECTED: &str = "4";
    /// `XenbusStateClosing`
    pub const CLOSING: &str = "5";
    /// `XenbusStateClosed`
    pub const CLOSED: &str = "6";
}

/// A key of the vif's directory and its value; `None` removes it.
pub type Key<'a> = (&'a str, Option<&'a str>);

/// A guest with only the rights of a guest.
#[derive(Debug)]
pub struct Guest {
    /// Its hypervisor.
    pub machine: Machine,
    /// Its XenStore.
    pub store: Client,
    /// How to open more connections to the store.
    pub store_access: StoreAccess,
    /// Its vif.
    pub vif: Vif,
    /// The address assigned by the toolstack.
    pub mac: MacAddr,
    /// The queues that the backend knows, or knew.
    pub queues: Vec<Queue>,
    /// The control ring beside these, if there is one.
    pub control: Option<ControlRing>,
}

impl Guest {
    /// Becomes a domain of an emulated host.
    ///
    /// # Errors
    /// If there is no such domain, or it has no vif.
    pub fn emulated(dir: &Path, domid: DomId) -> Result<Guest> {
        let machine = EmuHypervisor::connect(dir, domid)
            .with_context(|| format!("become domain {domid} of {}", dir.display()))?;
        let store_access = StoreAccess::Socket(RunDir::new(dir).xenstore_of(domid.0));
        Guest::new(Machine::Emulated(machine), store_access)
    }

    /// Uses the first vif of the Xen domain in which this program runs. The kernel's frontend must
    /// not use it: `rmmod xen-netfront`.
    ///
    /// # Errors
    /// If this is not a Xen domain, or it has no vif.
    pub fn on_xen() -> Result<Guest> {
        let mut store = Client::of_this_domain()?;
        let domid = store.read("domid")?.context("XenStore has no domid of this domain")?;
        let domid = DomId(domid.parse().with_context(|| format!("domid {domid}"))?);
        let machine = XenHypervisor::frontend(domid)?;
        Guest::new(Machine::Xen(machine), StoreAccess::Domain)
    }

    fn new(machine: Machine, store_access: StoreAccess) -> Result<Guest> {
        let domid = machine.domid();
        // The broker announces a new domain to the store with a short delay.
        let mut store = wait("XenStore", || Ok(store_access.client().ok()))?;
        let backend = format!("{VIF}/backend-id");
        let backend = wait("a vif of this domain", || Ok(store.read(&backend)?))?;
        let backend = DomId(backend.parse().with_context(|| format!("backend-id {backend}"))?);
        let vif = Vif { backend, frontend: domid, handle: 0 };
        let mac = store.read(&format!("{VIF}/mac"))?.unwrap_or_default();
        let mac = MacAddr::parse(&mac).with_context(|| format!("mac {mac:?} of the vif"))?;
        Ok(Guest { machine, store, store_access, vif, mac, queues: Vec::new(), control: None })
    }

    /// The backend's state.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn backend_state(&mut self) -> Result<String> {
        Ok(self.store.read(&self.vif.backend_state())?.unwrap_or_default())
    }

    /// Waits until the backend is in one of these states.
    ///
    /// # Errors
    /// If it is not within 60 seconds; the error names its state.
    pub fn wait_for_backend(&mut self, states: &[&str]) -> Result<String> {
        let deadline = Instant::now() + SOON;
        loop {
            let found = self.backend_state()?;
            if states.contains(&found.as_str()) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let why = self.reason()?.unwrap_or_default();
                bail!("the backend's state is {found:?}, expected one of {states:?} {why}");
            }
            // waits: it reads again until the state is one of these.
            std::thread::sleep(PAUSE);
        }
    }

    /// Why the backend has closed the vif, if it reports that.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn reason(&mut self) -> Result<Option<String>> {
        for node in self.vif.backend_errors() {
            // A guest may not be allowed to read the node for tools.
            if let Ok(Some(reason)) = self.store.read(&node) {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    /// Writes its own state.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn set_state(&mut self, state: &str) -> Result<()> {
        Ok(self.store.write(&format!("{VIF}/state"), state)?)
    }

    /// Releases everything, and waits for the backend's offer.
    ///
    /// # Errors
    /// If it makes no offer.
    pub fn start_over(&mut self) -> Result<()> {
        let own = self.store.read(&format!("{VIF}/state"))?.unwrap_or_default();
        if own != state::INITIALISING {
            self.set_state(state::CLOSING)?;
            self.wait_for_backend(&[state::CLOSING, state::CLOSED, state::INIT_WAIT])?;
            self.set_state(state::CLOSED)?;
            self.wait_for_backend(&[state::CLOSED, state::INIT_WAIT])?;
            for queue in self.queues.drain(..) {
                queue.close(&self.machine);
            }
            if let Some(control) = self.control.take() {
                control.close(&self.machine);
            }
            self.forget_keys()?;
            self.set_state(state::INITIALISING)?;
        }
        self.wait_for_backend(&[state::INIT_WAIT])?;
        Ok(())
    }

    /// Removes what it has written for an earlier connection.
    fn forget_keys(&mut self) -> Result<()> {
        let kept = ["backend", "backend-id", "handle", "mac", "mtu", "state", "trusted"];
        for key in self.store.directory(VIF)? {
            if !kept.contains(&key.as_str()) {
                self.store.remove(&format!("{VIF}/{key}"))?;
            }
        }
        Ok(())
    }

    /// The most queues that the backend offers.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn queues_max(&mut self) -> Result<u16> {
        let key = format!("{}/multi-queue-max-queues", self.vif.backend_dir());
        let value = self.store.read(&key)?;
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(1))
    }

    /// Creates queues and writes the keys of an honest frontend, with changes.
    ///
    /// # Errors
    /// If memory or ports run out, or what the store refuses.
    pub fn publish(&mut self, queues: u16, buffers: usize, changes: &[Key<'_>]) -> Result<()> {
        self.make_queues(queues, buffers)?;
        self.say(changes)
    }

    /// Creates queues without announcing them to the backend.
    ///
    /// # Errors
    /// If memory or ports run out.
    pub fn make_queues(&mut self, queues: u16, buffers: usize) -> Result<()> {
        for _ in 0..queues {
            self.queues.push(Queue::new(&self.machine, self.vif.backend, buffers)?);
        }
        Ok(())
    }

    /// Creates a control ring without announcing it to the backend. Returns false if the backend
    /// offers none.
    ///
    /// # Errors
    /// If memory or ports run out, or what the store refuses.
    pub fn make_control(&mut self) -> Result<bool> {
        let key = format!("{}/feature-ctrl-ring", self.vif.backend_dir());
        let is_offered = self.store.read(&key)?.as_deref() == Some("1");
        if is_offered {
            self.control = Some(ControlRing::new(&self.machine, self.vif.backend)?);
        }
        Ok(is_offered)
    }

    /// Writes the keys of an honest frontend with these queues and this control ring, with changes.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn say(&mut self, changes: &[Key<'_>]) -> Result<()> {
        let queues = self.queues.len();
        let mut keys: Vec<(String, String)> = [
            "request-rx-copy",
            "feature-rx-notify",
            "feature-sg",
            "feature-gso-tcpv4",
            "feature-gso-tcpv6",
            "feature-ipv6-csum-offload",
        ]
        .map(|feature| (feature.to_owned(), "1".to_owned()))
        .into();
        if queues > 1 {
            keys.push(("multi-queue-num-queues".to_owned(), queues.to_string()));
        }
        if let Some(control) = &self.control {
            keys.push(("ctrl-ring-ref".to_owned(), control.ring_ref().to_string()));
            keys.push(("event-channel-ctrl".to_owned(), control.port().to_string()));
        }
        for (index, queue) in self.queues.iter().enumerate() {
            let dir = if queues > 1 { format!("queue-{index}/") } else { String::new() };
            let [tx, rx] = queue.ring_refs();
            for (key, value) in [
                ("tx-ring-ref", tx.to_string()),
                ("rx-ring-ref", rx.to_string()),
                ("event-channel", queue.port().to_string()),
            ] {
                keys.push((format!("{dir}{key}"), value));
            }
        }
        for (key, value) in changes {
            keys.retain(|(known, _)| known != key);
            keys.extend(value.map(|value| ((*key).to_owned(), value.to_owned())));
        }
        self.store.transaction(|tx| {
            keys.iter().try_for_each(|(key, value)| tx.write(&format!("{VIF}/{key}"), value))?;
            tx.write(&format!("{VIF}/state"), state::CONNECTED)
        })?;
        Ok(())
    }

    /// Connects as an honest frontend does.
    ///
    /// # Errors
    /// If the backend does not connect.
    pub fn connect(&mut self, queues: u16, buffers: usize) -> Result<()> {
        self.start_over()?;
        let queues = queues.min(self.queues_max()?);
        self.publish(queues, buffers, &[])?;
        self.wait_for_backend(&[state::CONNECTED])?;
        Ok(())
    }

    /// Waits until the backend has closed the vif, and returns its reason.
    ///
    /// # Errors
    /// If the backend has not closed it within 60 seconds.
    pub fn closed(&mut self) -> Result<String> {
        self.wait_for_backend(&[state::CLOSING, state::CLOSED])?;
        wait("the reason for which the vif was closed", || self.reason())
    }

    /// Whether the backend serves the vif.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn is_served(&mut self) -> Result<bool> {
        Ok(self.backend_state()? == state::CONNECTED)
    }
}

/// Polls until there is a result.
///
/// # Errors
/// If there is no result within 60 seconds.
pub(crate) fn wait<T>(what: &str, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = probe()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {} s for {what}", SOON.as_secs());
        }
        // waits: it probes again until there is a result.
        std::thread::sleep(PAUSE);
    }
}
