//! The description of a world's host, which is read again while its virtio vifs are served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringway_datapath::{Mirrored, MirroredPassage, PortRules, QueueCounters, Vid, VlanRules};
use ringway_host::{
    Connection, Defaults, DescriptionChanges, Event, Parts, UplinkRules, VirtioWanted, vif_name,
};
use ringway_switch::{FloodLimit, PortId, VLANS_MAX};
use ringway_xenbus::{Rate, VifLimits};
use ringway_xenstore::Lost;

use crate::canary::Canary;
use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::links::configured_bridge;
use crate::marks::Mark;
use crate::ovs_rules::iface_id_of;
use crate::plane::DataPlane;
use crate::process::Process;
use crate::scenario::{QUEUES_MAX, mac_of};
use crate::toolstack::vif_of;
use crate::virtio::described;
use crate::virtio_vifs::Section;
use crate::world::World;

/// Weights that a description may have.
const WEIGHTS: [Option<u16>; 3] = [None, Some(2), Some(9)];
/// Rates that it may have; frames wait for the last one.
const RATES: [Option<Rate>; 3] = [
    None,
    Some(Rate { bytes: 1 << 30, interval_us: 50_000 }),
    Some(Rate { bytes: 65_536, interval_us: 50_000 }),
];
/// The first of the further addresses that rules may have, which no one uses.
const FURTHER: usize = 200;
/// Frames that vifs may flood in a second; those of honest guests are below these.
const FLOOD_RATES: [u32; 3] = [0, 1_000_000, 2_000_000];

/// How a virtio vif is served.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Served {
    ports: Vec<PortId>,
    /// The counters of its queues: another connection has others.
    counters: Vec<*const QueueCounters>,
    limits: VifLimits,
    rules: PortRules,
}

impl World {
    /// What the description says now of the virtio vifs that it has, with their numbers: those of
    /// honest guests first.
    pub(crate) fn described(&mut self) -> Vec<(usize, VirtioWanted)> {
        let World { plane, virtio, scenario, .. } = self;
        let vmms = virtio.vmms.iter().zip(&virtio.sections);
        let vmms = vmms.map(|(vmm, section)| (vmm.name.clone(), Some(vmm.guest), section.clone()));
        let intruders =
            virtio.intruders.iter().map(|it| (it.name.clone(), None, Section::default()));
        let all = vmms.chain(intruders).enumerate().filter(|(_, (.., section))| !section.is_gone);
        let wanted = all.map(|(number, (name, guest, section))| {
            let queues = u16::try_from(plane.choices.from_to(1, usize::from(QUEUES_MAX)));
            let Section { limits, rules, .. } = section;
            let bridge = guest.and_then(|guest| configured_bridge(scenario, guest));
            let iface_id = guest.filter(|guest| scenario.on_ovs[*guest]);
            let iface_id = iface_id.map(|_| iface_id_of(number));
            let queues = queues.expect("there are few");
            let described = described(name, queues, (guest, bridge));
            (number, VirtioWanted { limits, rules, iface_id, ..described })
        });
        wanted.collect()
    }

    /// The administrator has the description read again, after a change of a virtio vif or none, or
    /// with a mistake.
    pub(crate) fn reload(&mut self, number: usize) -> Checked {
        if self.backend.is_none() {
            return Ok(());
        }
        let before = self.virtio.sections.clone();
        self.edit(number);
        let is_wrong = self.plane.choices.is_one_in(3);
        self.read_again(&before, is_wrong)
    }

    /// All virtio vifs come back into the description.
    pub(crate) fn describe_all(&mut self) -> Checked {
        let before = self.virtio.sections.clone();
        if self.backend.is_none() || before.iter().all(|section| !section.is_gone) {
            return Ok(());
        }
        self.virtio.sections.iter_mut().for_each(|section| section.is_gone = false);
        self.read_again(&before, false)
    }

