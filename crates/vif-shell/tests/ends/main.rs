//! Both ends on a XenStore in memory, with processes that serve no frames.

mod observed;
mod waits;

use std::time::{Duration, Instant};

use ringway_datapath::{MacAddr, OffloadCaps};
use ringway_vif_shell::{
    BackendEnd, BackendProcess, FrontendEnd, FrontendProcess, Note, Released, device,
};
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::backend::{Attachment, Input, NotAttached};
use ringway_xenbus::frontend::{Allocated, Allocation, Preferences, QueueCount};
use ringway_xenbus::{
    Device, EventPorts, Features, FrontendConfig, Hotplug, KeySet, Keys, Offer, QueueConfig, Vif,
    XenbusState,
};
use ringway_xenstore::{
    Client, DomId, Errno, Events, LocalStore, LocalTransport, Lost, Quota, Reply, Request,
    Transport, Watched,
};

const HOST: DomId = DomId(0);
const GUEST: DomId = DomId(3);
const VIF: Vif = Vif { backend: HOST, frontend: GUEST, handle: 0 };

/// Counts the requests that a client makes, and how often it waits for replies.
struct Counted {
    transport: LocalTransport,
    requests: usize,
    waits: usize,
}

impl Counted {
    fn host(store: &LocalStore) -> Client<Counted> {
        let transport = LocalTransport::open(store, HOST).expect("few sessions");
        Client::with_transport(Counted { transport, requests: 0, waits: 0 })
    }
}

impl Transport for Counted {
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
        self.requests += 1;
        self.waits += 1;
        self.transport.request(request, events)
    }

    fn requests(
        &mut self,
        requests: &[Request<'_>],
        events: &mut Events,
    ) -> Result<Vec<Reply>, Lost> {
        self.requests += requests.len();
        self.waits += 1;
        self.transport.requests(requests, events)
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        self.transport.take_events(events)
    }
}

#[derive(Default)]
struct Process {
    attached: Option<FrontendConfig>,
    attached_count: usize,
    is_up: bool,
    closed: Vec<String>,
    /// What the guest has said of multicast frames, each time that it was asked.
    filtered: Vec<bool>,
    waited: Vec<String>,
    /// The resource that this host lacks, if any.
    shortage: Option<String>,
    /// How often queues were made.
    allocated_count: usize,
    /// Whether the backend keeps the pages of each connection.
    are_pages_kept: bool,
}

impl BackendProcess for Process {
    fn attach(&mut self, config: &FrontendConfig, _: Attachment) -> Result<(), NotAttached> {
        if let Some(reason) = self.shortage.clone() {
            return Err(NotAttached::NoResources(reason));
        }
        assert!(self.attached.replace(config.clone()).is_none(), "attached twice");
        self.attached_count += 1;
        Ok(())
    }

    fn detach(&mut self) {
        self.attached.take().expect("something is attached");
    }

    fn filter_multicast(&mut self, is_requested: bool) {
        self.filtered.push(is_requested);
    }

    fn set_headroom(&mut self, headroom: u16) {
        self.attached.as_mut().expect("something is attached").headroom = headroom;
    }

    fn note(&mut self, note: Note<'_>) {
        match note {
            Note::Closed(reason) => self.closed.push(reason.to_owned()),
            Note::Waits(reason) => self.waited.push(reason.to_owned()),
            _ => {}
        }
    }
}

impl FrontendProcess for Process {
    fn allocate(&mut self, own: &Keys, wanted: Allocation) -> Result<Allocated, String> {
        assert_eq!(own.mac(), Ok(Some(MacAddr([0, 0x16, 0x3e, 0, 0, 3]))));
        self.allocated_count += 1;
        let queue = |n: u32| QueueConfig {
            tx_ring_ref: GrantRef(2 * n),
            rx_ring_ref: GrantRef(2 * n + 1),
            events: EventPorts::Single(EvtchnPort(n)),
        };
        let queues: Vec<QueueConfig> = (8..8 + u32::from(wanted.queues)).map(queue).collect();
        Ok(queues.into())
    }

