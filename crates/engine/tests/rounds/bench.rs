//! One engine, its queues and its time, all controlled by a test.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use ringway_datapath::{
    Budget, Checksum, DropReason, End, FlowHash, Frame, FrameBatch, FramePool, FrameQueue, Gso,
    MacAddr, OffloadCaps, PeerProgress, Pending, PoolBudget, PortQueue, Probe, QueueCounters,
    QueueDown, QueueTraits, Receipts, Result, VlanRules, Woken,
};
use ringway_engine::{
    Announcement, Attached, AttachedParts, BridgePort, Capture, Directory, Engine, Forwarding,
    IfIdle, Inbox, Limits, PortSteering, Roster, SlotId, Stations, Wait, Weight,
};
use ringway_steering::FlowKey;
use ringway_switch::fdb::Assigned;
use ringway_switch::{
    FloodBudget, FloodLimit, MirrorConfig, PortId, PortPolicy, Role, Switch, SwitchConfig, Ticks,
};

use crate::lent::{HEAD_LEN, Lender, lend};

/// Lengths that a station keeps.
const LENS_MAX: usize = 1000;
/// What a round costs in simulated time.
const ROUND: Duration = Duration::from_micros(20);
pub(crate) const ONE: Stations = Stations::One(Weight::ONE);

/// The traits of a ring.
pub(crate) const TRAITS: QueueTraits = QueueTraits::in_memory(OffloadCaps::ALL);

/// The traits of a TAP device.
pub(crate) const DEVICE: QueueTraits =
    QueueTraits { probe: Probe::SystemCall, retry: Some(Duration::from_millis(50)), ..TRAITS };

/// The far side of a queue.
#[derive(Debug, Default)]
pub(crate) struct Far {
    /// Frames to come in: the destination and the length of each.
    pub(crate) script: VecDeque<(u8, usize)>,
    /// Number of flows to which frames belong, in turn; 0 for one.
    pub(crate) flows: u16,
    /// Lengths of the newest frames that left.
    pub(crate) lens: VecDeque<usize>,
    /// Frames that come after it was last polled, and before it is armed.
    pub(crate) late: VecDeque<(u8, usize)>,
    /// Frames that it hands over at once at most, as a device that merges what it reads; 0 for all.
    pub(crate) at_once: usize,
    /// The script begins again when it ends.
    pub(crate) is_endless: bool,
    /// Frames that may still leave.
    pub(crate) room: usize,
    /// The engine can see how many.
    pub(crate) shows_room: bool,
    /// Frames and bytes that left.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// How often it was polled for frames.
    pub(crate) asked: u64,
    /// Frames and bytes that came in.
    pub(crate) taken: u64,
    pub(crate) taken_bytes: u64,
    /// The VLAN in the tag of incoming frames.
    pub(crate) tag: Option<u16>,
    /// The VLAN in a second tag behind it.
    pub(crate) inner_tag: Option<u16>,
    /// The last frame that left, without its addresses.
    pub(crate) last: Vec<u8>,
    /// The next call reports a peer fault.
    pub(crate) fails: bool,
    /// The next call that takes frames in reports a fault behind them.
    pub(crate) breaks: bool,
    /// The segmentation that incoming frames ask for.
    pub(crate) gso: Option<Gso>,
    /// Whether the ends of incoming frames are in pages.
    pub(crate) is_in_pages: bool,
    /// The peer that lends the ends of incoming frames.
    pub(crate) lender: Option<Arc<Lender>>,
    /// The hash that the last frame that left has for its receiver.
    pub(crate) last_hash: Option<FlowHash>,
    /// Frames that left with a lent end.
    pub(crate) lent: u64,
    /// The longest frame that left without one, without its addresses.
    pub(crate) longest: Vec<u8>,
    /// What follows the headers of the TCP segments that left without a lent end, in order.
    pub(crate) stream: Vec<u8>,
    /// The flow and the number of each frame that left and that the guest has not taken, in order;
    /// `None` if it takes all at once.
    pub(crate) ring: Option<VecDeque<(u16, u16)>>,
    wants_room: bool,
}

/// The byte at an offset after the header of a frame in pages.
pub(crate) fn byte_at(offset: usize) -> u8 {
    u8::try_from(offset % 251).expect("below it")
}

