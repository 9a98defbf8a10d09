//! One vif: its end of the handshake, and its other state.
//!
//! A [`VifShell`] owns all state of its vif, and is given the services that it may use. Nothing
//! here accesses another vif.

use std::io;
use std::time::Instant;

use ringway_datapath::MacAddr;
use ringway_host::{Charged, Limited, LogAllowance, Rules, vif_name};
use ringway_hypervisor::Hypervisor;
use ringway_switch::PortId;
use ringway_vif_shell::{BackendEnd, device};
use ringway_xenbus::backend::Input;
use ringway_xenbus::{BadKeys, Hotplug, Keys, Offer, Vif, XenbusState};
use ringway_xenstore::{Lost, unless_refused};

use crate::device::{HOST_ADDRESS, VifDevice};
use crate::served::Served;
use crate::services::{Hosting, Services};
use crate::serving::Serving;

/// A vif that this backend serves.
pub(crate) struct VifShell {
    pub(crate) end: BackendEnd,
    pub(crate) served: Served,
}

/// Why this host cannot serve a vif as the toolstack describes it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unservable {
    #[error(transparent)]
    Keys(#[from] BadKeys),
    #[error("the vif's mac is {0}, expected a unicast address other than that of the host's end")]
    Mac(MacAddr),
    #[error(
        "the vif uses VLANs, is private, a mirror's output or a multicast router's port, which \
         only ringway's own switch supports: remove its script and bridge, or let the bridge do it"
    )]
    NotOnSwitch,
    #[error(transparent)]
    Device(#[from] io::Error),
    #[error("{0}")]
    Quarantined(String),
}

impl VifShell {
    /// Creates what the vif needs before its guest appears, and begins the handshake.
    pub(crate) fn begin<H: Hypervisor>(
        vif: Vif,
        keys: &Keys,
        services: &mut Services<H>,
    ) -> Result<VifShell, Lost> {
        let host = &mut services.host;
        let now = Instant::now();
        let quarantined = host.quarantine.reason(&Charged::Xen(vif));
        let is_quarantined = quarantined.is_some();
        let prepared = match quarantined {
            Some(reason) => Err(Unservable::Quarantined(reason)),
            None => prepare(vif, keys, host),
        };
        let (prepared, refused) = match prepared {
            Ok(prepared) => (prepared, None),
            Err(reason) => ((host.offer(None), Rules::default(), None), Some(reason.to_string())),
        };
        let (offer, rules, device) = prepared;
        if let Some(key) = keys.obsolete() {
            tracing::warn!(
                vif = vif_name(vif),
                "{key} has no effect any more, because the backend responds when it has copied a \
                 frame: remove it"
            );
        }
        let served = Served {
            vif,
            name: vif_name(vif),
            offer,
            rules,
            device,
            limited: Limited::new(host.switch.flood_budget(host.ticks()), now),
            is_quarantined,
            connection: None,
            log: LogAllowance::new(now),
        };
        let end = BackendEnd::new(vif, offer, Hotplug::read(keys), now);
        let mut shell = VifShell { end, served };
        shell.served.set_limits(keys, &mut services.host);
        match refused {
            Some(reason) => shell.feed(Input::Refused(reason), services)?,
            None => {
                let Services { store, host } = services;
                let mut serving = Serving { served: &mut shell.served, host };
                shell.end.start(store, &mut serving, keys, now)?;
            }
        }
        Ok(shell)
    }

    /// Handles a change or removal of the backend's directory by the toolstack or one of its
    /// scripts.
    pub(crate) fn device_changed<H: Hypervisor>(
        &mut self,
        keys: Option<&Keys>,
        services: &mut Services<H>,
    ) -> Result<(), Lost> {
        let Services { store, host } = services;
        if let Some(keys) = keys.filter(|keys| keys.is_online()) {
            self.served.set_limits(keys, host);
            self.served.set_rules(keys, host);
        }
        let mut serving = Serving { served: &mut self.served, host };
        self.end.device_changed(store, &mut serving, keys, Instant::now())
    }