    fn release(&mut self) -> Released {
        if self.are_pages_kept { Released::KeptByBackend } else { Released::Free }
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        self.is_up = true;
        Ok(())
    }

    fn carrier_down(&mut self) {
        self.is_up = false;
    }

    fn note(&mut self, _note: Note<'_>) {}
}

/// A store, and a vif in it that a toolstack has just made.
fn with_vif() -> LocalStore {
    let store = LocalStore::new(Quota::default());
    let mut toolstack = store.connect(HOST).expect("few sessions");
    let made = Device::new(VIF, MacAddr([0, 0x16, 0x3e, 0, 0, 3]));
    toolstack.transaction(|tx| device::make(tx, &made)).expect("domain 0 may");
    store
}

fn offer() -> Offer {
    let features = Features::from(OffloadCaps::ALL);
    Offer {
        queues_max: 4,
        split_event_channels: false,
        control_ring: false,
        multicast_control: false,
        xdp_headroom: true,
        features,
    }
}

/// What a backend finds in its directory.
fn found(store: &mut Client<LocalTransport>) -> Keys {
    let keys = device::read_keys(store, &VIF.backend_dir(), KeySet::BackendDevice);
    keys.expect("readable").expect("it is there")
}

/// A backend's end, and its connection.
struct Backend {
    store: Client<LocalTransport>,
    end: BackendEnd,
    process: Process,
    now: Instant,
}

impl Backend {
    fn start(of: &LocalStore) -> Backend {
        Backend::offering(of, offer())
    }

    fn offering(of: &LocalStore, offer: Offer) -> Backend {
        let (mut store, now) = (of.connect(HOST).expect("few sessions"), Instant::now());
        let mut process = Process::default();
        let mut end = BackendEnd::new(VIF, offer, Hotplug::Absent, now);
        let own = found(&mut store);
        end.start(&mut store, &mut process, &own, now).expect("the store is there");
        Backend { store, end, process, now }
    }

    /// Handles all events, and returns how many there were.
    fn turn(&mut self) -> usize {
        let Backend { store, end, process, now } = self;
        let mut count = 0;
        while let Some(Watched::Node(event)) = store.next_watch().expect("the store is there") {
            assert!(event.token.starts_with(&end.token()));
            end.frontend_changed(store, process, *now).expect("the store is there");
            count += 1;
        }
        end.resume(store, process, *now).expect("the store is there");
        count
    }

    fn serve_until_a_fault(&mut self) {
        self.turn();
        let Backend { store, end, process, now } = self;
        let fault = Input::PeerFault("a fault".to_owned());
        end.feed(store, process, fault, *now).expect("the store is there");
    }
}

/// Keys with which a frontend of one queue connects.
const FRONTEND_KEYS: [(&str, &str); 4] =
    [("tx-ring-ref", "8"), ("rx-ring-ref", "9"), ("event-channel", "5"), ("request-rx-copy", "1")];

fn write(guest: &mut Client<LocalTransport>, keys: &[(&str, &str)]) {
    for (key, value) in keys {
        guest.write(&format!("device/vif/0/{key}"), value).expect("it is the guest's");
    }
}

/// A guest that requests to be connected.
fn connecting(store: &LocalStore) -> Client<LocalTransport> {
    let mut guest = store.connect(GUEST).expect("few sessions");
    write(&mut guest, &FRONTEND_KEYS);
    write(&mut guest, &[("state", "4")]);
    guest
}

#[test]
fn both_ends_connect_and_disconnect_over_a_store_in_memory() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    let mut guest = store.connect(GUEST).expect("few sessions");
    let mut process = Process::default();
    let features = Features::from(OffloadCaps::ALL);
    let mut end = FrontendEnd::new(VIF, Preferences { queues: QueueCount::AtMost(3), features });
    end.watch(&mut guest).expect("the guest may");
    end.start(&mut guest, &mut process, XenbusState::Initialising).expect("the store is there");
    let settle = |backend: &mut Backend, end: &mut FrontendEnd, guest: &mut _, process: &mut _| {
        while {
            let mut count = backend.turn();
            while let Some(Watched::Node(event)) = Client::next_watch(guest).expect("there") {
                assert_eq!(event.token, end.token());
                end.backend_changed(guest, process).expect("the store is there");
                count += 1;
            }
            count > 0
        } {}
    };
    settle(&mut backend, &mut end, &mut guest, &mut process);
    assert!(end.is_connected() && process.is_up);
    assert_eq!(backend.end.state(), XenbusState::Connected);
    assert_eq!(backend.process.attached.as_ref().map(|config| config.queues.len()), Some(3));