/// Leaves only the first page of a frame in its buffer.
fn put_in_pages(frame: &mut Frame) {
    let bytes = frame.bytes_mut();
    bytes.iter_mut().enumerate().skip(14).for_each(|(offset, byte)| *byte = byte_at(offset));
    let end = bytes[4096..].to_vec();
    bytes[4096..].fill(0);
    frame.set_len(4096);
    let len = end.len();
    let receipt = Receipts::new(1, Waker::noop()).issue(0);
    let mut pages = End::kept(Arc::new(end), receipt);
    assert!(pages.push(0, len));
    frame.set_end(pages);
}

/// The engine's end.
#[derive(Debug)]
pub(crate) struct TestQueue {
    far: Arc<Mutex<Far>>,
    traits: QueueTraits,
    number: u8,
    /// The last ingress with a budget did not find the queue empty.
    may_have_more: bool,
}

impl TestQueue {
    /// The queue of a station with this number, and its far side, which takes all frames.
    pub(crate) fn with_far(number: u8, traits: QueueTraits) -> (TestQueue, Arc<Mutex<Far>>) {
        let far = Arc::new(Mutex::new(Far { room: usize::MAX, ..Far::default() }));
        (TestQueue { far: Arc::clone(&far), traits, number, may_have_more: false }, far)
    }

    fn far(&self) -> Result<MutexGuard<'_, Far>> {
        let far = self.far.lock().expect("no test panics with the lock");
        match far.fails {
            true => Err(QueueDown::Host(std::io::ErrorKind::BrokenPipe.into())),
            false => Ok(far),
        }
    }
}

impl PortQueue for TestQueue {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        let mut may_have_more = true;
        let mut far = self.far()?;
        far.asked += 1;
        let mut bytes = 0;
        for taken in 0..into.remaining_capacity().min(budget.frames) {
            if bytes >= budget.bytes || (taken > 0 && taken == far.at_once) {
                break;
            }
            let next = far.script.front().copied();
            let Some((to, len)) = next else {
                may_have_more = false;
                break;
            };
            let Some(mut frame) = pool.take(len) else { break };
            far.script.pop_front();
            if far.is_endless {
                far.script.push_back((to, len));
            }
            let head = frame.bytes_mut();
            head[..6].copy_from_slice(&address(to).0);
            head[6..12].copy_from_slice(&address(self.number).0);
            head[12..14].copy_from_slice(&[0x88, 0xb5]);
            if far.flows > 0 {
                write_flow(head, far.flows, far.taken);
            }
            if let Some(tag) = far.tag {
                head[12..14].copy_from_slice(&[0x81, 0]);
                head[14..16].copy_from_slice(&tag.to_be_bytes());
                head[16..18].copy_from_slice(&[0x88, 0xb5]);
                if let Some(tag) = far.inner_tag {
                    head[16..18].copy_from_slice(&[0x81, 0]);
                    head[18..20].copy_from_slice(&tag.to_be_bytes());
                    head[20..22].copy_from_slice(&[0x88, 0xb5]);
                }
            }
            frame.offload.gso = far.gso;
            if far.gso.is_some() {
                frame.offload.checksum = Checksum::Blank;
            }
            if far.is_in_pages {
                put_in_pages(&mut frame);
            }
            if let Some(lender) = far.lender.as_ref().filter(|_| len > HEAD_LEN) {
                lend(&mut frame, lender, pool);
            }
            bytes += frame.work();
            far.taken += 1;
            far.taken_bytes += u64::try_from(len).expect("frames are short");
            into.push(frame);
        }
        let breaks = far.breaks;
        drop(far);
        self.may_have_more = may_have_more;
        match breaks {
            true => Err(QueueDown::Host(std::io::ErrorKind::BrokenPipe.into())),
            false => Ok(()),
        }
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        self.far().map(drop)
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        let mut far = self.far()?;
        while far.room > 0 {
            let Some(frame) = from.pop_front() else { break };
            far.room = if far.room == usize::MAX { far.room } else { far.room - 1 };
            far.received += 1;
            if let Some(ring) = &mut far.ring {
                ring.extend(flow_of(frame.bytes()));
            }
            far.last = frame.bytes()[12..].to_vec();
            far.last_hash = frame.flow;
            far.lent += u64::from(frame.is_lent());
            if !frame.is_lent() && far.last.len() > far.longest.len() {
                far.longest = far.last.clone();
            }
            if far.last.get(11) == Some(&6) && !frame.is_lent() {
                far.stream.extend_from_slice(&frame.bytes()[54..]);
            }
            far.received_bytes += u64::try_from(frame.len()).expect("frames are short");
            far.lens.push_back(frame.len());
            if far.lens.len() > LENS_MAX {
                far.lens.pop_front();
            }
            pool.recycle(frame);
        }
        far.wants_room = !from.is_empty();
        Ok(())
    }

    fn arm(&mut self) -> Result<Pending> {
        let mut far = self.far()?;
        let late = std::mem::take(&mut far.late);
        far.script.extend(late);
        if self.traits.probe == Probe::SystemCall {
            // Like a TAP device: the descriptor reports every frame that arrives at an empty queue.
            return Ok(if self.may_have_more { Pending::Work } else { Pending::Nothing });
        }
        let is_idle = far.script.is_empty() && !(far.wants_room && far.room > 0);
        Ok(if is_idle { Pending::Nothing } else { Pending::Work })
    }

    fn woken(&mut self, _: Woken) -> Result {
        self.far().map(drop)
    }

    fn describe(&self) -> QueueTraits {
        self.traits
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        let mut far = self.far().ok()?;
        far.wants_room |= far.shows_room && far.room == 0;
        far.shows_room.then_some(far.room)
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        let far = self.far().ok()?;
        let filled = u16::try_from(far.received % (1 << 16)).expect("16 bits");
        let untaken = far.ring.as_ref().map_or(0, VecDeque::len);
        let untaken = u16::try_from(untaken).expect("tests are short");
        Some(PeerProgress::new(filled, SLOTS - untaken, SLOTS))
    }
}

