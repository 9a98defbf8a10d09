//! What a vif's guest may send: read from the toolstack's keys, compiled for the data path, and what
//! was refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{DropReason, LockingMode, MacAddr, PortRules, QueueCounters};
use ringway_hypervisor::Hypervisor;
use ringway_switch::fdb::NotBound;
use ringway_switch::{Binding, PortId, PortPolicy};
use ringway_xenbus::{BadKeys, Keys};

use crate::device::vif_name;
use crate::log::LeftOut;
use crate::served::Served;
use crate::services::Hosting;

/// How often a vif may have a line about frames that were refused.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Addresses of a vif that is unlocked, unless its rules say how many.
const UNLOCKED_ADDRESSES_MAX: u32 = 256;

/// The rules of one vif.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    wanted: PortRules,
    mac: Option<MacAddr>,
    log: RefusalLog,
}

/// When refused frames were last written about.
#[derive(Debug, Default)]
struct RefusalLog {
    /// Frames of this connection that had been refused.
    seen: u64,
    due: Option<Instant>,
}

impl Rules {
    /// The toolstack's first word.
    ///
    /// # Errors
    /// A key that cannot be read: nobody knows what the guest may do.
    pub(crate) fn read(keys: &Keys) -> Result<Rules, BadKeys> {
        Ok(Rules { wanted: keys.rules()?, mac: keys.mac()?, log: RefusalLog::default() })
    }

    pub(crate) fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    pub(crate) fn mode(&self, default: Option<LockingMode>) -> Option<LockingMode> {
        self.wanted.mode(default)
    }

    pub(crate) fn allowed(&self) -> Vec<String> {
        self.wanted.allowed.iter().map(ToString::to_string).collect()
    }

    /// Ethernet addresses that the guest may have.
    pub(crate) fn addresses_max(&self, default: Option<LockingMode>, of_all: u32) -> u32 {
        let if_unset = match self.mode(default) {
            Some(LockingMode::Unlocked) => of_all.max(UNLOCKED_ADDRESSES_MAX),
            _ => of_all,
        };
        self.wanted.addresses_max.unwrap_or(if_unset)
    }
}

impl Served {
    /// Takes over what the toolstack has changed. What cannot be read changes nothing.
    pub(crate) fn set_rules<H: Hypervisor>(&mut self, keys: &Keys, host: &Hosting<H>) {
        let read = keys.rules().and_then(|wanted| Ok((wanted, keys.mac()?)));
        let (wanted, mac) = match read {
            Ok(read) => read,
            Err(bad) => {
                if let Some(LeftOut(left_out)) = self.may_log() {
                    tracing::warn!(
                        vif = vif_name(self.vif),
                        left_out,
                        "{bad}: rules are unchanged"
                    );
                }
                return;
            }
        };
        // The address of a vif stays; a toolstack may be late with it.
        let mac = self.rules.mac.or(mac);
        if wanted == self.rules.wanted && mac == self.rules.mac {
            return;
        }
        self.rules.wanted = wanted;
        self.rules.mac = mac;
        let Some(connection) = &self.connection else { return };
        let (port, device_port) = (connection.port, connection.device_port);
        let policy = self.apply_rules(port, host);
        host.workers.set_policy(port, &policy);
        if let Some(device_port) = device_port {
            host.workers.set_policy(device_port, &self.device_policy(host));
        }
        tracing::info!(vif = vif_name(self.vif), rules = ?self.rules.wanted, "rules have changed");
    }

    /// Makes the rules ready for a port of the vif: what its guest may send, and which addresses
    /// are its own.
    pub(crate) fn apply_rules<H: Hypervisor>(
        &mut self,
        port: PortId,
        host: &Hosting<H>,
    ) -> Arc<PortPolicy> {
        let default = host.config.locking;
        let mode = self.rules.mode(default);
        let of_all = host.config.switch.addresses_per_port_max;
        let addresses_max = self.rules.addresses_max(default, of_all);
        let mut binding = Binding::None;
        if self.device.is_none() {
            let fdb = host.switch.fdb();
            fdb.set_addresses_max(port, addresses_max);
            if let Some(mac) = self.rules.mac {
                match fdb.bind(mac, port, host.ticks()) {
                    Ok(()) => binding = Binding::Static,
                    Err(refused) => self.note_not_bound(mac, refused),
                }
            }
        }
        let Rules { wanted, mac, .. } = &self.rules;
        Arc::new(PortPolicy::for_vif(wanted, mode, addresses_max, *mac, binding))
    }

    /// What may come back to the guest from its network device.
    pub(crate) fn device_policy<H: Hypervisor>(&self, host: &Hosting<H>) -> Arc<PortPolicy> {
        let is_disabled = self.rules.mode(host.config.locking) == Some(LockingMode::Disabled);
        Arc::new(if is_disabled { PortPolicy::disabled() } else { PortPolicy::open() })
    }

    fn note_not_bound(&mut self, mac: MacAddr, refused: NotBound) {
        let Some(LeftOut(left_out)) = self.may_log() else { return };
        let vif = vif_name(self.vif);
        match refused {
            NotBound::Taken(port) => tracing::warn!(
                vif, %mac, %port, left_out,
                "another vif has this mac: frames from it are refused until that one has gone"
            ),
            NotBound::NoRoom => tracing::warn!(
                vif, %mac, left_out,
                "the forwarding table has no room for this mac: raise fdb-entries"
            ),
        }
    }

    /// What this connection's queues have refused, by reason.
    pub(crate) fn refused(&self) -> BTreeMap<String, u64> {
        let queues = self.connection.iter().flat_map(|connection| &connection.queues);
        let mut refused = BTreeMap::new();
        for (reason, frames) in queues.flat_map(|queue| refusals(queue)) {
            *refused.entry(reason.name().to_owned()).or_default() += frames;
        }
        refused
    }

    /// Writes a line when frames were refused, and no other for a while. To be called now and then.
    pub(crate) fn log_refusals(&mut self, now: Instant) {
        let queues = self.connection.iter().flat_map(|connection| &connection.queues);
        let frames: u64 = queues.flat_map(|queue| refusals(queue)).map(|(_, count)| count).sum();
        // A new connection counts from zero.
        let seen = self.rules.log.seen.min(frames);
        self.rules.log.seen = seen;
        if frames == seen || self.rules.log.due.is_some_and(|due| now < due) {
            return;
        }
        self.rules.log.seen = frames;
        self.rules.log.due = Some(now + LOG_INTERVAL);
        if let Some(LeftOut(left_out)) = self.may_log() {
            let (vif, refused) = (vif_name(self.vif), self.refused());
            tracing::warn!(
                vif,
                ?refused,
                left_out,
                "the guest sends what its rules refuse; if it may, set locking-mode, allowed \
                 addresses, addresses-per-vif, router or dhcp-server of the vif"
            );
        }
    }
}

fn refusals(queue: &QueueCounters) -> impl Iterator<Item = (DropReason, u64)> + '_ {
    queue.dropped.snapshot().filter(|(reason, frames)| reason.is_refusal() && *frames > 0)
}