    let stop = ringway_xenbus::frontend::Input::Stop;
    end.feed(&mut guest, &mut process, stop).expect("the store is there");
    settle(&mut backend, &mut end, &mut guest, &mut process);
    assert!(end.is_finished() && !process.is_up);
    assert_eq!(backend.process.attached, None);
}

/// A backend that uses pages after it has closed takes them from the guest for good.
#[test]
fn a_guest_stays_away_from_a_backend_that_keeps_its_pages() {
    for (are_pages_kept, allocated) in [(false, 20), (true, 4)] {
        let store = with_vif();
        let mut backend = store.connect(HOST).expect("few sessions");
        let mut guest = store.connect(GUEST).expect("few sessions");
        let mut process = Process { are_pages_kept, ..Process::default() };
        let features = Features::from(OffloadCaps::ALL);
        let preferences = Preferences { queues: QueueCount::AtMost(1), features };
        let mut end = FrontendEnd::new(VIF, preferences);
        end.start(&mut guest, &mut process, XenbusState::Initialising).expect("the store is there");
        let mut connect = |end: &mut FrontendEnd, process: &mut Process| {
            for (key, value) in
                [("feature-rx-copy", "1"), ("state", "2"), ("state", "4"), ("state", "6")]
            {
                let node = format!("{}/{key}", VIF.backend_dir());
                backend.write(&node, value).expect("domain 0 may");
                end.backend_changed(&mut guest, process).expect("the store is there");
            }
        };
        (0..20).for_each(|_| connect(&mut end, &mut process));
        assert_eq!(process.allocated_count, allocated);
        let why = are_pages_kept.then_some("the backend uses pages of 4 earlier connections");
        assert_eq!(end.error(), why);
        // Its user may know better.
        let mut guest = store.connect(GUEST).expect("few sessions");
        end.reconnect(&mut guest, &mut process, preferences).expect("the store is there");
        (0..2).for_each(|_| connect(&mut end, &mut process));
        assert_eq!(process.allocated_count, allocated + 2);
        assert_eq!(end.error(), None);
    }
}

#[test]
fn a_guest_may_request_multicast_control_at_any_time_where_it_is_offered() {
    //= netif.h:multicast-request
    for is_offered in [true, false] {
        let store = with_vif();
        let offer = Offer { multicast_control: is_offered, ..offer() };
        let mut backend = Backend::offering(&store, offer);
        let mut guest = store.connect(GUEST).expect("few sessions");
        write(&mut guest, &[("request-multicast-control", "1")]);
        backend.turn();
        assert_eq!(backend.process.filtered, [], "it is not connected yet");
        write(&mut guest, &FRONTEND_KEYS);
        write(&mut guest, &[("state", "4")]);
        backend.turn();
        let attached = backend.process.attached.as_ref().expect("its keys are good");
        assert_eq!(attached.multicast_control, is_offered);
        for (value, is_requested) in [("0", false), ("1", true), ("none", false), ("1", true)] {
            write(&mut guest, &[("request-multicast-control", value)]);
            backend.turn();
            let heard = backend.process.filtered.last().copied();
            assert_eq!(heard, is_offered.then_some(is_requested), "{value}");
        }
        guest.remove("device/vif/0/request-multicast-control").expect("it is the guest's");
        backend.turn();
        assert_eq!(backend.process.filtered.last().copied(), is_offered.then_some(false));
    }
}

