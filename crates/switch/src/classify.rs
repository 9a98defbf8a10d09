//! Verdicts: the destinations of a batch of frames.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use ringway_datapath::headers::macs;
use ringway_datapath::{DropReason, Frame, FrameBatch, FrameVlan, MacAddr, PortId, Verdict, Vid};

use crate::domain::{Domain, PortSet};
use crate::fdb::{Fdb, Learned};
use crate::groups::{Groups, MulticastConfig, Receivers};
use crate::links::{Links, is_link_local};
use crate::mirror::Mirrors;
use crate::policy::NO_ADDRESS;
use crate::querier::Queriers;
use crate::snoop::{self, Change, Message, group_of};
use crate::{FloodBudget, FloodKind, FloodLimit, PortPolicy, StormLimits, Ticks};

/// Limits of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Addresses in the forwarding table, which takes about 24 bytes for each.
    pub fdb_entries_max: u32,
    /// Number of ports: every [`PortId`] is below this.
    pub ports_max: u16,
    /// Addresses that one port may have, unless [`Fdb::set_addresses_max`] says otherwise: an
    /// uplink needs more than a guest.
    pub addresses_per_port_max: u32,
    /// Ticks after which an address that is not seen is forgotten (IEEE 802.1D recommends 300 s).
    pub ageing_ticks: u32,
    /// What one port may flood, unless its budget says otherwise.
    pub flood: FloodLimit,
    /// The limits for each kind within it.
    pub storm: StormLimits,
    /// How multicast is snooped, if it is.
    pub multicast: Option<MulticastConfig>,
    /// A random number, so that no guest can choose addresses that compete for the same entries.
    pub hash_seed: u64,
}

impl SwitchConfig {
    /// A table of this size without further limits. Entries age in 300 ticks.
    pub fn unlimited(fdb_entries_max: u32, ports_max: u16, hash_seed: u64) -> SwitchConfig {
        SwitchConfig {
            fdb_entries_max,
            ports_max,
            addresses_per_port_max: fdb_entries_max,
            ageing_ticks: 300,
            flood: FloodLimit::NONE,
            storm: StormLimits::NONE,
            multicast: None,
            hash_seed,
        }
    }
}

/// A learning switch, shared by all workers.
#[derive(Debug)]
pub struct Switch {
    pub(crate) config: SwitchConfig,
    /// The table of the ports that are in no VLAN.
    fdb: Fdb,
    /// Ports that are in VLANs.
    pub(crate) in_vlans: PortSet,
    /// Ports that may reach uplinks only.
    pub(crate) private: PortSet,
    pub(crate) uplinks: PortSet,
    pub(crate) has_private: AtomicBool,
    /// Which ports hear which groups, if multicast is snooped.
    pub(crate) groups: Option<Groups>,
    /// The queriers of the ports that are in no VLAN.
    pub(crate) queriers: Queriers,
    mirrors: Mirrors,
    pub(crate) links: Links,
    /// For the control plane: workers reach VLANs through the policies of ports.
    pub(crate) vlans: Mutex<BTreeMap<Vid, Arc<Domain>>>,
}

impl Switch {
    /// A switch that has learned nothing. Allocates all its memory here, except that of VLANs.
    pub fn new(config: SwitchConfig) -> Switch {
        let ports = || PortSet::new(config.ports_max);
        Switch {
            fdb: new_fdb(&config),
            in_vlans: ports(),
            private: ports(),
            uplinks: ports(),
            has_private: AtomicBool::new(false),
            groups: config
                .multicast
                .map(|multicast| Groups::new(multicast, config.ports_max, config.hash_seed)),
            queriers: Queriers::default(),
            mirrors: Mirrors::new(config.ports_max),
            links: Links::new(config.ports_max),
            vlans: Mutex::default(),
            config,
        }
    }

    /// The forwarding table of the ports that are in no VLAN.
    pub fn fdb(&self) -> &Fdb {
        &self.fdb
    }