    pub(crate) fn frontend_changed<H: Hypervisor>(
        &mut self,
        services: &mut Services<H>,
    ) -> Result<(), Lost> {
        let Services { store, host } = services;
        let mut serving = Serving { served: &mut self.served, host };
        self.end.frontend_changed(store, &mut serving, Instant::now())
    }

    /// Does what was deferred, if its time has come.
    pub(crate) fn resume<H: Hypervisor>(&mut self, services: &mut Services<H>) -> Result<(), Lost> {
        let Services { store, host } = services;
        let mut serving = Serving { served: &mut self.served, host };
        self.end.resume(store, &mut serving, Instant::now())
    }

    pub(crate) fn feed<H: Hypervisor>(
        &mut self,
        input: Input,
        services: &mut Services<H>,
    ) -> Result<(), Lost> {
        let Services { store, host } = services;
        let mut serving = Serving { served: &mut self.served, host };
        self.end.feed(store, &mut serving, input, Instant::now())
    }

    /// Handles a write to the backend's own state, usually by this end. Returns whether another
    /// process wrote it.
    pub(crate) fn is_state_foreign<H: Hypervisor>(
        &self,
        services: &mut Services<H>,
    ) -> Result<bool, Lost> {
        let found = device::state(&mut services.store, &self.served.vif.backend_state());
        Ok(unless_refused(found, XenbusState::Unknown)? != self.end.state())
    }

    pub(crate) fn state(&self) -> XenbusState {
        self.end.state()
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.end.error()
    }

    /// When to call [`resume`](VifShell::resume), if something was deferred.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.end.due()
    }

    /// Whether this backend no longer serves the vif.
    pub(crate) fn is_finished(&self) -> bool {
        self.end.is_finished()
    }

    /// Whether a port is one of this vif's.
    pub(crate) fn has_port(&self, port: PortId) -> bool {
        self.served.has_port(port)
    }

    /// Releases the network device after the vif was removed.
    pub(crate) fn remove_device<H: Hypervisor>(self, host: &mut Hosting<H>) {
        let Some(vif_device) = self.served.device else { return };
        let name = vif_device.tap.name().to_owned();
        if let Err(error) = host.devices.remove(vif_device) {
            tracing::debug!(name, %error, "the network device was already gone");
        }
    }
}

fn prepare<H: Hypervisor>(
    vif: Vif,
    keys: &Keys,
    host: &mut Hosting<H>,
) -> Result<(Offer, Rules, Option<VifDevice>), Unservable> {
    let wanted = Wanted::read(keys, host.config.max_queues)?;
    let offer = host.offer(Some(wanted.queues_max));
    let vif_device = host.devices.of_vif(vif, keys, wanted.queues)?;
    Ok((offer, wanted.rules, vif_device))
}

/// What a toolstack wants of a vif.
pub(crate) struct Wanted {
    rules: Rules,
    /// The most queues to offer.
    queues_max: u16,
    /// The queues of its network device, if it has one.
    pub(crate) queues: u16,
}

impl Wanted {
    /// Reads it, unless this host cannot serve it. `queues_max` applies to a vif whose toolstack
    /// has not set the most queues.
    pub(crate) fn read(keys: &Keys, queues_max: u16) -> Result<Wanted, Unservable> {
        let rules = Rules::read(keys)?;
        if let Some(mac) = rules.mac().filter(|mac| mac.is_multicast() || *mac == HOST_ADDRESS) {
            return Err(Unservable::Mac(mac));
        }
        if (keys.script().is_some() || keys.bridge().is_some()) && rules.is_for_switch() {
            return Err(Unservable::NotOnSwitch);
        }
        let queues_max = keys.max_queues_limit()?.unwrap_or(queues_max).max(1);
        // A connected guest keeps the offer of the backend's previous run.
        let queues = queues_max.max(keys.queues_offered().unwrap_or(1));
        Ok(Wanted { rules, queues_max, queues })
    }
}
