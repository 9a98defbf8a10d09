//! The description of a world's host, which is read again while its virtio vifs are served.

use std::collections::BTreeMap;

use ringway_datapath::{MirroredPassage, PortRules};
use ringway_host::{DescriptionChanges, Event, Parts, VirtioWanted, vif_name};
use ringway_switch::PortId;
use ringway_xenbus::{Limit, VifLimits};

use crate::canary::Canary;
use crate::flaw::{Checked, Rule, ensure};
use crate::links::bridge_of;
use crate::marks::Mark;
use crate::notes::KeptNotes;
use crate::plane::DataPlane;
use crate::process::Process;
use crate::scenario::QUEUES_MAX;
use crate::toolstack::vif_of;
use crate::virtio::described;
use crate::world::World;

/// Weights that a description may have.
const WEIGHTS: [Option<u16>; 3] = [None, Some(2), Some(9)];

impl World {
    /// What the description says now of all virtio vifs: those of honest guests first.
    pub(crate) fn described(&mut self) -> Vec<VirtioWanted> {
        let World { plane, virtio, scenario, .. } = self;
        let vmms = virtio.vmms.iter().zip(&virtio.weights);
        let vmms = vmms.map(|(vmm, weight)| (vmm.name.clone(), Some(vmm.guest), *weight));
        let intruders = virtio.intruders.iter().map(|it| (it.name.clone(), None, None));
        let all: Vec<_> = vmms.chain(intruders).collect();
        let wanted = all.into_iter().map(|(name, guest, weight)| {
            let queues = u16::try_from(plane.choices.from_to(1, usize::from(QUEUES_MAX)));
            let limits = VifLimits { weight, ..VifLimits::default() };
            let bridge = guest.filter(|guest| scenario.are_patched[*guest]).map(bridge_of);
            let queues = queues.expect("there are few");
            VirtioWanted { limits, ..described(name, queues, (guest, bridge)) }
        });
        wanted.collect()
    }

    /// The administrator has the description read again, after a change of a virtio vif or none, or
    /// with a mistake.
    pub(crate) fn reload(&mut self, number: usize) -> Checked {
        if self.backend.is_none() {
            return Ok(());
        }
        let weights = self.virtio.weights.clone();
        self.virtio.weights[number] = self.plane.choices.pick(&WEIGHTS);
        let mut described = self.described();
        let mistake = self.plane.choices.is_one_in(3).then(|| self.make_mistake(&mut described));
        let World { plane, backend, notes, virtio, .. } = self;
        let Some(backend) = backend else { return Ok(()) };
        let before = ports(backend);
        let outcome = backend.reload(described, plane, notes);
        plane.journal.note(|| format!("reload for {number}, {mistake:?}: {outcome:?}"));
        let is_kept = ports(backend) == before;
        let name = virtio.vmms[number].name.clone();
        let limits = backend.state(&name).map(|state| state.limited.wanted.weight);
        ensure(is_kept, Rule::Reload, || {
            format!("vifs of {before:?} have other ports: {:?}", ports(backend))
        })?;
        match (mistake, outcome) {
            (Some(mistake), outcome) => {
                self.plane.marks.hit(Mark::ReloadRefused);
                self.virtio.weights = weights;
                ensure(outcome.is_err(), Rule::Reload, || format!("{mistake}: {outcome:?}"))
            }
            (None, Err(reason)) => ensure(false, Rule::Reload, || reason),
            (None, Ok(changes)) => self.follow_reload(number, weights[number], limits, &changes),
        }
    }

    /// A description was taken over: a changed key applies, and others do not change.
    fn follow_reload(
        &mut self,
        number: usize,
        before: Option<u16>,
        shown: Option<Option<u16>>,
        changes: &DescriptionChanges,
    ) -> Checked {
        let (name, weight) = (&self.virtio.vmms[number].name, self.virtio.weights[number]);
        let changed = changes.vifs.iter().filter(|vif| !vif.changed.is_empty());
        let changed: Vec<&str> = changed.map(|vif| vif.vif.as_str()).collect();
        let expected: &[&str] = if weight == before { &[] } else { &[name] };
        let is_right =
            changed == expected && changes.added.is_empty() && changes.removed.is_empty();
        ensure(is_right, Rule::Reload, || format!("{name} from {before:?}: {changes:?}"))?;
        if weight == before {
            self.plane.marks.hit(Mark::ReloadUnchanged);
            return Ok(());
        }
        self.plane.marks.hit(Mark::ReloadChanged);
        ensure(shown == Some(weight), Rule::Reload, || {
            format!("{name} has the weight {shown:?}, and {weight:?} is described")
        })?;
        let key = Limit::named("weight").map_or("", |limit| limit.key);
        match weight {
            Some(weight) => self.settings.set(name, key, &weight.to_string()),
            None => self.settings.unset(name, key),
        }
        Ok(())
    }

    /// Something that this host cannot serve. All else that is described could be.
    fn make_mistake(&mut self, described: &mut Vec<VirtioWanted>) -> &'static str {
        let of_xen = self.plane.guests.get(..self.scenario.guests).and_then(<[_]>::first);
        let of_xen = of_xen.map(|guest| vif_name(vif_of(guest.domid)));
        let taken = of_xen.filter(|name| {
            let state = self.backend.as_ref().and_then(|backend| backend.state(name));
            state.is_some() && self.plane.choices.is_one_in(2)
        });
        let mut wanted = described[0].clone();
        match taken {
            Some(name) => {
                wanted.name = name;
                described.push(wanted);
                "the name of a vif of Xen"
            }
            None => {
                wanted.name = "itself".to_owned();
                let port = wanted.name.clone();
                let mirror =
                    vec![ringway_datapath::Mirrored { port, passage: MirroredPassage::Both }];
                wanted.rules = PortRules { mirror, ..PortRules::default() };
                described.push(wanted);
                "a mirror of itself"
            }
        }
    }

    /// The description has no virtio vif any more: all end.
    pub(crate) fn reload_without_virtio(&mut self, names: &[String]) -> Checked {
        let World { plane, backend, notes, .. } = self;
        let Some(backend) = backend else { return Ok(()) };
        let outcome = backend.reload(Vec::new(), plane, notes);
        plane.marks.hit(Mark::ReloadRemoves);
        let removed = outcome.as_ref().map(|changes| &changes.removed[..]);
        let is_right = removed == Ok(names) && ports(backend).is_empty();
        ensure(is_right, Rule::Reload, || format!("{names:?} should end: {outcome:?}"))
    }
}

/// The ports of virtio vifs that are connected, by name.
fn ports(process: &Process) -> BTreeMap<String, PortId> {
    let vifs = process.virtio();
    let ports = vifs.filter_map(|vif| {
        let connection = vif.state.connection.as_ref()?;
        Some((vif.state.name.clone(), connection.port))
    });
    ports.collect()
}

impl Process {
    /// Takes over a description that was read again.
    pub(crate) fn reload(
        &mut self,
        described: Vec<VirtioWanted>,
        plane: &mut DataPlane,
        notes: &mut KeptNotes,
    ) -> Result<DescriptionChanges, String> {
        if let (Some(Canary::AbruptReload), Some(first)) = (plane.canary, described.first()) {
            let _ = self.on(Event::Removed(first.name.clone()), plane, notes);
        }
        let now = plane.now;
        let outcome = self.with_parts(plane, notes, |host, parts: &mut Parts<'_, _>| {
            host.reload(described, None, now, parts)
        });
        self.note_places();
        outcome
    }
}