    /// Which frames are copied to which ports.
    pub fn mirrors(&self) -> &Mirrors {
        &self.mirrors
    }

    /// A full budget with the configured limit, for all queues of one port.
    pub fn flood_budget(&self, now: Ticks) -> Arc<FloodBudget> {
        Arc::new(FloodBudget::new(self.config.flood, now).with_storm(self.config.storm))
    }

    /// Learns the sources of frames that entered at `from` and finds their destinations: the
    /// verdict of each frame. `policy` is what the port may send, `flood` its budget. Frames of
    /// ports in VLANs get their [`FrameVlan`], and lose a tag that names no VLAN.
    ///
    /// Consecutive frames with the same addresses, such as those of a flow, cost one look-up. Drops
    /// are [`DropReason::Malformed`] for a frame without an Ethernet header,
    /// [`DropReason::BadSource`] and [`DropReason::AddressTaken`] for a source that the port may
    /// not use, [`DropReason::NoRoute`] for a destination at `from` itself,
    /// [`DropReason::LinkLocal`] for one that is reserved for the link, [`DropReason::Vlan`],
    /// [`DropReason::Isolated`], [`DropReason::FloodLimit`] and those of a [`FloodKind`], and the
    /// reasons of [`PortPolicy::refuse`]. If multicast is snooped, [`DropReason::RouterOnly`] and
    /// [`DropReason::Undetermined`] also apply to what only multicast routers send.
    pub fn classify(
        &self,
        from: PortId,
        policy: &PortPolicy,
        batch: &mut FrameBatch,
        now: Ticks,
        flood: &FloodBudget,
    ) {
        flood.refill(now);
        let mut ingress_batch = IngressBatch { switch: self, from, policy, now, flood };
        match policy.vlans() {
            None => ingress_batch.classify(batch, |_| Some((&self.fdb, None))),
            Some(vlans) => {
                batch.iter_mut().for_each(|frame| vlans.enter(frame));
                ingress_batch.classify(batch, |frame| {
                    let domain = policy.domain(frame.vlan)?;
                    Some((&domain.fdb, Some(domain)))
                });
            }
        }
    }

    /// The ports to which frames from `from` may be flooded.
    pub fn scope<'a>(&'a self, from: PortId, policy: &'a PortPolicy, vlan: FrameVlan) -> Scope<'a> {
        Scope { switch: self, from, domain: policy.domain(vlan), receivers: Receivers::All }
    }

    /// The ports to which a frame from `from` with this verdict is flooded.
    pub fn scope_of<'a>(
        &'a self,
        from: PortId,
        policy: &'a PortPolicy,
        frame: &Frame,
        verdict: Verdict,
    ) -> Scope<'a> {
        let scope = self.scope(from, policy, frame.vlan);
        let Some(groups) = &self.groups else { return scope };
        let receivers = match verdict {
            Verdict::Routers => Receivers::Routers(&groups.routers),
            _ => self.receivers(groups, frame, scope.domain),
        };
        Scope { receivers, ..scope }
    }

    /// The ports that listen to a frame's group.
    fn receivers<'a>(
        &'a self,
        groups: &'a Groups,
        frame: &Frame,
        domain: Option<&Domain>,
    ) -> Receivers<'a> {
        let Some((family, group)) = group_of(frame) else { return Receivers::All };
        let (vlan, queriers) = self.multicast_of(domain);
        match queriers.has_reports(family) {
            true => groups.receivers(vlan, (family, group)),
            false => Receivers::All,
        }
    }

    fn multicast_of<'a>(&'a self, domain: Option<&'a Domain>) -> (u16, &'a Queriers) {
        domain.map_or((0, &self.queriers), |domain| (domain.vid.get(), &domain.queriers))
    }

    /// Whether two ports may exchange frames, considering private ports only.
    #[inline]
    fn may_exchange(&self, from: PortId, to: PortId) -> bool {
        if !self.has_private.load(Relaxed) {
            return true;
        }
        let is_kept = |one, other| self.private.has(one) && !self.uplinks.has(other);
        !is_kept(from, to) && !is_kept(to, from)
    }
}

