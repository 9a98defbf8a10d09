//! XenStore keys for the handshake: both ends, over directories in which a toolstack, a guest or a
//! hostile peer writes anything at any time. Neither end panics, runs forever, or attaches
//! something that it did not offer.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::fuzz_target;
use ringway_fuzz::Input;
use ringway_wire::netif::HEADROOM_MAX;
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::frontend::{Preferences, QueueCount};
use ringway_xenbus::{
    EventPorts, Features, FrontendConfig, Hotplug, KeyChange, Keys, Offer, Offered, QueueConfig,
    Reconnects, Vif, XenbusState, backend, frontend,
};

const BACK_DIR: &str = "/local/domain/0/backend/vif/7/0";
const FRONT_DIR: &str = "/local/domain/7/device/vif/0";
/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// The most handshake inputs that follow from one step, because an action requires the next.
const FOLLOWING_MAX: usize = 8;
/// The most actions of one handshake input.
const ACTIONS_MAX: usize = 32;
const QUEUES_MAX: u16 = 8;

/// Keys with a meaning.
const KEYS: [&str; 46] = [
    "state",
    "online",
    "frontend",
    "frontend-id",
    "backend",
    "backend-id",
    "handle",
    "mac",
    "mtu",
    "error",
    "type",
    "bridge",
    "script",
    "vifname",
    "rate",
    "hotplug-status",
    "hotplug-error",
    "ringway-max-queues",
    "ringway-completion",
    "feature-sg",
    "feature-gso-tcpv4",
    "feature-gso-tcpv6",
    "feature-no-csum-offload",
    "feature-ipv6-csum-offload",
    "feature-rx-copy",
    "feature-split-event-channels",
    "feature-ctrl-ring",
    "ringway-control-ring",
    "feature-multicast-control",
    "ringway-multicast-control",
    "ringway-staging",
    "request-multicast-control",
    "feature-xdp-headroom",
    "xdp-headroom",
    "multi-queue-max-queues",
    "request-rx-copy",
    "feature-rx-notify",
    "multi-queue-num-queues",
    "tx-ring-ref",
    "rx-ring-ref",
    "event-channel",
    "event-channel-tx",
    "ctrl-ring-ref",
    "event-channel-ctrl",
    "queue-0/tx-ring-ref",
    "queue-1/event-channel",
];
/// Values that are valid for at least one key.
const VALUES: [&str; 18] = [
    "",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "256",
    "65536",
    "4294967295",
    "4294967296",
    "-1",
    "connected",
    "00:16:3e:00:00:01",
    "10000000,50000",
];

type Directory = BTreeMap<String, String>;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.read_all();
});

struct World {
    back: backend::Handshake,
    front: frontend::Handshake,
    back_dir: Directory,
    front_dir: Directory,
    /// The most queues that the backend has offered.
    offered: u16,
    /// The most queues whose keys it reads.
    readable: u16,
    /// Whether rings are attached, according to the backend's actions.
    is_attached: bool,
    /// Whether queues are granted, according to the frontend's actions.
    is_granted: bool,
    has_back_finished: bool,
}

