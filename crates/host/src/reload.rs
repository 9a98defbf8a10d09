//! A description that is read again while its vifs are served. Nothing is done before all is
//! checked, so one that cannot be applied changes nothing.

use std::collections::BTreeSet;
use std::time::Instant;

use ringway_datapath::{Mirrored, Vid, VlanRules};
use ringway_switch::{TooManyVlans, VLANS_MAX};

use crate::changes::DescriptionChanges;
use crate::device::UplinkRules;
use crate::host::Host;
use crate::mirrors::refuse_among;
use crate::rules::Rules;
use crate::vif_state::VifState;
use crate::virtio::{VirtioVif, VirtioWanted, differences};
use crate::world::{Parts, World};

impl<W: World> Host<W> {
    /// Takes over a description that was read again: all virtio vifs that it has, and what goes
    /// through the uplink. Vifs that it does not have any more end, and the others change as far as
    /// they can while they are served. The caller adds new ones.
    ///
    /// # Errors
    /// Why this host cannot serve what is described; nothing has changed then.
    pub fn reload(
        &mut self,
        described: Vec<VirtioWanted>,
        uplink: Option<&UplinkRules>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<DescriptionChanges, String> {
        self.refuse_described(&described, uplink).map_or(Ok(()), Err)?;
        let is_left = |vif: &&VirtioVif<W>| {
            !vif.is_added() && described.iter().all(|it| it.name != vif.state.name)
        };
        let removed: Vec<String> =
            self.virtio().filter(is_left).map(|vif| vif.state.name.clone()).collect();
        removed.iter().for_each(|name| self.remove_virtio(name, now, parts));
        let mut changes = DescriptionChanges { removed, ..DescriptionChanges::default() };
        // VLANs that the uplink leaves are free for vifs, and those that vifs leave for the uplink.
        let is_uplink_set = self.set_uplink(uplink, now, parts).is_ok();
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        for wanted in described {
            match self.virtio.iter_mut().find(|vif| vif.state.name == wanted.name) {
                None => changes.added.push(wanted.name),
                Some(vif) => {
                    let of_vif = vif.describe_again(wanted, &mut hosting);
                    changes.vifs.extend((!of_vif.is_empty()).then_some(of_vif));
                }
            }
        }
        if !is_uplink_set {
            let set = self.set_uplink(uplink, now, parts);
            changes.uplink_refused = set.err().map(|error| error.to_string());
        }
        Ok(changes)
    }

    fn set_uplink(
        &mut self,
        rules: Option<&UplinkRules>,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<(), TooManyVlans> {
        let (_, mut hosting) = parts.split(&mut self.shared, now);
        let uplink = self.uplink.as_mut().zip(rules);
        uplink.map_or(Ok(()), |(uplink, rules)| uplink.set_rules(rules, &mut hosting))
    }

    /// Why vifs and the uplink cannot be as described beside vifs that the description does not
    /// have, and with what stays of them; `None` if they can. The description itself is free of
    /// contradictions.
    fn refuse_described(
        &self,
        described: &[VirtioWanted],
        uplink: Option<&UplinkRules>,
    ) -> Option<String> {
        let is_described = |state: &VifState<W>| {
            let vif = self.virtio().find(|vif| vif.state.name == state.name);
            vif.is_some_and(|vif| !vif.is_added())
        };
        let others: Vec<&VifState<W>> = self.states().filter(|it| !is_described(it)).collect();
        let of_others = others.iter().map(|it| (it.name.as_str(), it.rules.mirror()));
        let of_described = described.iter().map(|it| (it.name.as_str(), &*it.rules.mirror));
        let mirrors: Vec<(&str, &[Mirrored])> = of_others.chain(of_described).collect();
        let refusal = described.iter().find_map(|wanted| {
            let known = self.virtio().find(|vif| vif.state.name == wanted.name);
            if known.is_some_and(|vif| differences(vif.wanted(), wanted).is_empty()) {
                return None;
            }
            let name = &wanted.name;
            if others.iter().any(|other| other.name == *name) {
                return Some(format!(
                    "a vif {name} exists already, and is not of the description: choose another \
                     name, or remove that one with `ringway vif remove`"
                ));
            }
            if self.uplink_name() == Some(name) {
                return Some(format!("{name} is the name of the uplink: choose another"));
            }
            let of_macs = || self.refuse_macs(wanted, others.iter().copied());
            refuse_among(mirrors.iter().copied(), name, &wanted.rules.mirror).or_else(of_macs)
        });
        let in_force = described.iter().map(|wanted| {
            let known = self.virtio().find(|vif| vif.state.name == wanted.name);
            known.map_or_else(|| wanted.clone(), |vif| vif.wanted().described_as(wanted))
        });
        let in_force: Vec<VirtioWanted> = in_force.collect();
        refusal
            .or_else(|| refuse_beside_kept(described, &in_force))
            .or_else(|| self.refuse_ports_of_new(described))
            .or_else(|| self.refuse_vlans_of_new(&in_force, uplink, &others))
    }

    /// Why the switch cannot have all VLANs of these vifs, the uplink and others; `None` if it can,
    /// or if no VLAN is new.
    fn refuse_vlans_of_new(
        &self,
        in_force: &[VirtioWanted],
        uplink: Option<&UplinkRules>,
        others: &[&VifState<W>],
    ) -> Option<String> {
        let of_uplinks = self.shared.switch.vlans_of_uplinks();
        let known = self.states().flat_map(|state| vids(state.rules.vlan()));
        let known: BTreeSet<Vid> = known.chain(of_uplinks.iter().copied()).collect();
        let uplink = uplink.filter(|_| self.uplink.is_some());
        let of_uplinks = uplink.map_or(of_uplinks, |rules| vids(&rules.vlan).collect());
        let on_switch = in_force.iter().filter(|wanted| wanted.bridge.is_none());
        let wanted = on_switch.flat_map(|wanted| vids(&wanted.rules.vlan));
        let others = others.iter().flat_map(|state| vids(state.rules.vlan()));
        let all: BTreeSet<Vid> = wanted.chain(others).chain(of_uplinks).collect();
        let count = all.len();
        (count > VLANS_MAX && !all.is_subset(&known)).then(|| {
            format!("vifs and the uplink would be in {count} VLANs, and {VLANS_MAX} is the limit")
        })
    }

    /// Why the switch has too few ports for the vifs that are new, however their guests and those
    /// of the others use them; `None` if it has enough. Without new ones, all stays as it was.
    fn refuse_ports_of_new(&self, described: &[VirtioWanted]) -> Option<String> {
        let is_known = |name: &str| self.virtio().any(|vif| vif.state.name == name);
        let new = described.iter().filter(|wanted| !is_known(&wanted.name));
        let new: usize = new.map(VirtioWanted::ports_max).sum();
        let stays = |vif: &&VirtioVif<W>| {
            vif.is_added() || described.iter().any(|it| it.name == vif.state.name)
        };
        let virtio = self.virtio().filter(stays).map(|vif| vif.wanted().ports_max());
        let of_xen = self.vifs().map(|(_, vif)| 1 + usize::from(vif.state.device.is_some()));
        let connected = self.states().filter_map(|state| state.connection.as_ref());
        let of_vifs: usize = connected.map(|connection| connection.ports().count()).sum();
        let of_others = self.shared.ports_in_use().saturating_sub(of_vifs);
        let needed = new + virtio.sum::<usize>() + of_xen.sum::<usize>() + of_others;
        let max = usize::from(self.shared.config.switch.ports_max);
        (new > 0 && needed > max).then(|| {
            format!(
                "with the new vifs, the switch needs up to {needed} ports, and it has {max}, which \
                 is the limit until the host is started again: restart it, or describe fewer vifs"
            )
        })
    }

    /// Why a vif cannot have its addresses beside others: one of these has one, where frames of
    /// both could meet.
    pub(crate) fn refuse_macs<'a>(
        &'a self,
        wanted: &VirtioWanted,
        others: impl Iterator<Item = &'a VifState<W>>,
    ) -> Option<String> {
        let place_of = |state: &VifState<W>| {
            let device = state.device.as_ref();
            (device.map(|device| device.attached_to.clone()), state.rules.vlan().untagged)
        };
        let place = (wanted.bridge.clone(), wanted.rules.vlan.untagged);
        let new = wanted.own_rules();
        let mut others = others.filter(|state| place_of(state) == place);
        others.find_map(|other| {
            let (key, mac, its_key) = new.conflict(&other.rules)?;
            Some(format!(
                "{key} {mac} is that of {}, in its {its_key}: choose another, remove that vif \
                 first, or list it in shared-macs of both",
                other.name
            ))
        })
    }
}

/// Why a vif cannot have its addresses beside one that keeps its own, or its bridge, while it is
/// served, although other ones are described; `None` if all can.
fn refuse_beside_kept(described: &[VirtioWanted], in_force: &[VirtioWanted]) -> Option<String> {
    let all: Vec<(&VirtioWanted, Rules)> = in_force.iter().map(|it| (it, it.own_rules())).collect();
    let place = |it: &VirtioWanted| (it.bridge.clone(), it.rules.vlan.untagged);
    let differs = |vif: &VirtioWanted, wanted: &VirtioWanted| {
        (vif.mac, &vif.bridge) != (wanted.mac, &wanted.bridge)
    };
    let mut kept = all.iter().zip(described).filter(|((vif, _), wanted)| differs(vif, wanted));
    kept.find_map(|((vif, rules), _)| {
        let is_near = |other: &VirtioWanted| other.name != vif.name && place(other) == place(vif);
        let mut others = all.iter().filter(|(other, _)| is_near(other));
        others.find_map(|(other, of_other)| {
            let (key, mac, _) = of_other.conflict(rules)?;
            let (name, kept) = (&other.name, &vif.name);
            Some(format!(
                "{key} {mac} of {name} is that of {kept}, which keeps its mac and its bridge while \
                 it is served: remove the section of {kept}, reload, and add it again"
            ))
        })
    })
}

fn vids(rules: &VlanRules) -> impl Iterator<Item = Vid> {
    rules.untagged.iter().chain(&rules.tagged).copied()
}