/// The ports that hear a flood.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    switch: &'a Switch,
    from: PortId,
    domain: Option<&'a Domain>,
    receivers: Receivers<'a>,
}

impl Scope<'_> {
    /// Whether a port is among them.
    #[inline]
    pub fn has(&self, port: PortId) -> bool {
        let is_in = match self.domain {
            None => !self.switch.in_vlans.has(port),
            Some(domain) => domain.members.has(port),
        };
        let is_meant = is_in && port != self.from && self.receivers.has(port);
        is_meant && self.switch.may_exchange(self.from, port)
    }

    /// Whether a port gets the frame with a tag.
    #[inline]
    pub fn wants_tag(&self, port: PortId) -> bool {
        self.domain.is_some_and(|domain| domain.tagged.has(port))
    }
}

/// Frames of one port on their way in.
struct IngressBatch<'a> {
    switch: &'a Switch,
    from: PortId,
    policy: &'a PortPolicy,
    now: Ticks,
    flood: &'a FloodBudget,
}

impl<'a> IngressBatch<'a> {
    /// `fdb_of` finds the forwarding table of a frame, and the VLAN of that table.
    #[inline]
    fn classify(
        &mut self,
        batch: &mut FrameBatch,
        fdb_of: impl Fn(&Frame) -> Option<(&'a Fdb, Option<&'a Domain>)>,
    ) {
        // Both addresses of the previous frame, as in its header; zeros at first.
        let (mut last, mut last_vid) = ([0; ADDRESSES_LEN], None);
        let (mut verdict, mut dst) = (Verdict::Drop(DropReason::BadSource), NO_ADDRESS);
        let mut verdict_of = |frame: &Frame| {
            let bytes = frame.bytes();
            let (Some((to, src)), Some(addresses)) = (macs(bytes), bytes.first_chunk()) else {
                return Verdict::Drop(DropReason::Malformed);
            };
            let Some((fdb, domain)) = fdb_of(frame) else {
                return Verdict::Drop(DropReason::Vlan);
            };
            let vid = domain.map(|domain| domain.vid);
            if last != *addresses || last_vid != vid {
                (last, last_vid, dst) = (*addresses, vid, to);
                verdict = self.verdict(fdb, domain, dst, src);
            }
            if let Some(reason) = self.policy.refuse(bytes) {
                return Verdict::Drop(reason);
            }
            match verdict {
                Verdict::Flood => self.flood(frame, dst, domain),
                verdict => verdict,
            }
        };
        batch.iter_mut().for_each(|frame| frame.verdict = verdict_of(frame));
    }

    /// Every flooded frame is charged, however its verdict was found, and before it is parsed.
    #[inline(never)]
    fn flood(&self, frame: &Frame, dst: MacAddr, domain: Option<&Domain>) -> Verdict {
        if let Err(reason) = self.flood.take(frame.len(), FloodKind::of(dst)) {
            return Verdict::Drop(reason);
        }
        match &self.switch.groups {
            // Stations accept a query sent to any group or broadcast address.
            Some(groups) if dst.is_multicast() => self.snoop(groups, frame, domain),
            _ => Verdict::Flood,
        }
    }

