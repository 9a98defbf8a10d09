//! A vif's rules on the data path: compiles and applies them, and counts the refused frames.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{DropReason, MacAddr, PortRules, VlanRules};
use ringway_engine::steps::Command;
use ringway_switch::fdb::{Assigned, NotBound};
use ringway_switch::{Binding, PortId, PortPolicy, PortVlan, Role, TooManyVlans};
use ringway_vif_shell::LeftOut;
use ringway_xenbus::Keys;
use ringway_xenbus::rules::as_set;

use crate::drop_log::DropLog;
use crate::shared::Shared;
use crate::vif_state::{VifState, command};
use crate::world::{Hosting, World};

impl<W: World> VifState<W> {
    /// Takes over the toolstack's changes. Unreadable keys change nothing.
    pub fn set_rules(&mut self, keys: &Keys, hosting: &mut Hosting<'_, W>) {
        let read = keys.rules().and_then(|wanted| Ok((wanted, keys.mac()?)));
        let (wanted, mac) = match read {
            Ok(read) => read,
            Err(bad) => {
                if let Some(LeftOut(left_out)) = self.may_log(hosting.now) {
                    tracing::warn!(vif = self.name, left_out, "{bad}: rules are unchanged");
                }
                return;
            }
        };
        if let Err(reason) = self.update_rules(wanted, mac, hosting) {
            tracing::warn!(vif = self.name, "{reason}: rules are unchanged");
        }
    }

    /// Enforces these rules from now on.
    ///
    /// # Errors
    /// The reason why this host cannot apply them, which then changes nothing.
    pub fn update_rules(
        &mut self,
        wanted: PortRules,
        mac: Option<MacAddr>,
        hosting: &mut Hosting<'_, W>,
    ) -> Result<(), String> {
        // A vif's address never changes, but a toolstack may write it late.
        let mac = self.rules.mac.or(mac);
        if wanted == self.rules.wanted && mac == self.rules.mac {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.rules.wanted, wanted);
        self.rules.mac = mac;
        let vif = self.name.clone();
        if self.device.is_some() && self.rules.is_for_switch() {
            self.rules.wanted = before;
            return Err(
                "VLANs, private ports, mirrors, multicast routers and link-local-to exist \
                        on the switch only"
                    .to_owned(),
            );
        }
        if let Err(error) = self.enforce(hosting) {
            self.rules.wanted = before;
            return Err(error.to_string());
        }
        if self.connection.is_some() {
            tracing::info!(vif, "rules: {}", as_set(&self.rules.wanted));
        }
        Ok(())
    }

    /// Enforces its rules, if it is connected: at the next connection they apply anyway.
    pub(crate) fn enforce(&mut self, hosting: &mut Hosting<'_, W>) -> Result<(), TooManyVlans> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let port = connection.port;
        let policy = self.apply_rules(port, hosting.shared, hosting.now)?;
        hosting.set_policy(port, &policy);
        // Of a disabled vif these drop what is for its guest.
        self.apply_limits(hosting);
        Ok(())
    }

    /// Compiles the rules for a port of the vif: what its guest may send, and which addresses are
    /// its own.
    pub(crate) fn apply_rules(
        &mut self,
        port: PortId,
        shared: &Shared,
        now: Instant,
    ) -> Result<Arc<PortPolicy>, TooManyVlans> {
        let default = shared.config.locking;
        let mode = self.rules.mode(default);
        let of_all = shared.config.switch.addresses_per_port_max;
        let addresses_max = self.rules.addresses_max(default, of_all);
        let mac = self.rules.mac;
        if self.device.is_none() && !self.rules.mirror().is_empty() {
            shared.switch.join(port, &VlanRules::default(), Role::Mirror)?;
            return Ok(Arc::new(PortPolicy::disabled()));
        }
        self.rules.refused.clear();
        let (mut binding, mut vlan) = (Binding::None, PortVlan::None);
        if self.device.is_none() {
            let wanted = &self.rules.wanted;
            let role = if wanted.is_private { Role::Private } else { Role::Ordinary };
            vlan = shared.switch.join(port, &wanted.vlan, role)?;
            shared.switch.set_multicast_router(port, wanted.multicast_router);
            self.rules.refused = self.assign(port, shared, now);
            if self.rules.refusal_of(mac).is_none() {
                binding = Binding::Static;
            }
            self.log_not_assigned(shared, now);
        }
        let wanted = &self.rules.wanted;
        let policy = PortPolicy::for_vif(wanted, mode, addresses_max, mac, binding);
        Ok(Arc::new(policy.in_vlans(vlan)))
    }