    /// Changes what the description says of a virtio vif, perhaps to the same.
    fn edit(&mut self, number: usize) {
        let World { plane, virtio, scenario, .. } = self;
        let guest = virtio.vmms[number].guest;
        let rates = if scenario.disturbances.have_rates() { &RATES[..] } else { &RATES[..2] };
        let section = &mut virtio.sections[number];
        match plane.choices.below(4) {
            _ if section.is_gone => section.is_gone = false,
            0 => section.limits.weight = plane.choices.pick(&WEIGHTS),
            1 => section.limits.rate = plane.choices.pick(rates),
            2 => {
                let further = plane.choices.is_one_in(2).then(|| mac_of(FURTHER + guest));
                section.rules = PortRules {
                    allowed_macs: further.into_iter().collect(),
                    is_dhcp_server: plane.choices.is_one_in(2),
                    ..PortRules::default()
                };
            }
            // Administrators have plans for the device of another one.
            _ => section.is_gone = !scenario.are_patched[guest],
        }
    }

    /// Has the description, which was `before`, read again. It may be wrong besides.
    fn read_again(&mut self, before: &[Section], is_wrong: bool) -> Checked {
        let numbered = self.described();
        let mut described: Vec<_> = numbered.iter().map(|(_, wanted)| wanted.clone()).collect();
        let mut uplink = self.describe_uplink();
        let mistake = is_wrong.then(|| self.make_mistake(&mut described, &mut uplink));
        let World { plane, backend, .. } = self;
        let Some(backend) = backend else { return Ok(()) };
        let mut expected = served(backend);
        let of_uplink = uplink.as_ref().map(|rules| rules.storm.broadcast);
        let has_storm_limit = of_uplink.is_some_and(|limit| limit != FloodLimit::NONE);
        let outcome = backend.reload(described, uplink.as_ref(), plane);
        let found = served(backend);
        plane.journal.note(|| format!("reload with {mistake:?}: {outcome:?}"));
        if let Some(mistake) = mistake {
            self.virtio.sections = before.to_vec();
            self.plane.marks.hit(Mark::ReloadRefused);
            let is_right = outcome.is_err() && found == expected;
            return ensure(is_right, Rule::Reload, || {
                format!("{mistake}: {outcome:?}, {expected:?} became {found:?}")
            });
        }
        let changes = outcome.map_err(|reason| Flaw::new(Rule::Reload, reason))?;
        plane.marks.add(Mark::ReloadUplink, u64::from(has_storm_limit));
        self.check_changes(before, &changes)?;
        let sections = before.iter().zip(&self.virtio.sections).zip(&self.virtio.vmms);
        sections.for_each(|((before, now), vmm)| expect(&mut expected, &vmm.name, before, now));
        ensure(found == expected, Rule::Reload, || {
            format!("a reload led to {found:?}, expected {expected:?}")
        })?;
        for (number, before) in before.iter().enumerate() {
            self.follow_reload(number, before, &numbered)?;
        }
        match self.plane.choices.is_one_in(4) {
            true => self.describe_defaults(),
            false => Ok(()),
        }
    }

    /// What the description says of the uplink, if the backend has one: perhaps a limit, which no
    /// frame of a station reaches.
    fn describe_uplink(&mut self) -> Option<UplinkRules> {
        self.backend.as_ref()?.host.uplink.as_ref()?;
        let mut rules = UplinkRules::without_limits(VlanRules::default());
        let rate = self.plane.choices.pick(&FLOOD_RATES);
        rules.storm.broadcast = FloodLimit::per_second(rate, 0);
        Some(rules)
    }

    /// The description has another number of queues for guests of Xen, which connected ones keep,
    /// and another limit of floods for all vifs without their own.
    fn describe_defaults(&mut self) -> Checked {
        let World { plane, backend, scenario, settings, .. } = self;
        let Some(backend) = backend else { return Ok(()) };
        let queues_max = u16::try_from(plane.choices.from_to(1, usize::from(QUEUES_MAX)));
        scenario.queues_max = queues_max.expect("there are few");
        settings.may_keep_queues(plane.guests.iter().map(|guest| vif_of(guest.domid)));
        scenario.flood_rate = plane.choices.pick(&FLOOD_RATES);
        let before = std::mem::replace(&mut settings.flood_rate, scenario.flood_rate);
        let is_other = before != scenario.flood_rate;
        match backend.set_defaults(scenario.queues_max, scenario.flood_rate, plane) {
            // The next process begins with both.
            Err(_) if !plane.is_alive.get() => Ok(()),
            Err(error) => Err(Flaw::new(Rule::Reload, error.to_string())),
            Ok(_) => {
                plane.marks.hit(Mark::ReloadQueues);
                plane.marks.add(Mark::ReloadFloods, u64::from(is_other));
                Ok(())
            }
        }
    }