#[test]
fn a_guest_changes_its_headroom_while_it_is_served_and_not_endlessly_fast() {
    //= netif.h:xdp-headroom
    let store = with_vif();
    let mut backend = Backend::start(&store);
    let mut guest = connecting(&store);
    backend.turn();
    let shown = |backend: &Backend| {
        let attached = backend.process.attached.as_ref().expect("it is served");
        (backend.end.state(), attached.headroom)
    };
    assert_eq!(shown(&backend), (XenbusState::Connected, 0));
    for (bytes, headroom) in [("256", 256), ("0", 0)] {
        write(&mut guest, &[("state", "7"), ("xdp-headroom", bytes)]);
        backend.turn();
        assert_eq!(shown(&backend), (XenbusState::Reconfigured, 256));
        write(&mut guest, &[("state", "4")]);
        backend.turn();
        assert_eq!(shown(&backend), (XenbusState::Connected, headroom));
    }
    for state in ["7", "4"].repeat(20) {
        write(&mut guest, &[("state", state)]);
        backend.turn();
    }
    assert!(backend.end.due().is_some(), "its keys are read later");
    write(&mut guest, &[("xdp-headroom", "64")]);
    backend.now += std::time::Duration::from_secs(1);
    backend.turn();
    assert_eq!(shown(&backend), (XenbusState::Connected, 64));
    assert_eq!(backend.process.attached_count, 1, "it has kept its rings");
}

#[test]
fn writes_below_a_guests_state_cause_no_event_in_the_backend() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    let mut guest = store.connect(GUEST).expect("few sessions");
    backend.turn();
    for n in 0..100_000 {
        let path = format!("device/vif/0/state/x{n}");
        guest.write(&path, "").expect("it is the guest's");
        guest.remove(&path).expect("it is the guest's");
    }
    assert!(backend.turn() <= 1);
    write(&mut guest, &FRONTEND_KEYS);
    write(&mut guest, &[("state", "4")]);
    backend.turn();
    assert!(backend.process.attached.is_some(), "it is still served");
}

#[test]
fn a_directory_of_a_thousand_nodes_is_read_as_fast_as_a_small_one() {
    let store = with_vif();
    let requests = |set| {
        let mut client = Counted::host(&store);
        let keys = device::read_keys_once(&mut client, &VIF.frontend_dir(), set);
        assert!(keys.expect("it does not change meanwhile").is_some());
        client.transport().requests
    };
    let mut guest = store.connect(GUEST).expect("few sessions");
    write(&mut guest, &FRONTEND_KEYS);
    let set = KeySet::FrontendKeys { queues_max: 8 };
    let before = requests(set);
    for n in 0..95 {
        for m in 0..9 {
            write(&mut guest, &[(&format!("queue-{n}/k{m}"), "")]);
        }
    }
    assert_eq!(requests(set), before);
    assert!(before <= 21, "{before}");
    write(&mut guest, &[("multi-queue-num-queues", "8")]);
    assert_eq!(requests(set), before + 7 * 5);
    write(&mut guest, &[("multi-queue-num-queues", "4000000000")]);
    assert_eq!(requests(set), before - 5, "none is read for what is refused anyway");
}

#[test]
fn a_vif_is_taken_over_with_few_waits_for_the_store() {
    let store = with_vif();
    let mut first = Backend::start(&store);
    let mut guest = store.connect(GUEST).expect("few sessions");
    let (mut process, features) = (Process::default(), Features::from(OffloadCaps::ALL));
    let mut end = FrontendEnd::new(VIF, Preferences { queues: QueueCount::AtMost(4), features });
    first.turn();
    end.start(&mut guest, &mut process, XenbusState::Initialising).expect("the store is there");
    first.turn();
    assert_eq!(first.process.attached.map(|config| config.queues.len()), Some(4));
    let mut client = Counted::host(&store);
    let own = device::read_keys(&mut client, &VIF.backend_dir(), KeySet::BackendDevice);
    let own = own.expect("readable").expect("it is there");
    let (mut process, now) = (Process::default(), Instant::now());
    let mut end = BackendEnd::new(VIF, offer(), Hotplug::Absent, now);
    end.start(&mut client, &mut process, &own, now).expect("the store is there");
    assert_eq!((end.due(), process.attached.is_some()), (Some(now), false));
    end.resume(&mut client, &mut process, now).expect("the store is there");
    assert!(process.attached.is_some());
    let Counted { requests, waits, .. } = client.transport();
    assert!(*requests > 80 && *waits <= 8, "{requests} requests, {waits} waits");
}