impl World {
    fn new(input: &mut Input<'_>) -> World {
        let offer = Offer {
            queues_max: input.u16() % (QUEUES_MAX + 1),
            split_event_channels: input.flag(),
            control_ring: input.flag(),
            multicast_control: input.flag(),
            xdp_headroom: input.flag(),
            features: features(input),
        };
        let hotplug = hotplug(input);
        let preferences = preferences(input);
        let mut world = World {
            back: backend::Handshake::new(offer, hotplug),
            front: frontend::Handshake::new(preferences),
            back_dir: Directory::new(),
            front_dir: Directory::new(),
            offered: offer.queues_max.max(1),
            readable: 0,
            is_attached: false,
            is_granted: false,
            has_back_finished: false,
        };
        let (own, peer) = (state(input), state(input));
        let queues_max = input.flag().then(|| input.u16() % (QUEUES_MAX + 1));
        world.offered = world.offered.max(queues_max.unwrap_or(0));
        let reconnects = input.choose(&[Reconnects::Automatically, Reconnects::Never]);
        let (split_event_channels, control_ring) = (input.flag(), input.flag());
        let (multicast_control, xdp_headroom) = (input.flag(), input.flag());
        let offered = Offered {
            queues_max,
            split_event_channels,
            control_ring,
            multicast_control,
            xdp_headroom,
        };
        let start = backend::Input::Start { own, peer, offered, reconnects };
        world.feed_backend(start, input);
        let (own, peer) = (state(input), state(input));
        world.feed_frontend(frontend::Input::Start { own, peer }, input);
        world
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0 => write_offer(input, &mut self.back_dir),
            1 => write_keys_of_guest(input, &mut self.front_dir),
            2 => {
                let (key, value) = (key(input), value(input));
                self.directory(input).insert(key, value);
            }
            3 => {
                let key = key(input);
                self.directory(input).remove(&key);
            }
            4..=6 => {
                let state = XenbusState::parse(self.front_dir.get("state").map(String::as_str));
                self.feed_backend(backend::Input::FrontendState(state), input);
            }
            7..=9 => {
                let state = XenbusState::parse(self.back_dir.get("state").map(String::as_str));
                self.feed_frontend(frontend::Input::BackendState(state), input);
            }
            10..=12 => {
                let happened = back_input(input, &self.front_dir);
                if let backend::Input::OfferChanged { queues_max, .. } = happened {
                    self.offered = self.offered.max(queues_max);
                }
                self.feed_backend(happened, input);
            }
            _ => {
                let happened = front_input(input, &self.back_dir);
                self.feed_frontend(happened, input);
            }
        }
    }

    fn directory(&mut self, input: &mut Input<'_>) -> &mut Directory {
        if input.flag() { &mut self.front_dir } else { &mut self.back_dir }
    }

    /// Carries out the backend's actions, and feeds it their results.
    fn feed_backend(&mut self, first: backend::Input, input: &mut Input<'_>) {
        let mut next = Some(first);
        for _ in 0..FOLLOWING_MAX {
            let Some(input_now) = next.take() else { return };
            let actions = self.back.handle(input_now);
            assert!(actions.len() <= ACTIONS_MAX, "{} actions", actions.len());
            assert!(!self.has_back_finished || actions.is_empty(), "an action after the last");
            for action in actions {
                next = self.back_action(action, input).or(next);
            }
        }
        assert!(next.is_none(), "the backend continues by itself");
    }

    fn back_action(
        &mut self,
        action: backend::Action,
        input: &mut Input<'_>,
    ) -> Option<backend::Input> {
        match action {
            backend::Action::Write(changes, state) => write(changes, state, &mut self.back_dir),
            backend::Action::ReadFrontend { queues_max } => {
                assert!(queues_max <= self.offered, "{queues_max} queues were never offered");
                self.readable = queues_max;
                return Some(backend::Input::FrontendKeys(keys(FRONT_DIR, &self.front_dir)));
            }
            // What is read may come at once, or later, as any other input.
            backend::Action::ReadHeadroom if input.flag() => {
                return Some(backend::Input::Headroom(keys(FRONT_DIR, &self.front_dir)));
            }
            backend::Action::ReadHeadroom => {}
            backend::Action::SetHeadroom(headroom) => {
                assert!(self.is_attached && headroom <= HEADROOM_MAX);
            }
            // The keys come later, as any other input.
            backend::Action::Retry { queues_max, .. } => {
                assert!(queues_max <= self.offered, "{queues_max} queues were never offered");
                self.readable = queues_max;
            }
            backend::Action::Attach(config, _) => {
                assert!(!self.is_attached, "attached twice");
                self.check(&config);
                let outcome = match input.u8() % 8 {
                    0 => Err(backend::NotAttached::Refused("no grant".to_owned())),
                    1 => Err(backend::NotAttached::NoResources("no memory".to_owned())),
                    _ => Ok(()),
                };
                self.is_attached = outcome.is_ok();
                return Some(backend::Input::Attached(outcome));
            }
            backend::Action::Detach => self.is_attached = false,
            backend::Action::Finished => self.has_back_finished = true,
            backend::Action::AwaitHotplug
            | backend::Action::ReportError(_)
            | backend::Action::ClearError => {}
        }
        None
    }

    /// What is attached was offered, and no two rings or ports are equal.
    fn check(&self, config: &FrontendConfig) {
        let count = config.queues.len();
        assert!((1..=usize::from(self.readable)).contains(&count), "{count} queues are attached");
        assert!(config.headroom <= HEADROOM_MAX, "{} bytes of headroom", config.headroom);
        let mut refs = BTreeSet::new();
        let mut ports = BTreeSet::new();
        for queue in &config.queues {
            assert!(refs.insert(queue.tx_ring_ref.0) && refs.insert(queue.rx_ring_ref.0));
            match queue.events {
                EventPorts::Single(port) => assert!(ports.insert(port.0)),
                EventPorts::Split { tx, rx } => {
                    assert!(ports.insert(tx.0) && ports.insert(rx.0));
                }
            }
        }
        if let Some(control) = config.control {
            assert!(refs.insert(control.ring_ref.0) && ports.insert(control.event.0));
        }
    }

    fn feed_frontend(&mut self, first: frontend::Input, input: &mut Input<'_>) {
        let mut next = Some(first);
        for _ in 0..FOLLOWING_MAX {
            let Some(input_now) = next.take() else { return };
            let was_finished = self.front.is_finished();
            let actions = self.front.handle(input_now);
            assert!(actions.len() <= ACTIONS_MAX, "{} actions", actions.len());
            assert!(!was_finished || actions.is_empty(), "an action after the last");
            for action in actions {
                next = self.front_action(action, input).or(next);
            }
        }
        assert!(next.is_none(), "the frontend continues by itself");
    }

    fn front_action(
        &mut self,
        action: frontend::Action,
        input: &mut Input<'_>,
    ) -> Option<frontend::Input> {
        match action {
            frontend::Action::Write(changes, state) => write(changes, state, &mut self.front_dir),
            frontend::Action::ReadBackend => {
                return Some(frontend::Input::BackendKeys(keys(BACK_DIR, &self.back_dir)));
            }
            frontend::Action::Allocate(allocation) => {
                assert!(!self.is_granted, "granted twice");
                let is_refused = input.u8() % 8 == 0;
                self.is_granted = !is_refused;
                let queues = allocation.queues.min(QUEUES_MAX);
                let split = allocation.split_event_channels;
                let made = (0..u32::from(queues)).map(|index| queue(index, split));
                let made: Vec<QueueConfig> = made.collect();
                return Some(frontend::Input::Allocated(match is_refused {
                    true => Err("no page left".to_owned()),
                    false => Ok(made.into()),
                }));
            }
            frontend::Action::Release => self.is_granted = false,
            frontend::Action::Carrier(_)
            | frontend::Action::ReportError(_)
            | frontend::Action::Finished => {}
        }
        None
    }

    /// Calls every parser of keys that is not part of a handshake.
    fn read_all(&self) {
        for (dir, values) in [(BACK_DIR, &self.back_dir), (FRONT_DIR, &self.front_dir)] {
            let keys = keys(dir, values);
            let _ = (keys.mac(), keys.mtu_configured(), keys.rate(), keys.obsolete());
            let _ = (keys.wants_control_ring(), keys.wants_multicast_control());
            assert!(keys.headroom().is_ok_and(|it| it <= HEADROOM_MAX) || keys.headroom().is_err());
            let _ = (keys.is_online(), keys.script(), keys.bridge(), Hotplug::read(&keys));
            assert!(keys.mtu().is_ok_and(|mtu| mtu > 0) || keys.mtu().is_err());
            assert!(keys.max_queues_limit().ok().flatten().is_none_or(|wanted| wanted > 0));
            assert!(keys.error().is_none_or(|error| error.chars().all(|c| !c.is_control())));
            let name = keys.device_name().ok().flatten();
            assert!(name.is_none_or(|name| (1..=15).contains(&name.len())), "{name:?}");
            for value in values.values() {
                let _ = Vif::from_backend_path(value);
            }
        }
    }
}