    /// Assigns its addresses to the port of the vif, and returns those that it did not get.
    fn assign(&self, port: PortId, shared: &Shared, now: Instant) -> Vec<(MacAddr, NotBound)> {
        let of_all = shared.config.switch.addresses_per_port_max;
        let addresses_max = self.rules.addresses_max(shared.config.locking, of_all);
        let wanted = &self.rules.wanted;
        let own: Vec<MacAddr> =
            self.rules.mac.iter().chain(&wanted.allowed_macs).copied().collect();
        let others = wanted.shared_macs.iter().copied().filter(|it| !own.contains(it));
        let others: Vec<MacAddr> = others.collect();
        let assigned = Assigned { own: &own, shared: &others, addresses_max };
        shared.switch.assign(port, &assigned, shared.ticks(now))
    }

    /// Tries to get addresses that others had. Called periodically.
    pub fn assign_refused(&mut self, hosting: &mut Hosting<'_, W>) {
        if self.rules.refused.is_empty() {
            return;
        }
        let Some(port) = self.connection.as_ref().map(|connection| connection.port) else {
            return;
        };
        if self.assign(port, hosting.shared, hosting.now) == self.rules.refused {
            return;
        }
        if let Ok(policy) = self.apply_rules(port, hosting.shared, hosting.now) {
            hosting.set_policy(port, &policy);
        }
    }

    fn log_not_assigned(&mut self, shared: &Shared, now: Instant) {
        let Some(reason) = self.why_not_assigned(shared) else { return };
        if let Some(LeftOut(left_out)) = self.may_log(now) {
            tracing::warn!(vif = self.name, left_out, "{reason}");
        }
    }

    /// Why the vif has not all its addresses, if so, with the remedy.
    pub fn why_not_assigned(&self, shared: &Shared) -> Option<String> {
        self.connection.as_ref()?;
        let (mac, reason) = self.rules.refused.first()?;
        let key = self.rules.key_of(*mac);
        Some(match reason {
            NotBound::OtherPort(port) => format!(
                "its {key} {mac} is that of {}, so its frames are dropped: give one of the two \
                 another one, or list it in shared-macs of both, and in no mac",
                shared.port_name(*port)
            ),
            NotBound::Shared(port) => format!(
                "its {key} {mac} is in shared-macs of {}, so its frames are dropped: list it in \
                 shared-macs here, too, or use another one",
                shared.port_name(*port)
            ),
            NotBound::NoRoom => format!(
                "the forwarding table has no room for its {key} {mac}: raise fdb-entries, or list \
                 fewer in shared-macs"
            ),
        })
    }

    /// The last address that the guest sent from while another vif had it, if it still has.
    pub fn taken(&self, shared: &Shared, now: Instant) -> Option<String> {
        let port = self.connection.as_ref().filter(|it| it.device_port.is_none())?.port;
        let (mac, other) = shared.switch.taken(port, shared.ticks(now))?;
        if other == Some(port) {
            return None;
        }
        let other =
            other.map_or("other vifs, which share it".to_owned(), |it| shared.port_name(it));
        Some(format!(
            "{mac} belongs to {other}; if it moves between vifs, as with VRRP or in a cluster, \
             list it in shared-macs of each"
        ))
    }

