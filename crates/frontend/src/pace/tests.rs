use fastrand::Rng;
use ringway_datapath::{MacAddr, OffloadCaps};
use ringway_vif_shell::{FrontendEnd, FrontendProcess, Note, Released, device};
use ringway_wire::{DomId, EvtchnPort, GrantRef};
use ringway_xenbus::frontend::{Allocated, Allocation, Preferences, QueueCount};
use ringway_xenbus::{Device, EventPorts, Features, Keys, QueueConfig, Vif, XenbusState};
use ringway_xenstore::{Client, LocalStore, LocalTransport, Quota, Watched};

use super::*;

const HOST: DomId = DomId(0);
const GUEST: DomId = DomId(3);

fn state(changes: &mut Changes) {
    changes.has_state_changed = true;
}

fn link(changes: &mut Changes) {
    changes.has_link_changed = true;
}

/// What was noted of vifs and not followed, and how often each was followed.
#[derive(Default)]
struct Seen {
    open: BTreeMap<u32, Changes>,
    followed: BTreeMap<u32, u32>,
}

impl Seen {
    fn followed(&self, handle: u32) -> u32 {
        self.followed.get(&handle).copied().unwrap_or(0)
    }

    fn follow(&mut self, paces: &mut Paces, now: Instant) {
        let open = self.open.keys().copied();
        let at_once: Vec<u32> = open.filter(|handle| self.followed(*handle) < BURST).collect();
        for (handle, changes) in paces.take(now) {
            assert_eq!(self.open.remove(&handle), Some(changes), "vif {handle}");
            *self.followed.entry(handle).or_default() += 1;
        }
        assert!(!at_once.iter().any(|handle| self.open.contains_key(handle)), "one had to wait");
        assert!(paces.due().is_none_or(|due| due <= now + INTERVAL));
        assert_eq!(paces.due().is_some(), !self.open.is_empty());
    }
}

#[test]
fn every_change_is_followed_and_no_vif_more_often_than_it_may_be() {
    for seed in 0..100 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(0x5eed_0300 + seed);
        let (mut paces, mut seen, start) = (Paces::default(), Seen::default(), Instant::now());
        let mut now = start;
        for _ in 0..3000 {
            match random.u8(0..10) {
                0 => now += Duration::from_millis(random.u64(0..150)),
                1 | 2 => seen.follow(&mut paces, now),
                _ => {
                    // The first vif changes most often.
                    let handle = random.u32(0..3) * random.u32(0..2);
                    let record = if random.bool() { state } else { link };
                    paces.note(handle, now, record);
                    record(seen.open.entry(handle).or_default());
                }
            }
        }
        while let Some(due) = paces.due() {
            now = now.max(due);
            seen.follow(&mut paces, now);
        }
        assert!(seen.open.is_empty(), "lost: {:?}", seen.open);
        let intervals = (now - start).as_millis() / INTERVAL.as_millis();
        for (handle, followed) in seen.followed {
            assert!(u128::from(followed) <= u128::from(BURST) + intervals, "vif {handle}");
        }
    }
}

#[test]
fn a_vif_that_is_gone_leaves_nothing_to_its_successor() {
    let (mut paces, now) = (Paces::default(), Instant::now());
    for _ in 0..=BURST {
        paces.note(0, now, state);
        paces.take(now);
    }
    assert_eq!(paces.due(), Some(now + INTERVAL));
    paces.forget(0);
    assert_eq!((paces.due(), paces.take(now + INTERVAL)), (None, vec![]));
    paces.note(0, now, link);
    let changes = Changes { has_link_changed: true, ..Changes::default() };
    assert_eq!(paces.take(now), [(0, changes)]);
}

/// One queue that carries no frames.
struct Process;

impl FrontendProcess for Process {
    fn allocate(&mut self, _: &Keys, _: Allocation) -> Result<Allocated, String> {
        let (tx_ring_ref, rx_ring_ref) = (GrantRef(16), GrantRef(17));
        let events = EventPorts::Single(EvtchnPort(8));
        Ok(vec![QueueConfig { tx_ring_ref, rx_ring_ref, events }].into())
    }