#[test]
fn keys_of_several_devices_are_read_together_each_as_of_one_moment() {
    let store = with_vif();
    let mut guest = connecting(&store);
    let keys = KeySet::FrontendKeys { queues_max: 4 };
    let absent = Vif { handle: 1, ..VIF };
    let wanted = [
        (VIF.backend_dir(), KeySet::BackendDevice),
        (VIF.frontend_dir(), keys),
        (absent.frontend_dir(), keys),
    ];
    let mut client = Counted::host(&store);
    let read = device::read_keys_together(&mut client, &wanted).expect("the store is there");
    assert_eq!(client.transport().waits, 4);
    let read = read.into_iter().map(|keys| keys.expect("nothing changes meanwhile"));
    let alone = wanted.iter().map(|(dir, set)| {
        device::read_keys_once(&mut client, dir, *set).expect("nothing changes meanwhile")
    });
    assert!(read.eq(alone));

    // Of the second, a node changes while it is read.
    let (value, outcomes) = client
        .snapshots(2, |snapshots| {
            let nodes = [VIF.backend_state(), VIF.frontend_state()].map(|node| vec![node]);
            let found = snapshots.read(&nodes)?;
            write(&mut guest, &[("state", "5")]);
            Ok(found.len())
        })
        .expect("the store is there");
    assert_eq!((value, outcomes.first()), (2, Some(&Ok(()))));
    let refusal = outcomes.last().and_then(|it| it.as_ref().err()).expect("it has changed");
    assert!(refusal.is(Errno::Again));
}

#[test]
fn a_guest_that_reconnects_constantly_is_deferred_but_served() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    let mut guest = store.connect(GUEST).expect("few sessions");
    write(&mut guest, &FRONTEND_KEYS);
    for _ in 0..100 {
        write(&mut guest, &[("state", "1")]);
        backend.turn();
        write(&mut guest, &[("state", "4")]);
        backend.turn();
    }
    assert_eq!(backend.process.attached_count, 10, "no time has passed");
    assert_eq!(backend.process.attached, None);
    let due = backend.end.due().expect("it is put off");
    assert!(due <= backend.now + Duration::from_secs(1));
    backend.now = due;
    backend.turn();
    assert!(backend.process.attached.is_some());
    assert_eq!(backend.end.due(), None);
}

#[test]
fn keys_that_change_while_they_are_read_are_read_again_later() {
    /// A guest that writes whenever the host asks for something.
    struct Disturbed {
        transport: LocalTransport,
        guest: Client<LocalTransport>,
        is_disturbing: bool,
    }
    impl Transport for Disturbed {
        fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
            if self.is_disturbing {
                write(&mut self.guest, &[("feature-sg", "1")]);
            }
            self.transport.request(request, events)
        }

        fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
            self.transport.take_events(events)
        }
    }

    let store = with_vif();
    let mut guest = store.connect(GUEST).expect("few sessions");
    let transport = LocalTransport::open(&store, HOST).expect("few sessions");
    let is_disturbing = true;
    let disturbing = store.connect(GUEST).expect("few sessions");
    let mut client =
        Client::with_transport(Disturbed { transport, guest: disturbing, is_disturbing });
    let (mut process, now) = (Process::default(), Instant::now());
    let mut end = BackendEnd::new(VIF, offer(), Hotplug::Absent, now);
    let lost = "the store is there";
    let own = found(&mut store.connect(HOST).expect("few sessions"));
    end.start(&mut client, &mut process, &own, now).expect(lost);
    write(&mut guest, &FRONTEND_KEYS);
    write(&mut guest, &[("state", "4")]);
    end.frontend_changed(&mut client, &mut process, now).expect(lost);
    assert_eq!((process.attached_count, process.closed.len()), (0, 0));
    let due = end.due().expect("it is tried again");
    end.resume(&mut client, &mut process, due).expect(lost);
    assert_eq!(process.attached_count, 0);
    client.transport_mut().is_disturbing = false;
    let due = end.due().expect("it is tried again");
    end.resume(&mut client, &mut process, due).expect(lost);
    assert_eq!(process.attached_count, 1);
}