fn state(input: &mut Input<'_>) -> XenbusState {
    input.choose(&XenbusState::ALL)
}

fn features(input: &mut Input<'_>) -> Features {
    let bits = input.u8();
    Features {
        scatter_gather: bits & 1 != 0,
        checksum_v4: bits & 2 != 0,
        checksum_v6: bits & 4 != 0,
        gso_v4: bits & 8 != 0,
        gso_v6: bits & 16 != 0,
    }
}

fn preferences(input: &mut Input<'_>) -> Preferences {
    let count = input.u16() % (QUEUES_MAX + 1);
    let queues = if input.flag() { QueueCount::AtMost(count) } else { QueueCount::Exactly(count) };
    Preferences { queues, features: features(input) }
}

fn hotplug(input: &mut Input<'_>) -> Hotplug {
    match input.u8() % 4 {
        0 => Hotplug::Absent,
        1 => Hotplug::Pending,
        2 => Hotplug::Connected,
        _ => Hotplug::Failed(input.text().to_owned()),
    }
}

fn back_input(input: &mut Input<'_>, front_dir: &Directory) -> backend::Input {
    match input.u8() % 13 {
        0 => backend::Input::Refused("the name is taken".to_owned()),
        1..=2 => backend::Input::FrontendState(state(input)),
        3..=4 => backend::Input::FrontendKeys(keys(FRONT_DIR, front_dir)),
        5 => backend::Input::PeerFault("a producer overran".to_owned()),
        6 => backend::Input::OfferChanged {
            queues_max: input.u16() % (QUEUES_MAX + 1),
            reconnect: input.choose(&[backend::Reconnect::Now, backend::Reconnect::Later]),
        },
        7..=8 => backend::Input::Hotplug(hotplug(input)),
        9 => backend::Input::AskedToClose,
        10 => backend::Input::Offline,
        12 => backend::Input::Headroom(keys(FRONT_DIR, front_dir)),
        _ => backend::Input::Gone,
    }
}

