//! The composition of a world.

use ringway_datapath::{LockingMode, MacAddr, OffloadCaps};
use ringway_host::HostConfig;
use ringway_netfront::HashWish;
use ringway_steering::FlowKey;
use ringway_switch::{FloodLimit, StormLimits, SwitchConfig};
use ringway_wire::DomId;

use crate::canary::Canary;
use crate::choices::Choices;
use crate::groups::{Groups, choose_groups};
use crate::traffic::Kind;

/// The domain of the backend.
pub(crate) const HOST: DomId = DomId(0);

/// The most domains that a world creates one after the other in a guest's place.
pub(crate) const LIVES_MAX: u16 = 32;

/// The most ports of a backend with few guests.
const PORTS_MAX: u16 = 64;
/// The most learned addresses of a backend with few guests.
const ADDRESSES_MAX: u32 = 256;
/// The most queues of a port.
pub(crate) const QUEUES_MAX: u16 = 2;

/// The properties that do not change while a world runs.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) engines: usize,
    /// Guests of Xen, and after them those of virtio.
    pub(crate) guests: usize,
    pub(crate) virtio: usize,
    /// By which each process of the backend chooses a queue of a flow.
    pub(crate) flow_key: FlowKey,
    pub(crate) queues_wanted: u16,
    pub(crate) guest_caps: Vec<OffloadCaps>,
    /// How each guest wishes to receive, if it says so by a control ring. Only guests with one
    /// queue do: with more, a frame that is steered by half of a wish overtakes an earlier one.
    pub(crate) wishes: Vec<Option<HashWish>>,
    /// The multicast frames that each guest orders at first, if it gets no others.
    pub(crate) groups: Vec<Option<Groups>>,
    /// Which guests ask for headroom. Few do: the ends of frames for them leave no guest's pages.
    pub(crate) ask_for_headroom: Vec<bool>,
    /// By guest, of either kind: whether its vif is patched to its own device, as on a bridge.
    pub(crate) are_patched: Vec<bool>,
    /// Of these: whether that is a bridge of Open vSwitch, behind which there is no station.
    pub(crate) on_ovs: Vec<bool>,
    /// The switch's uplink, if it has one.
    pub(crate) uplink: Option<Uplink>,
    pub(crate) flow_kinds: Vec<Kind>,
    /// Whether most bytes are in long TCP segments, whose ends go from guest to guest.
    pub(crate) is_bulk: bool,
    /// The most queues that guests are offered.
    pub(crate) queues_max: u16,
    /// Whether flows leave queues that cannot keep up. Not where the backend dies: its successor
    /// begins with the queues of the default hash, so a frame may overtake another in the rings.
    pub(crate) balances_flows: bool,
    /// Frames that a vif without a limit of its own may flood in a second; 0 for no limit.
    pub(crate) flood_rate: u32,
    pub(crate) split_event_channels: bool,
    /// The work that guests may leave to the host.
    pub(crate) offloads: OffloadCaps,
    /// How strictly the addresses of guests are checked.
    pub(crate) locking: Option<LockingMode>,
    /// The weight of each guest, as the toolstack writes it at first.
    pub(crate) weights: Vec<&'static str>,
    pub(crate) budget_bytes: usize,
    pub(crate) hostiles: usize,
    /// Hostile front-ends of virtio.
    pub(crate) intruders: usize,
    pub(crate) burst_max: usize,
    pub(crate) disturbances: Disturbances,
    /// Steps from one rest to the next.
    pub(crate) steps_per_phase: usize,
    pub(crate) phases: usize,
    pub(crate) canary: Option<Canary>,
}

/// The device through which the switch reaches other hosts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Uplink {
    pub(crate) queues: usize,
    pub(crate) stations: usize,
}

/// The disturbances of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbances {
    /// Only the operations of a well-run host: queues move, captures begin and end, receivers
    /// stall.
    None,
    /// Rates change, too.
    Rates,
    /// The machine refuses calls and loses events.
    Faults,
    /// Guests and the backend's process die.
    Deaths,
    /// An administrator changes links of the host, and its kernel refuses calls.
    Links,
    /// All of that.
    All,
}

impl Disturbances {
    pub(crate) fn have_rates(self) -> bool {
        matches!(self, Disturbances::Rates | Disturbances::All)
    }

    pub(crate) fn have_faults(self) -> bool {
        matches!(self, Disturbances::Faults | Disturbances::All)
    }