    /// What the backend says that has changed is what has.
    fn check_changes(&mut self, before: &[Section], changes: &DescriptionChanges) -> Checked {
        let named = |differs: &dyn Fn(&Section, &Section) -> bool| -> Vec<String> {
            let all = before.iter().zip(&self.virtio.sections).zip(&self.virtio.vmms);
            let differ = all.filter(|((before, now), _)| differs(before, now));
            differ.map(|(_, vmm)| vmm.name.clone()).collect()
        };
        let added = named(&|before, now| before.is_gone && !now.is_gone);
        let removed = named(&|before, now| !before.is_gone && now.is_gone);
        let changed = named(&|before, now| !before.is_gone && !now.is_gone && before != now);
        let of_vifs = changes.vifs.iter().filter(|vif| !vif.changed.is_empty());
        let of_vifs: Vec<&str> = of_vifs.map(|vif| vif.vif.as_str()).collect();
        let is_right = changes.added == added && changes.removed == removed && of_vifs == changed;
        let is_all = changes.vifs.iter().all(|vif| vif.refused.is_none());
        ensure(is_right && is_all, Rule::Reload, || {
            format!("added {added:?}, removed {removed:?}, changed {changed:?}: {changes:?}")
        })?;
        let is_same = added.is_empty() && removed.is_empty() && changed.is_empty();
        let marks = &mut self.plane.marks;
        marks.add(Mark::ReloadUnchanged, u64::from(is_same));
        marks.add(Mark::ReloadChanged, u64::from(!changed.is_empty()));
        marks.add(Mark::ReloadAdds, u64::from(!added.is_empty()));
        marks.add(Mark::ReloadEnds, u64::from(!removed.is_empty()));
        Ok(())
    }

    /// What follows for a virtio vif from a description that was taken over.
    fn follow_reload(
        &mut self,
        number: usize,
        before: &Section,
        described: &[(usize, VirtioWanted)],
    ) -> Checked {
        let World { plane, virtio, settings, panics, .. } = self;
        let (vmm, now) = (&mut virtio.vmms[number], &virtio.sections[number]);
        let name = vmm.name.clone();
        if !before.is_gone && now.is_gone {
            settings.removed(&name);
            panics[vmm.guest] = 0;
            // Its machine is shut down.
            vmm.kill(plane);
            return self.check_virtio_release(&[name]);
        }
        let was = if before.is_gone { VifLimits::default() } else { before.limits };
        let is_new = |limits: VifLimits, (key, value): &(&str, String)| {
            limits.keys().all(|(other, before)| (other, &before) != (*key, value))
        };
        for (key, _) in was.keys().filter(|it| is_new(now.limits, it)) {
            settings.unset(&name, key);
        }
        for (key, value) in now.limits.keys().filter(|it| is_new(was, it)) {
            settings.set(&name, key, &value);
        }
        // If the process was killed meanwhile, the next one begins with all that is described.
        let is_to_begin = before.is_gone && !now.is_gone && self.plane.is_alive.get();
        let wanted = described.iter().find(|(other, _)| is_to_begin && *other == number);
        let Some((_, wanted)) = wanted else { return Ok(()) };
        if let Some(mut process) = self.backend.take() {
            self.begin_virtio(number, wanted.clone(), &mut process);
            process.note_places();
            self.backend = Some(process);
            self.start_front_end(number);
        }
        Ok(())
    }