/// Of a ring that is never full.
const SLOTS: u16 = 1 << 15;

/// Makes the frame with this number a UDP packet over IPv4, in one of the flows in turn.
fn write_flow(frame: &mut [u8], flows: u16, number: u64) {
    let flow = u16::try_from(number % u64::from(flows)).expect("below it");
    let number = u16::try_from(number % (1 << 16)).expect("16 bits");
    let len = u16::try_from(frame.len() - 14).expect("frames are short");
    frame[12..42].fill(0);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    frame[18..20].copy_from_slice(&number.to_be_bytes());
    frame[23] = 17;
    frame[34..36].copy_from_slice(&flow.to_be_bytes());
}

/// The flow and the number of a frame that has them.
fn flow_of(frame: &[u8]) -> Option<(u16, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    (word(12)? == 0x0800).then_some((word(34)?, word(18)?))
}

/// The number of a group, in place of that of a station.
pub(crate) const GROUP: u8 = 254;

/// The address of a station, of the [`GROUP`], or broadcast for 255.
pub(crate) fn address(station: u8) -> MacAddr {
    match station {
        255 => MacAddr([0xff; 6]),
        GROUP => MacAddr([0x33, 0x33, 0, 0, 0, 1]),
        _ => MacAddr([2, 0, 0, 0, 0, station]),
    }
}

/// A queue as a test sees it.
pub(crate) struct Station {
    far: Arc<Mutex<Far>>,
    pub(crate) counters: Arc<QueueCounters>,
    id: SlotId,
}

impl Station {
    /// That of a queue in this place.
    pub(crate) fn new(far: Arc<Mutex<Far>>, counters: Arc<QueueCounters>, id: SlotId) -> Station {
        Station { far, counters, id }
    }

    pub(crate) fn far(&self) -> MutexGuard<'_, Far> {
        self.far.lock().expect("no test panics with the lock")
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.dropped.snapshot().find(|(it, _)| *it == reason).map_or(0, |(_, n)| n)
    }
}

pub(crate) struct Bench {
    pub(crate) engine: Engine<TestQueue>,
    roster: Roster,
    directory: Directory,
    inbox: Arc<Inbox>,
    switch: Arc<Switch>,
    pub(crate) now: Instant,
    pub(crate) budget: Arc<PoolBudget>,
}