    /// Learns from a frame's multicast messages.
    fn snoop(&self, groups: &Groups, frame: &Frame, domain: Option<&Domain>) -> Verdict {
        let (from, now) = (self.from, self.now);
        let (vlan, queriers) = self.switch.multicast_of(domain);
        let change = |change: Change| match change {
            Change::Join(group) => groups.join(from, vlan, group, now),
            Change::Leave(group) => groups.leave(from, vlan, group, now),
            Change::None => {}
        };
        match snoop::read(frame) {
            Message::None => return Verdict::Flood,
            Message::Hidden if groups.may_route(from) => return Verdict::Flood,
            Message::Hidden => return Verdict::Drop(DropReason::Undetermined),
            Message::Join(group) => change(Change::Join(group)),
            Message::Leave(group) => change(Change::Leave(group)),
            Message::Records(mut records) => {
                records.by_ref().take(RECORDS_MAX).for_each(change);
                if records.next().is_some() {
                    groups.set_hears_all(from, records.family(), now);
                }
            }
            Message::GeneralQuery { .. } | Message::GroupQuery { .. } | Message::Hello
                if !groups.may_route(from) =>
            {
                return Verdict::Drop(DropReason::RouterOnly);
            }
            Message::GeneralQuery { family, response_seconds, names_router } => {
                let scope = Scope { switch: self.switch, from, domain, receivers: Receivers::All };
                let query = (family, response_seconds);
                groups.on_query(queriers, query, now, |port| scope.has(port));
                if names_router {
                    groups.on_router(from, now);
                }
                return Verdict::Flood;
            }
            Message::GroupQuery { names_router: false } => return Verdict::Flood,
            Message::GroupQuery { names_router: true } | Message::Hello => {
                groups.on_router(from, now);
                return Verdict::Flood;
            }
        }
        // RFC 4541, 2.1.1 (1): stations that hear others' reports would suppress their own.
        Verdict::Routers
    }

    /// The verdict of a frame to an address that no bridge forwards.
    #[cold]
    fn to_partner(&self, domain: Option<&Domain>, dst: MacAddr) -> Verdict {
        let IngressBatch { switch, from, .. } = *self;
        let is_in = |port: &PortId| match domain {
            None => !switch.in_vlans.has(*port),
            Some(domain) => domain.members.has(*port),
        };
        match switch.links.partner(from, dst).filter(is_in) {
            None => Verdict::Drop(DropReason::LinkLocal),
            Some(partner) if !switch.may_exchange(from, partner) => {
                Verdict::Drop(DropReason::Isolated)
            }
            Some(partner) => Verdict::Unicast(partner),
        }
    }

    fn verdict(&self, fdb: &Fdb, domain: Option<&Domain>, dst: MacAddr, src: MacAddr) -> Verdict {
        let IngressBatch { from, policy, now, .. } = *self;
        if let Some(reason) = policy.refuse_source(src) {
            return Verdict::Drop(reason);
        }
        if is_link_local(dst) {
            return self.to_partner(domain, dst);
        }
        if src != policy.bound {
            let learned = match fdb.learn(src, from, now) {
                Learned::OtherPort if policy.may_take(src) => fdb.take(src, from, now),
                learned => learned,
            };
            match learned {
                Learned::OtherPort if policy.is_strict() => {
                    fdb.note_taken(src, from);
                    return Verdict::Drop(DropReason::AddressTaken);
                }
                Learned::PortFull if policy.is_strict() => {
                    return Verdict::Drop(DropReason::BadSource);
                }
                _ => {}
            }
        }
        if dst.is_multicast() {
            return Verdict::Flood;
        }
        match fdb.lookup(dst, now) {
            Some(port) if port == from => Verdict::Drop(DropReason::NoRoute),
            Some(port) if !self.switch.may_exchange(from, port) => {
                Verdict::Drop(DropReason::Isolated)
            }
            // The port has just left the VLAN.
            Some(port) if domain.is_some_and(|domain| !domain.members.has(port)) => {
                Verdict::Drop(DropReason::NoRoute)
            }
            Some(port) => Verdict::Unicast(port),
            None => Verdict::Flood,
        }
    }
}

/// The most records that are read of one report: more than a station has groups. A longer report is
/// not fully known, so its port hears all groups.
const RECORDS_MAX: usize = 64;

/// Bytes of a frame's destination and source together.
const ADDRESSES_LEN: usize = 12;

/// A table with the limits of a switch.
pub(crate) fn new_fdb(config: &SwitchConfig) -> Fdb {
    Fdb::new(
        config.fdb_entries_max,
        config.ports_max,
        config.addresses_per_port_max,
        config.ageing_ticks,
        config.hash_seed,
    )
}
