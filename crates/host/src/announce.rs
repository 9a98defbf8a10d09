//! Announces the guest of a vif when it has [arrived](crate::arrival), or its front-end asks.

use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{LockingMode, MacAddr};
use ringway_engine::Announcement;
use ringway_engine::steps::Command;
use ringway_switch::Claim;
use ringway_xenbus::limits::LinkState;

use crate::device::Purpose;
use crate::shared::Shared;
use crate::vif_state::{VifState, command};
use crate::world::{Hosting, World};

/// Addresses that the first frames of an arrival may add.
const LEARNED_MAX: usize = 8;

impl<W: World> VifState<W> {
    /// Its guest has arrived, and will be [announced](Self::announce) if it may be.
    pub(crate) fn arrive(&mut self, shared: &Shared) {
        self.arrival.end();
        let mode = self.rules.mode(shared.config.locking);
        if self.is_mute(mode) {
            return;
        }
        let learned_max = if mode == Some(LockingMode::Locked) { 0 } else { LEARNED_MAX };
        let may_route = self.rules.wanted.is_router || mode == Some(LockingMode::Unlocked);
        self.arrival.begin(Announcement::new(self.claims(), learned_max, may_route));
    }

    /// Announces its guest, if that is due and the vif is on its network.
    pub(crate) fn announce(&mut self, hosting: &mut Hosting<'_, W>) {
        if !self.arrival.is_open() || self.connection.is_none() {
            return;
        }
        let own = self.own_address();
        if !self.is_on_network(hosting.shared) {
            self.arrival.wait();
        } else if self.arrival.make_round(hosting.now, own) {
            self.send_announcements(hosting);
        }
    }

    /// Its guest has other queues: they continue with what those before have not announced.
    pub(crate) fn announce_by_new_queues(&self, hosting: &mut Hosting<'_, W>) {
        if self.arrival.has_begun() {
            self.send_announcements(hosting);
        }
    }

    /// Announces an address of its connected guest because the front-end asks for it.
    pub(crate) fn announce_address(&self, mac: MacAddr, hosting: &mut Hosting<'_, W>) {
        self.arrival.announcement.ask(mac);
        self.send_announcements(hosting);
    }

    /// When its guest is to be announced again.
    pub fn announcement_due(&self) -> Option<Instant> {
        self.connection.as_ref().and(self.arrival.due())
    }

    /// The frames that have announced its guest since that came; `None` if its arrivals are not
    /// announced.
    pub(crate) fn announced(&self, shared: &Shared) -> Option<u64> {
        let is_mute = self.is_mute(self.rules.mode(shared.config.locking));
        (!is_mute).then(|| self.arrival.announcement.sent())
    }

    fn send_announcements(&self, hosting: &mut Hosting<'_, W>) {
        let Some(connection) = &self.connection else { return };
        command(hosting.engines, connection.port, |id| Command::Announce {
            id,
            announcement: Arc::clone(&self.arrival.announcement),
        });
    }

    /// Whether its guest is not to be announced, or its frames without tags would be dropped.
    fn is_mute(&self, mode: Option<LockingMode>) -> bool {
        let vlan = self.rules.vlan();
        self.rules.wanted.is_unannounced
            || mode == Some(LockingMode::Disabled)
            || self.limited.wanted.link == Some(LinkState::Down)
            || !self.rules.mirror().is_empty()
            || (vlan.untagged.is_none() && !vlan.tagged.is_empty())
    }

    /// The Ethernet address that is configured for its guest, if no other port has it.
    fn own_address(&self) -> Option<MacAddr> {
        self.rules.mac.filter(|mac| self.has_address(*mac))
    }

    fn has_address(&self, mac: MacAddr) -> bool {
        self.rules.refusal_of(Some(mac)).is_none()
    }

    /// The addresses that are configured for its guest alone, and that no other port has.
    fn claims(&self) -> Vec<Claim> {
        let own = self.own_address().into_iter();
        let allowed = self.rules.wanted.allowed_macs.iter().copied();
        let macs = own.clone().chain(allowed.filter(|mac| self.has_address(*mac)));
        let macs = macs.map(|mac| Claim { mac, ip: None });
        let ips = self.rules.wanted.allowed.iter().filter_map(|network| network.host_address());
        let ips = own.flat_map(|mac| ips.clone().map(move |ip| Claim { mac, ip: Some(ip) }));
        macs.chain(ips).collect()
    }

    /// Whether frames of its guest reach its network: a port of Open vSwitch is made once its guest
    /// is connected. A device that a script puts on a bridge is there before a guest of Xen is.
    fn is_on_network(&self, shared: &Shared) -> bool {
        !self.is_for_ovs() || shared.ovs.status(&Purpose::of(&self.charged)).is_some()
    }
}