#[test]
fn a_vif_removed_by_its_toolstack_is_released() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    connecting(&store);
    backend.serve_until_a_fault();
    let Backend { store: client, end, process, now } = &mut backend;
    assert_eq!((end.error(), process.attached.is_some()), (Some("a fault"), false));
    device::change(client, &VIF.backend_dir(), &Device::removal_changes()).expect("its own");
    let keys = device::read_keys(client, &VIF.backend_dir(), KeySet::BackendDevice);
    let keys = keys.expect("its own");
    end.device_changed(client, process, keys.as_ref(), *now).expect("there");
    assert!(end.is_finished());
    assert_eq!(client.read(&VIF.backend_state()).expect("its own").as_deref(), Some("6"));
    let [for_tools, _] = VIF.backend_errors();
    assert_eq!(client.read(&for_tools).expect("its own"), None);
}

#[test]
fn a_starting_backend_removes_stale_error_nodes_of_removed_vifs() {
    let store = with_vif();
    let mut earlier = Backend::start(&store);
    let mut guest = connecting(&store);
    earlier.serve_until_a_fault();
    let [for_tools, _] = VIF.backend_errors();
    assert_eq!(earlier.store.read(&for_tools).expect("its own").as_deref(), Some("a fault"));
    drop(earlier);

    let mut client = store.connect(HOST).expect("few sessions");
    device::remove_stale_errors(&mut client, HOST).expect("the store is there");
    let kept = client.read(&for_tools).expect("its own");
    assert_eq!(kept.as_deref(), Some("a fault"), "its vif is there");

    client.remove(&VIF.backend_dir()).expect("domain 0 may");
    device::remove_stale_errors(&mut client, HOST).expect("the store is there");
    assert_eq!(client.read(&for_tools).expect("its own"), None);
    let left = client.directory(&Vif::backend_errors_root(HOST)).expect("its own");
    assert_eq!(left, Vec::<String>::new());
    // A domain that has no such directory, or may not read it, has none.
    device::remove_stale_errors(&mut guest, HOST).expect("the store is there");
    device::remove_stale_errors(&mut guest, GUEST).expect("the store is there");
}

#[test]
fn a_guest_waits_while_the_host_is_short_of_resources() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    backend.process.shortage = Some("no memory".to_owned());
    let mut guest = store.connect(GUEST).expect("few sessions");
    write(&mut guest, &FRONTEND_KEYS);
    write(&mut guest, &[("state", "3")]);
    backend.turn();
    for _ in 0..3 {
        let due = backend.end.due().expect("it is tried again");
        assert!(due >= backend.now + Duration::from_secs(1), "not at once");
        assert_eq!(backend.end.state(), XenbusState::InitWait);
        assert_eq!(backend.end.error(), Some("no memory"));
        backend.now = due;
        backend.turn();
    }
    // However often it happens, it is reported once.
    assert_eq!((backend.process.waited.len(), backend.process.closed.len()), (1, 0));
    backend.process.shortage = None;
    backend.now = backend.end.due().expect("it is tried again");
    backend.turn();
    assert_eq!(backend.end.state(), XenbusState::Connected);
    assert_eq!((backend.end.error(), backend.process.attached_count), (None, 1));
}