fn front_input(input: &mut Input<'_>, back_dir: &Directory) -> frontend::Input {
    match input.u8() % 11 {
        0..=2 => frontend::Input::BackendState(state(input)),
        3..=4 => frontend::Input::BackendKeys(keys(BACK_DIR, back_dir)),
        5..=6 => frontend::Input::Reconnect(preferences(input)),
        7 => frontend::Input::Fail("the device is gone".to_owned()),
        8 => frontend::Input::Stop,
        10 => frontend::Input::Headroom(input.u16()),
        _ => frontend::Input::Gone,
    }
}

fn queue(index: u32, split: bool) -> QueueConfig {
    let first = 100 + 10 * index;
    QueueConfig {
        tx_ring_ref: GrantRef(first),
        rx_ring_ref: GrantRef(first + 1),
        events: match split {
            true => EventPorts::Split { tx: EvtchnPort(first), rx: EvtchnPort(first + 1) },
            false => EventPorts::Single(EvtchnPort(first)),
        },
    }
}

fn key(input: &mut Input<'_>) -> String {
    match input.u8() % 8 {
        0 => input.text().to_owned(),
        1 => {
            let name = input.choose(&["tx-ring-ref", "rx-ring-ref", "event-channel"]);
            format!("queue-{}/{name}", input.u8() % 10)
        }
        _ => input.choose(&KEYS).to_owned(),
    }
}

fn value(input: &mut Input<'_>) -> String {
    match input.u8() % 4 {
        0 => input.text().to_owned(),
        _ => input.choose(&VALUES).to_owned(),
    }
}

/// Writes a backend's offer: mostly complete, or the fuzzer would rarely get further.
fn write_offer(input: &mut Input<'_>, dir: &mut Directory) {
    let mut set = |key: &str, value: u32| drop(dir.insert(key.to_owned(), value.to_string()));
    set("feature-rx-copy", 1);
    set("multi-queue-max-queues", u32::from(input.u8() % 12));
    set("feature-split-event-channels", u32::from(input.u8() & 1));
    set("feature-ctrl-ring", u32::from(input.u8() & 1));
    set("feature-xdp-headroom", u32::from(input.u8() & 1));
    set("state", 2);
}

/// Writes a frontend's keys, with some duplicate ring references and ports.
fn write_keys_of_guest(input: &mut Input<'_>, dir: &mut Directory) {
    let count = input.u8() % 4;
    let is_split = input.flag();
    let mut set = |key: &str, value: u8| drop(dir.insert(key.to_owned(), value.to_string()));
    set("request-rx-copy", 1);
    set("multi-queue-num-queues", count);
    for index in 0..count {
        let prefix = if count == 1 { String::new() } else { format!("queue-{index}/") };
        let ports: &[&str] =
            if is_split { &["event-channel-tx", "event-channel-rx"] } else { &["event-channel"] };
        for name in ["tx-ring-ref", "rx-ring-ref"].iter().chain(ports) {
            set(&format!("{prefix}{name}"), input.u8() % 32);
        }
    }
    if input.flag() {
        set("ctrl-ring-ref", input.u8() % 32);
        set("event-channel-ctrl", input.u8() % 32);
    }
    if input.flag() {
        set("xdp-headroom", input.u8());
    }
    set("state", input.choose(&[4, 4, 4, 7]));
}

fn keys(dir: &str, values: &Directory) -> Keys {
    Keys::new(dir, values.clone())
}

/// Writes and removes keys; removing a directory removes everything below it.
fn write(changes: Vec<KeyChange>, state: Option<XenbusState>, dir: &mut Directory) {
    for change in changes {
        match change {
            KeyChange::Set(key, value) => drop(dir.insert(key, value)),
            KeyChange::Remove(removed) => {
                let below = format!("{removed}/");
                dir.retain(|key, _| *key != removed && !key.starts_with(&below));
            }
        }
    }
    if let Some(state) = state {
        dir.insert("state".to_owned(), state.value().to_owned());
    }
}