    /// Something that this host cannot serve. All else that is described could be.
    fn make_mistake(
        &mut self,
        described: &mut Vec<VirtioWanted>,
        uplink: &mut Option<UplinkRules>,
    ) -> &'static str {
        let mut new = crate::virtio::described("itself".to_owned(), 1, (None, None));
        let World { plane, backend, scenario, .. } = self;
        let backend = backend.as_ref();
        let mistake = match plane.choices.below(4) {
            0 => {
                let of_xen = plane.guests.get(..scenario.guests).and_then(<[_]>::first);
                let name = of_xen.map(|guest| vif_name(vif_of(guest.domid)));
                let taken = name.filter(|name| backend.is_some_and(|it| it.state(name).is_some()));
                taken.map(|name| {
                    new.name = name;
                    "the name of a vif of Xen"
                })
            }
            1 => {
                let is_served = |name: &str| {
                    backend.is_some_and(|it| it.virtio().any(|vif| vif.state.name == name))
                };
                let mut honest = described.iter_mut().filter(|it| it.mac.is_some());
                honest.find(|it| is_served(&it.name)).map(|kept| {
                    (new.mac, new.bridge) = (kept.mac, kept.bridge.clone());
                    kept.mac = Some(mac_of(FURTHER + plane.guests.len()));
                    "the address of a vif that keeps it"
                })
            }
            2 => {
                let rules = uplink.as_mut().map(|rules| &mut rules.vlan);
                let rules = rules.unwrap_or(&mut new.rules.vlan);
                rules.tagged = (1..).filter_map(Vid::new).take(VLANS_MAX + 1).collect();
                Some("more VLANs than a switch has")
            }
            _ => None,
        };
        let mistake = mistake.unwrap_or_else(|| {
            let port = new.name.clone();
            let mirror = vec![Mirrored { port, passage: MirroredPassage::Both }];
            new.rules = PortRules { mirror, ..PortRules::default() };
            "a mirror of itself"
        });
        described.push(new);
        mistake
    }

    /// The description has no virtio vif any more: all end.
    pub(crate) fn reload_without_virtio(&mut self, names: &[String]) -> Checked {
        let World { plane, backend, .. } = self;
        let Some(backend) = backend else { return Ok(()) };
        let outcome = backend.reload(Vec::new(), None, plane);
        plane.marks.hit(Mark::ReloadRemoves);
        let sorted = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
        let removed = outcome.as_ref().map(|changes| sorted(&changes.removed));
        let is_right = removed == Ok(sorted(names)) && served(backend).is_empty();
        ensure(is_right, Rule::Reload, || format!("{names:?} should end: {outcome:?}"))
    }
}

/// How the virtio vifs of a process are served, by name.
fn served(process: &Process) -> BTreeMap<String, Served> {
    let vifs = process.virtio().map(|vif| {
        let state = &vif.state;
        let connection = state.connection.as_ref();
        let queues = connection.map_or(&[][..], |connection| &connection.queues);
        let of_vif = Served {
            ports: connection.into_iter().flat_map(Connection::ports).collect(),
            counters: queues.iter().map(Arc::as_ptr).collect(),
            limits: state.limited.wanted,
            rules: state.rules.wanted.clone(),
        };
        (state.name.clone(), of_vif)
    });
    vifs.collect()
}

/// How a virtio vif is served after a change of its section: what has not changed there stays, also
/// what an administrator has set since. One that is new has yet to be added.
fn expect(all: &mut BTreeMap<String, Served>, name: &str, before: &Section, now: &Section) {
    if now.is_gone {
        all.remove(name);
    }
    let Some(served) = all.get_mut(name) else { return };
    if now.limits.weight != before.limits.weight {
        served.limits.weight = now.limits.weight;
    }
    if now.limits.rate != before.limits.rate {
        served.limits.rate = now.limits.rate;
    }
    if now.rules != before.rules {
        served.rules = now.rules.clone();
    }
}

impl Process {
    /// Takes over other numbers for all vifs of a description that was read again.
    fn set_defaults(
        &mut self,
        queues_max: u16,
        flood_rate: u32,
        plane: &mut DataPlane,
    ) -> Result<(), Lost> {
        let flood = FloodLimit::per_second(flood_rate, 0);
        let defaults = Defaults { queues_max, flood, ..self.host.shared.defaults() };
        let now = plane.now;
        self.with_parts(plane, |host, parts| host.set_defaults(defaults, now, parts))
    }

    /// Takes over a description that was read again.
    pub(crate) fn reload(
        &mut self,
        mut described: Vec<VirtioWanted>,
        uplink: Option<&UplinkRules>,
        plane: &mut DataPlane,
    ) -> Result<DescriptionChanges, String> {
        match (plane.canary, &mut described[..]) {
            (Some(Canary::AbruptReload), [first, ..]) => {
                let _ = self.on(Event::Removed(first.name.clone()), plane);
            }
            (Some(Canary::BroadReload), [first, .., last]) => {
                last.limits.weight = first.limits.weight;
            }
            _ => {}
        }
        let now = plane.now;
        let outcome = self.with_parts(plane, |host, parts: &mut Parts<'_, _>| {
            host.reload(described, uplink, now, parts)
        });
        self.note_places();
        outcome
    }
}