    /// The frames that this connection's queues have refused, by reason.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        named(&self.dropped(), DropReason::is_refusal)
    }

    /// The frames that this connection's queues have dropped.
    fn dropped(&self) -> Dropped {
        let mut dropped = DropReason::ALL.map(|reason| (reason, 0));
        for queue in self.connection.iter().flat_map(|connection| &connection.queues) {
            for ((_, sum), (_, frames)) in dropped.iter_mut().zip(queue.dropped.snapshot()) {
                *sum += frames;
            }
        }
        dropped
    }

    /// Logs a line if its rules or its limits have dropped frames, and then no other of that kind
    /// for a while. Called periodically.
    pub fn log_drops(&mut self, shared: &Shared, now: Instant) {
        let all = self.dropped();
        let kind = DropReason::is_refusal;
        if let Some((refused, left_out)) = self.drops_due(&all, kind, |it| &mut it.rules.log, now) {
            let (vif, taken) = (&self.name, self.taken(shared, now));
            tracing::warn!(
                vif,
                ?refused,
                taken,
                left_out,
                "the guest sends frames that its rules drop; to allow them, set mac, allowed-macs, \
                 shared-macs, locking-mode, allowed addresses, addresses-per-vif, router or \
                 dhcp-server of the vif"
            );
        }
        let due = self.drops_due(&all, is_flood_limit, |it| &mut it.limited.flood_log, now);
        if let Some((dropped, left_out)) = due {
            tracing::warn!(
                vif = self.name,
                ?dropped,
                left_out,
                "the guest floods more than its limits; to allow more, raise flood-rate or \
                 flood-mbit of the vif or the switch, or those of broadcast, multicast or unknown"
            );
        }
        // A limit that is reached is nothing unusual: TCP finds it in this way.
        let kind = |reason: DropReason| reason == DropReason::RateLimit;
        let due = self.drops_due(&all, kind, |it| &mut it.limited.rate_log, now);
        if let Some((dropped, left_out)) = due {
            let vif = &self.name;
            tracing::info!(vif, ?dropped, left_out, "its rate-rx drops frames to the guest");
        }
    }

    /// The dropped frames of a kind, if a line about them may be logged, and how many lines were
    /// left out before.
    fn drops_due(
        &mut self,
        all: &Dropped,
        is_such: fn(DropReason) -> bool,
        log: fn(&mut Self) -> &mut DropLog,
        now: Instant,
    ) -> Option<(BTreeMap<String, u64>, Option<u64>)> {
        let such = all.iter().filter(|(reason, _)| is_such(*reason));
        if !log(self).is_due(such.map(|(_, frames)| frames).sum(), now) {
            return None;
        }
        let LeftOut(left_out) = self.may_log(now)?;
        Some((named(all, is_such), left_out))
    }
}

/// How many frames were dropped for each reason.
type Dropped = [(DropReason, u64); DropReason::ALL.len()];

/// Those of a kind that there are, by the names of their reasons.
fn named(all: &Dropped, is_such: fn(DropReason) -> bool) -> BTreeMap<String, u64> {
    let such = all.iter().filter(|(reason, frames)| *frames > 0 && is_such(*reason));
    such.map(|(reason, frames)| (reason.name().to_owned(), *frames)).collect()
}

impl<W: World> Hosting<'_, W> {
    /// Sets what may enter by a port from now on. Frames that have already entered are forwarded.
    pub(crate) fn set_policy(&mut self, port: PortId, policy: &Arc<PortPolicy>) {
        command(self.engines, port, |id| Command::SetPolicy { id, policy: Arc::clone(policy) });
    }
}

fn is_flood_limit(reason: DropReason) -> bool {
    use DropReason::{BroadcastLimit, FloodLimit, MulticastLimit, UnknownLimit};
    matches!(reason, FloodLimit | BroadcastLimit | MulticastLimit | UnknownLimit)
}