impl Bench {
    pub(crate) fn new(memory: usize) -> Bench {
        let now = Instant::now();
        let inbox = Arc::new(Inbox::new(Waker::noop().clone()));
        let budget = PoolBudget::new(memory);
        let pool = FramePool::new(Arc::clone(&budget));
        let mut roster = Roster::default();
        roster.add_engine();
        let switch = Arc::new(Switch::new(SwitchConfig::unlimited(64, 16, 1)));
        Bench {
            engine: Engine::new(0, Arc::clone(&inbox), pool, now, FlowKey::new([1, 2])),
            roster,
            directory: Directory::default(),
            inbox,
            switch,
            now,
            budget,
        }
    }

    /// Attaches a port with this number of queues, whose station the switch knows.
    pub(crate) fn port(&mut self, number: u8, queues: u16, stations: Stations) -> Vec<Station> {
        self.port_with(number, queues, stations, TRAITS)
    }

    pub(crate) fn port_with(
        &mut self,
        number: u8,
        queues: u16,
        stations: Stations,
        traits: QueueTraits,
    ) -> Vec<Station> {
        let port = PortId(number.into());
        self.switch.fdb().learn(address(number), port, Ticks(0));
        let forwarding = Forwarding::Switch(Arc::clone(&self.switch));
        let attached =
            self.attach(number, queues, stations, traits, &forwarding, PortPolicy::open());
        self.publish();
        attached
    }

    /// Attaches a port with this policy, whose station the switch does not know.
    pub(crate) fn port_of(&mut self, number: u8, queues: u16, policy: PortPolicy) -> Vec<Station> {
        let forwarding = Forwarding::Switch(Arc::clone(&self.switch));
        let attached = self.attach(number, queues, ONE, TRAITS, &forwarding, policy);
        self.publish();
        attached
    }

    /// A port with one queue, in VLANs.
    pub(crate) fn port_in(&mut self, number: u8, rules: &VlanRules) -> Station {
        let port = PortId(number.into());
        let vlan = self.switch.join(port, rules, Role::Ordinary).expect("there is room");
        let own = [address(number)];
        let assigned = Assigned { own: &own, addresses_max: 1, ..Assigned::default() };
        assert_eq!(self.switch.assign(port, &assigned, Ticks(0)), []);
        let policy = PortPolicy::open().in_vlans(vlan);
        let forwarding = Forwarding::Switch(Arc::clone(&self.switch));
        let attached = self.attach(number, 1, ONE, TRAITS, &forwarding, policy).remove(0);
        self.publish();
        attached
    }

    /// Has the switch copy frames that enter by some ports and leave by others to an output, which
    /// has no other traffic.
    pub(crate) fn mirror(&mut self, output: u8, ingress: &[u8], egress: &[u8]) {
        let port = |number: &u8| PortId((*number).into());
        let output = port(&output);
        let rules = VlanRules::default();
        self.switch.join(output, &rules, Role::Mirror).expect("there is room");
        let [ingress, egress] =
            [ingress, egress].map(|ports| ports.iter().map(port).collect::<Vec<_>>());
        self.switch.mirrors().set(&[MirrorConfig { output, ingress, egress }]);
    }

    /// Attaches a port whose frames all go to another, and leaves the directory as it was.
    pub(crate) fn patched_port(&mut self, number: u8, queues: u16, to: u8) -> Vec<Station> {
        let forwarding = Forwarding::Patch(PortId(to.into()));
        self.attach(number, queues, ONE, TRAITS, &forwarding, PortPolicy::open())
    }

    /// Attaches a port, and a device on a bridge to which it is patched, whose number is higher by
    /// ten. Returns the queues of both.
    pub(crate) fn bridged(&mut self, number: u8, queues: u16) -> [Vec<Station>; 2] {
        let device = number + 10;
        let at = BridgePort { bridge: "br0".into(), address: address(number) };
        self.roster.join_bridge(PortId(device.into()), at);
        let ends = [
            (number, device, ONE, TRAITS),
            (device, number, Stations::Bridge(Weight::ONE), DEVICE),
        ];
        let ends = ends.map(|(from, to, stations, traits)| {
            let forwarding = Forwarding::Patch(PortId(to.into()));
            self.attach(from, queues, stations, traits, &forwarding, PortPolicy::open())
        });
        self.publish();
        ends
    }

