//! A switch with an uplink and five vifs, and time that passes.

use ringway_datapath::{Checksum, FrameBatch, FramePool, PoolBudget, VlanRules};
use ringway_switch::{
    FloodBudget, FloodLimit, MulticastConfig, PortId, PortPolicy, Role, Switch, SwitchConfig,
    Ticks, Unregistered, Verdict,
};

use crate::packets::*;

pub(crate) const PORTS: u16 = 6;
pub(crate) const UPLINK: u16 = 0;
pub(crate) const ROUTER: [u8; 4] = [10, 0, 0, 1];
/// How long a membership lasts, in ticks of a second.
pub(crate) const MEMBERSHIP: u32 = 260;

pub(crate) struct Bench {
    /// The state that senders give for the checksums of their frames.
    pub(crate) checksum: Checksum,
    pub(crate) switch: Switch,
    pub(crate) policies: Vec<PortPolicy>,
    pub(crate) flood: Vec<FloodBudget>,
    pub(crate) pool: FramePool,
    pub(crate) now: Ticks,
    pub(crate) passed_at: u32,
}

impl Bench {
    pub(crate) fn new(unregistered: Unregistered, groups_per_port_max: u16) -> Bench {
        let multicast = Some(MulticastConfig {
            groups_max: 64,
            groups_per_port_max,
            unregistered,
            ticks_per_second: 1,
        });
        let unlimited = SwitchConfig::unlimited(64, PORTS, 0x1357_9bdf_0246_8ace);
        let switch = Switch::new(SwitchConfig { multicast, ..unlimited });
        let now = Ticks(1);
        let mut bench = Bench {
            checksum: Checksum::Unverified,
            switch,
            policies: (0..PORTS).map(|_| PortPolicy::open()).collect(),
            flood: (0..PORTS).map(|_| FloodBudget::new(FloodLimit::NONE, now)).collect(),
            pool: FramePool::new(PoolBudget::new(1 << 20)),
            now,
            passed_at: now.0,
        };
        for port in 0..PORTS {
            let role = if port == UPLINK { Role::Uplink } else { Role::Ordinary };
            bench.join(port, &VlanRules::default(), role);
        }
        bench.pass(1);
        bench
    }

    /// With queriers to which all stations have reported.
    pub(crate) fn quiet(unregistered: Unregistered) -> Bench {
        Bench::quiet_with(unregistered, 64)
    }

    pub(crate) fn quiet_with(unregistered: Unregistered, groups_per_port_max: u16) -> Bench {
        let mut bench = Bench::new(unregistered, groups_per_port_max);
        bench.pass(MEMBERSHIP + 1);
        bench.send(UPLINK, &igmp(QUERY, 100, [0; 4], ROUTER));
        bench.send(UPLINK, &mld(MLD_QUERY, 10_000, [0; 16], near(1)));
        bench.pass(12);
        bench
    }

    pub(crate) fn join(&mut self, port: u16, vlans: &VlanRules, role: Role) {
        let vlan = self.switch.join(PortId(port), vlans, role).expect("there is room");
        self.policies[usize::from(port)] = PortPolicy::open().in_vlans(vlan);
    }

    /// Lets time pass, and removes what has aged.
    pub(crate) fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.now.0 += 1;
            self.switch.expire(self.now);
        }
        self.passed_at = self.now.0;
    }

    pub(crate) fn send(&mut self, from: u16, bytes: &[u8]) -> Verdict {
        self.send_and_see(from, bytes).0
    }

    /// The ports that a frame leaves by.
    pub(crate) fn receivers(&mut self, from: u16, bytes: &[u8]) -> Vec<u16> {
        self.send_and_see(from, bytes).1
    }

    pub(crate) fn send_and_see(&mut self, from: u16, bytes: &[u8]) -> (Verdict, Vec<u16>) {
        let mut batch = FrameBatch::new();
        let mut frame = frame(&mut self.pool, bytes, from);
        frame.offload.checksum = self.checksum;
        batch.push(frame);
        let (policy, flood) = (&self.policies[usize::from(from)], &self.flood[usize::from(from)]);
        self.switch.classify(PortId(from), policy, &mut batch, self.now, flood);
        let verdict = batch[0].verdict;
        let scope = self.switch.scope_of(PortId(from), policy, &batch[0], verdict);
        let is_sent = matches!(verdict, Verdict::Flood | Verdict::Routers);
        let receivers = (0..PORTS).filter(|port| is_sent && scope.has(PortId(*port))).collect();
        batch.drain(..).for_each(|frame| self.pool.recycle(frame));
        (verdict, receivers)
    }

    pub(crate) fn multicast(&self, port: u16) -> ringway_switch::MulticastPort {
        self.switch.multicast_port(PortId(port)).expect("multicast is snooped")
    }
}

pub(crate) fn frame(pool: &mut FramePool, bytes: &[u8], from: u16) -> ringway_datapath::Frame {
    let mut frame = pool.take(bytes.len()).expect("there is memory");
    frame.bytes_mut().copy_from_slice(bytes);
    frame.bytes_mut()[11] = u8::try_from(from).expect("a small number") + 1;
    frame
}

pub(crate) fn group_v6(last: u8) -> [u8; 16] {
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, last]
}