    fn release(&mut self) -> Released {
        Released::Free
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn carrier_down(&mut self) {}

    fn note(&mut self, _: Note<'_>) {}
}

/// The ends of a guest with two vifs, and the session of their backends.
struct Machine {
    host: Client<LocalTransport>,
    guest: Client<LocalTransport>,
    ends: BTreeMap<u32, FrontendEnd>,
    paces: Paces,
}

impl Machine {
    fn start() -> Machine {
        let store = LocalStore::new(Quota::default());
        let mut host = store.connect(HOST).expect("few sessions");
        let mut guest = store.connect(GUEST).expect("few sessions");
        let mut ends = BTreeMap::new();
        for handle in 0..2 {
            let vif = Vif { backend: HOST, frontend: GUEST, handle };
            let made = Device::new(vif, MacAddr([0, 0x16, 0x3e, 0, 0, 3]));
            host.transaction(|tx| device::make(tx, &made)).expect("domain 0 may");
            let rx_copy = format!("{}/feature-rx-copy", vif.backend_dir());
            host.write(&rx_copy, "1").expect("domain 0 may");
            let features = Features::from(OffloadCaps::ALL);
            let preferences = Preferences { queues: QueueCount::AtMost(1), features };
            let mut end = FrontendEnd::new(vif, preferences);
            end.watch(&mut guest).expect("the guest may");
            end.start(&mut guest, &mut Process, XenbusState::Initialising).expect("the store");
            ends.insert(handle, end);
        }
        Machine { host, guest, ends, paces: Paces::default() }
    }

    /// A backend writes its state.
    fn set(&mut self, handle: u32, state: &str) {
        let node = self.ends[&handle].vif().backend_state();
        self.host.write(&node, state).expect("domain 0 may");
    }

    /// A turn of the guest; returns the vifs that were followed.
    fn turn(&mut self, now: Instant) -> Vec<u32> {
        while let Some(Watched::Node(event)) = self.guest.next_watch().expect("the store") {
            self.paces.note(event.token.parse().expect("a handle"), now, state);
        }
        let due: Vec<u32> = self.paces.take(now).into_iter().map(|(handle, _)| handle).collect();
        for handle in &due {
            let end = self.ends.get_mut(handle).expect("it is served");
            end.backend_changed(&mut self.guest, &mut Process).expect("the store");
        }
        due
    }
}

#[test]
fn a_storm_of_one_backend_delays_no_other_vif_and_its_last_state_counts() {
    const STORM_MS: u32 = 1000;
    let (mut machine, start) = (Machine::start(), Instant::now());
    let mut random = Rng::with_seed(0x5eed_0301);
    let mut followed = 0;
    for elapsed_ms in 0..STORM_MS {
        let now = start + Duration::from_millis(elapsed_ms.into());
        // Around the end of the storm's burst, and long after it.
        let honest = match elapsed_ms {
            19 | 21 | 900 => Some("2"),
            20 | 22 | 901 => Some("4"),
            500 => Some("6"),
            _ => None,
        };
        if let Some(state) = honest {
            machine.set(1, state);
        }
        machine.set(0, &random.u8(0..9).to_string());
        let turn = machine.turn(now);
        followed += turn.iter().filter(|handle| **handle == 0).count();
        assert!(turn.len() <= 2, "each once: {turn:?}");
        assert!(honest.is_none() || turn.contains(&1), "at {elapsed_ms} ms: {turn:?}");
    }
    assert!(machine.ends[&1].is_connected());
    let most = BURST + STORM_MS / 100;
    assert!(u32::try_from(followed).is_ok_and(|count| count <= most), "{followed}, not {most}");

    let mut now = start + Duration::from_millis(STORM_MS.into());
    for state in ["6", "2", "4"] {
        machine.set(0, state);
        machine.turn(now);
        while let Some(due) = machine.paces.due() {
            now = due;
            machine.turn(now);
        }
    }
    assert!(machine.ends[&0].is_connected(), "{:?}", machine.ends[&0].error());
}