    /// Lets the guest of a port choose the queues of its frames.
    pub(crate) fn let_steer(&mut self, number: u8) -> Arc<PortSteering> {
        let steering = Arc::new(PortSteering::default());
        self.roster.let_steer(PortId(number.into()), Arc::clone(&steering));
        self.publish();
        steering
    }

    /// Lets the flows of a port leave queues that cannot keep up.
    pub(crate) fn let_balance(&mut self, number: u8, queues: u16) -> Arc<PortSteering> {
        let steering = Arc::new(PortSteering::balanced(queues));
        self.roster.let_steer(PortId(number.into()), Arc::clone(&steering));
        self.publish();
        steering
    }

    /// Has flows leave queues that cannot keep up. Returns whether some begin to.
    pub(crate) fn balance_flows(&mut self) -> bool {
        let begun = self.roster.begin_departures();
        let has_begun = !begun.is_empty();
        for (address, departure) in begun {
            self.engine.relieve(address.slot, departure);
        }
        has_begun
    }

    /// Shows a port in the directory no more.
    pub(crate) fn forget_port(&mut self, number: u8) {
        self.roster.remove(PortId(number.into()));
        self.publish();
    }

    /// Shows all ports in the directory.
    pub(crate) fn publish(&mut self) {
        let version = self.directory.version + 1;
        self.directory = self.roster.directory(version, vec![Arc::clone(&self.inbox)]);
    }

    fn attach(
        &mut self,
        number: u8,
        queues: u16,
        stations: Stations,
        traits: QueueTraits,
        forwarding: &Forwarding,
        policy: PortPolicy,
    ) -> Vec<Station> {
        let (port, policy) = (PortId(number.into()), Arc::new(policy));
        let attach = |index| {
            let address = self.roster.place(port, index, None, 0);
            let (queue, far) = TestQueue::with_far(number, traits);
            let counters: Arc<QueueCounters> = Arc::default();
            let parts = AttachedParts {
                id: address.slot,
                port_id: port,
                queue_index: index,
                queue_count: queues,
                queue,
                forwarding: forwarding.clone(),
                policy: Arc::clone(&policy),
                flood: Arc::new(FloodBudget::new(FloodLimit::NONE, Ticks(0))),
                counters: Arc::clone(&counters),
                gauge: address.gauge,
                limits: Limits::default(),
                stations,
                arrivals: self.roster.arrivals(port),
            };
            self.engine.attach(Attached::new(parts, self.now));
            Station::new(far, counters, address.slot)
        };
        (0..queues).map(attach).collect()
    }

    pub(crate) fn round(&mut self) -> Wait {
        self.round_that(IfIdle::Sleep)
    }

    /// A round that does this if it finds no work.
    pub(crate) fn round_that(&mut self, if_idle: IfIdle) -> Wait {
        let wait = self.engine.round(self.now, &self.directory, if_idle);
        self.engine.visit_frames(&mut |place, frame| {
            assert!(!frame.is_lent(), "{place:?} has a lent frame after the round");
        });
        self.now += ROUND;
        wait
    }

    /// Runs rounds for `time`, and `each` before each of them.
    pub(crate) fn run(&mut self, time: Duration, mut each: impl FnMut(Instant)) {
        let end = self.now + time;
        while self.now < end {
            each(self.now);
            self.round();
        }
    }

    /// An event of a queue comes.
    pub(crate) fn ready(&mut self, station: &Station) {
        self.engine.ready(station.id.index, Woken::Unknown);
    }

    /// Detaches a queue, as when its guest disconnects. Its frames are lost.
    pub(crate) fn detach(&mut self, station: &Station) {
        let attached = self.engine.detach(station.id).expect("it is there");
        attached.into_queue(&mut FramePool::new(Arc::clone(&self.budget)));
    }

    pub(crate) fn announce(&mut self, station: &Station, announcement: &Arc<Announcement>) {
        self.engine.announce(station.id, Arc::clone(announcement));
    }

    pub(crate) fn limit(&mut self, station: &Station, limits: &Limits) {
        self.engine.limit(station.id, limits.clone());
    }

    pub(crate) fn capture(&mut self, station: &Station, capture: &Arc<Capture>) {
        self.engine.capture(station.id, capture);
    }

    pub(crate) fn set_weight(&mut self, station: &Station, weight: Weight) {
        self.engine.set_weight(station.id, weight);
    }
}