    pub(crate) fn have_links(self) -> bool {
        matches!(self, Disturbances::Links | Disturbances::All)
    }

    pub(crate) fn have_deaths(self) -> bool {
        matches!(self, Disturbances::Deaths | Disturbances::All)
    }
}

/// The address of a guest.
pub(crate) fn mac_of(guest: usize) -> MacAddr {
    let [high, low] = u16::try_from(guest + 1).expect("there are fewer domains").to_be_bytes();
    MacAddr([0, 0x16, 0x3e, 0, high, low])
}

/// The guest that has, or had, this domain.
pub(crate) fn guest_of(domid: DomId) -> usize {
    usize::from((domid.0 - 1) / LIVES_MAX)
}

/// Frame memory that is always sufficient.
const BUDGET_AMPLE: usize = 64 << 20;
/// Frame memory that is used up at times: seven large buffers.
const BUDGET_LOW: usize = 512 << 10;
/// What disturbs a host, as often as it is here.
const DISTURBANCES: [Disturbances; 7] = [
    Disturbances::None,
    Disturbances::Rates,
    Disturbances::Faults,
    Disturbances::Deaths,
    Disturbances::Links,
    Disturbances::All,
    Disturbances::All,
];

impl Scenario {
    pub(crate) fn choose(choices: &mut Choices, canary: Option<Canary>) -> Scenario {
        let guests = choices.from_to(2, 4);
        let virtio = choices.pick(&[0, 0, 1, 2]);
        let has_intruder = virtio > 0 && choices.is_one_in(3);
        let is_bulk = choices.is_one_in(3);
        let caps = match is_bulk {
            true => [OffloadCaps::ALL, OffloadCaps::ALL, OffloadCaps::ALL, NO_SEGMENTATION],
            false => [OffloadCaps::ALL, OffloadCaps::ALL, NO_SEGMENTATION, OffloadCaps::NONE],
        };
        let kinds = if is_bulk { [Kind::Tcp; 3] } else { [Kind::Unknown, Kind::Udp, Kind::Tcp] };
        let least = if is_bulk { OffloadCaps::ALL } else { OffloadCaps::NONE };
        let offloads = choices.pick(&[OffloadCaps::ALL, OffloadCaps::ALL, least]);
        let has_ample_memory = !choices.is_one_in(4);
        let hostiles = choices.pick(&[0, 0, 1, 2]);
        let queues_wanted = choices.from_to(1, usize::from(QUEUES_MAX));
        let wishes = (0..guests)
            .map(|_| (queues_wanted == 1 && choices.is_one_in(2)).then(|| choose_wish(choices)))
            .collect();
        let has_groups = choices.is_one_in(4);
        let groups = (0..guests)
            .map(|_| (has_groups && choices.is_one_in(2)).then(|| choose_groups(choices)))
            .collect();
        let uplink = choices.is_one_in(2).then(|| Uplink {
            queues: choices.from_to(1, usize::from(QUEUES_MAX)),
            stations: choices.from_to(1, 2),
        });
        let are_patched: Vec<bool> = (0..guests + virtio).map(|_| choices.is_one_in(3)).collect();
        let on_ovs = are_patched.iter().map(|it| *it && choices.is_one_in(4)).collect();
        Scenario {
            // An end stays in pages only on its way to a guest of the same engine.
            engines: choices.from_to(1, if is_bulk { 2 } else { 3 }),
            guests,
            virtio,
            flow_key: FlowKey::new([choices.number(), choices.number()]),
            queues_wanted: u16::try_from(queues_wanted).unwrap_or(1),
            wishes,
            groups,
            guest_caps: (0..guests).map(|_| choices.pick(&caps)).collect(),
            are_patched,
            on_ovs,
            uplink,
            flow_kinds: (0..choices.from_to(1, 6)).map(|_| choices.pick(&kinds)).collect(),
            is_bulk,
            queues_max: u16::try_from(choices.from_to(1, usize::from(QUEUES_MAX))).unwrap_or(1),
            flood_rate: 0,
            split_event_channels: choices.is_one_in(2),
            offloads,
            locking: choices.pick(&[None, None, Some(LockingMode::Unlocked)]),
            weights: (0..guests).map(|_| choices.pick(&["1", "1", "1", "3"])).collect(),
            budget_bytes: if has_ample_memory { BUDGET_AMPLE } else { BUDGET_LOW },
            hostiles,
            intruders: usize::from(has_intruder),
            burst_max: choices.pick(&[4, 16, 16, 64]),
            disturbances: choices.pick(&DISTURBANCES),
            steps_per_phase: choices.from_to(50, 400),
            phases: choices.from_to(1, 3),
            ask_for_headroom: (0..guests).map(|_| choices.is_one_in(8)).collect(),
            balances_flows: false,
            canary,
        }
        .with_balance()
    }

    /// Has flows leave queues that cannot keep up, in most worlds where guests have several queues,
    /// and with more traffic.
    fn with_balance(mut self) -> Scenario {
        let has_queues = [self.queues_wanted, self.queues_max] == [QUEUES_MAX; 2];
        if has_queues && !self.disturbances.have_deaths() && self.steps_per_phase % 4 != 0 {
            self.balances_flows = true;
            self.flow_kinds = self.flow_kinds.repeat(2);
            self.burst_max = 64;
        }
        self
    }

    /// A host with many guests, whose applications are quiet.
    pub(crate) fn of_crowd(guests: usize) -> Scenario {
        Scenario {
            engines: 2,
            guests,
            virtio: 0,
            flow_key: FlowKey::new([1, 2]),
            queues_wanted: 1,
            guest_caps: vec![OffloadCaps::ALL; guests],
            wishes: vec![None; guests],
            groups: vec![None; guests],
            ask_for_headroom: vec![false; guests],
            are_patched: vec![false; guests],
            on_ovs: vec![false; guests],
            uplink: None,
            flow_kinds: Vec::new(),
            is_bulk: false,
            queues_max: 1,
            balances_flows: false,
            flood_rate: 0,
            split_event_channels: true,
            offloads: OffloadCaps::ALL,
            locking: None,
            weights: vec!["1"; guests],
            budget_bytes: BUDGET_AMPLE,
            hostiles: 0,
            intruders: 0,
            burst_max: 1,
            disturbances: Disturbances::None,
            steps_per_phase: 0,
            phases: 0,
            canary: None,
        }
    }

    /// The configuration of a backend's process.
    pub(crate) fn host_config(&self, hash_seed: u64) -> HostConfig {
        HostConfig {
            max_queues: self.queues_max,
            balances_flows: self.balances_flows,
            split_event_channels: self.split_event_channels,
            offloads: self.offloads,
            locking: self.locking,
            switch: SwitchConfig {
                fdb_entries_max: ADDRESSES_MAX.max(u32::from(self.ports_max())),
                ports_max: self.ports_max(),
                addresses_per_port_max: 16,
                ageing_ticks: 300,
                flood: FloodLimit::per_second(self.flood_rate, 0),
                storm: StormLimits::NONE,
                multicast: None,
                hash_seed,
            },
            mtu: 1500,
        }
    }

    /// A vif that is patched to a device has two ports.
    fn ports_max(&self) -> u16 {
        PORTS_MAX.max(u16::try_from(2 * self.guests).unwrap_or(u16::MAX))
    }

    /// Whether work may legitimately have to wait for time to pass.
    pub(crate) fn may_need_time(&self) -> bool {
        self.disturbances.have_rates()
            || self.budget_bytes < BUDGET_AMPLE
            // Frames wait until their flows have moved, or stay.
            || self.balances_flows
            // Frames wait behind orders, and orders for the pause after a note.
            || self.groups.iter().any(Option::is_some)
            || !self.has_no_hostiles()
    }

    /// Whether a vif is on a bridge of Open vSwitch.
    pub(crate) fn has_ovs(&self) -> bool {
        self.on_ovs.contains(&true)
    }

    pub(crate) fn has_no_hostiles(&self) -> bool {
        self.hostiles + self.intruders == 0
    }
}

/// Some wish of a guest with one queue.
pub(crate) fn choose_wish(choices: &mut Choices) -> HashWish {
    let key_len = choices.from_to(0, HashWish::default().key.capacity());
    let key = (0..key_len).map(|_| u8::try_from(choices.below(256)).unwrap_or_default());
    let key = key.collect();
    let types = u32::try_from(choices.below(16)).unwrap_or_default();
    HashWish { key, types, mapping: (0..choices.below(5)).map(|_| 0).collect() }
}

/// The offloads that a simple network stack accepts.
const NO_SEGMENTATION: OffloadCaps =
    OffloadCaps { gso_v4: false, gso_v6: false, ..OffloadCaps::ALL };
