//! The control ring: a guest that says how it wants to receive, however it says it.

use std::sync::{Arc, Mutex};

use ringway_datapath::{
    Checksum, FlowHash, Gso, GsoKind, Offload, Pending, PortQueue, QueueDown, Woken,
};
use ringway_hypervisor::{Access, EventChannel, GrantTable, GrantedPages, Hypervisor};
use ringway_loopback::LoopbackEvent;
use ringway_netback::{ControlParts, ControlRole, Staging};
use ringway_ring::{BackRing, Control, FrontRing, RingFault};
use ringway_steering::QueueIndex;
use ringway_steering::control::HashControl;
use ringway_steering::toeplitz::{HashType, ToeplitzSteering};
use ringway_sys::SharedPages;
use ringway_wire::netif::{
    CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_NOT_SUPPORTED, CTRL_STATUS_SUCCESS,
    CTRL_TYPE_GET_HASH_FLAGS, CTRL_TYPE_SET_HASH_ALGORITHM, CTRL_TYPE_SET_HASH_FLAGS,
    CTRL_TYPE_SET_HASH_KEY, CTRL_TYPE_SET_HASH_MAPPING, CTRL_TYPE_SET_HASH_MAPPING_SIZE,
    CtrlRequest, CtrlResponse, EXTRA_FLAG_MORE, ExtraInfo, GSO_TYPE_TCPV4, NETRXF_CSUM_BLANK,
    NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA, RxResponse,
};
use ringway_wire::ring::REQ_PROD;
use zerocopy::{FromBytes, IntoBytes};

use crate::frames::pattern;
use crate::guest::{Bench, fault_of};
use crate::machine::HOST;

const QUEUES: u16 = 4;

/// The guest's end of a control ring.
pub(crate) struct Guest {
    ring: FrontRing<Control>,
    page: SharedPages,
    event: LoopbackEvent,
    granted: GrantedPages,
    settings: Arc<Mutex<HashControl>>,
    /// What the backend has published last, and how often it has.
    published: Arc<Mutex<(Option<ToeplitzSteering>, usize)>>,
    /// The pages that it may have mapped.
    pub(crate) staging: Option<Staging>,
    next_id: u16,
}

impl Guest {
    /// Gives the queue of `bench` a control ring.
    fn of(bench: &mut Bench) -> Guest {
        Guest::with(bench, None)
    }

    /// Gives it one by which these pages may stay mapped.
    pub(crate) fn with(bench: &mut Bench, staging: Option<Staging>) -> Guest {
        let granted = bench.machine.grants().share(HOST, 1, Access::ReadWrite);
        let granted = granted.expect("a new guest has memory");
        let page = granted.pages.clone();
        let event = bench.machine.guest.alloc_unbound(HOST).expect("a port is left");
        let mut guest = Guest {
            ring: FrontRing::new(page.clone()),
            page,
            event,
            granted,
            settings: Arc::default(),
            published: Arc::default(),
            staging,
            next_id: 0xfffe,
        };
        guest.join(bench).expect("a new ring is sound");
        guest
    }

    /// Gives the queue of `bench` the ring, as when a backend attaches.
    pub(crate) fn join(&mut self, bench: &mut Bench) -> Result<(), QueueDown> {
        let machine = &bench.machine;
        self.event = machine.guest.alloc_unbound(HOST).expect("a port is left");
        let event = machine.host.bind_interdomain(machine.guest_id, self.event.port());
        let published = Arc::clone(&self.published);
        bench.back.join_control(ControlRole::Serves(ControlParts {
            ring: machine.map(self.granted.grefs[0], Access::ReadWrite),
            event: event.expect("the port is for the host"),
            settings: Arc::clone(&self.settings),
            queues: QUEUES,
            publish: Box::new(move |settings| {
                let steering = settings.steering().cloned();
                let mut published = published.lock().expect("no test panics with the lock");
                *published = (steering, published.1 + 1);
            }),
            changes: Arc::clone(&bench.changes),
            staging: self.staging.clone(),
        }))
    }

    pub(crate) fn push(&mut self, kind: u16, data: [u32; 3]) {
        self.next_id = self.next_id.wrapping_add(1);
        self.ring.push_request(CtrlRequest { id: self.next_id, kind, data });
        let _ = self.ring.publish_requests();
    }

    pub(crate) fn responses(&mut self) -> Vec<CtrlResponse> {
        let mut responses = [CtrlResponse::default(); 128];
        let count = self.ring.peek_responses(&mut responses).expect("our backend is honest");
        self.ring.consume(count);
        responses[..count].to_vec()
    }

    /// Sends one message and returns the status and the data of its response.
    fn send(&mut self, bench: &mut Bench, kind: u16, data: [u32; 3]) -> (u32, u32) {
        self.push(kind, data);
        assert!(bench.ingress().expect("no fault").is_empty());
        if bench.changes.has_unnoted() {
            note(bench);
        }
        let responses = self.responses();
        let [response] = responses[..] else { panic!("{responses:?}") };
        //= netif.h:ctrl-response
        assert_eq!((response.id, response.kind), (self.next_id, kind));
        (response.status, response.data)
    }

    fn send_page(&mut self, bench: &mut Bench, kind: u16, bytes: &[u8], data: [u32; 2]) -> u32 {
        let gref = bench.page(0, bytes, Access::ReadOnly);
        self.send(bench, kind, [gref.0, data[0], data[1]]).0
    }

    /// The queue of a hash.
    fn queue_of(&self, hash: u32) -> Option<u16> {
        let published = self.published.lock().expect("no test panics with the lock");
        let QueueIndex(queue) = published.0.as_ref()?.queue_of(Some(hash), QUEUES);
        Some(queue)
    }

    fn published_count(&self) -> usize {
        self.published.lock().expect("no test panics with the lock").1
    }
}

/// The control plane notes what a message has changed, and has the queue polled.
fn note(bench: &mut Bench) {
    bench.changes.note(|| ());
    assert!(bench.ingress().expect("no fault").is_empty());
}

/// A guest whose algorithm is selected.
fn with_toeplitz(bench: &mut Bench) -> Guest {
    let mut guest = Guest::of(bench);
    let selected = guest.send(bench, CTRL_TYPE_SET_HASH_ALGORITHM, [1, 0, 0]);
    assert_eq!(selected, (CTRL_STATUS_SUCCESS, 0));
    guest
}

#[test]
fn settings_are_read_from_pages_of_the_guest_and_published_before_their_response() {
    let mut bench = Bench::new();
    let guest = Guest::of(&mut bench);
    assert_eq!((guest.queue_of(1), guest.published_count()), (None, 1), "at once: nothing");
    let mut guest = with_toeplitz(&mut bench);
    let mapping: Vec<u8> = [3_u32, 2, 1, 0].iter().flat_map(|entry| entry.to_le_bytes()).collect();
    let sized = guest.send(&mut bench, CTRL_TYPE_SET_HASH_MAPPING_SIZE, [4, 0, 0]);
    assert_eq!(sized, (CTRL_STATUS_SUCCESS, 0));
    let status = guest.send_page(&mut bench, CTRL_TYPE_SET_HASH_MAPPING, &mapping, [4, 0]);
    assert_eq!(status, CTRL_STATUS_SUCCESS);
    assert_eq!([0, 1, 2, 3].map(|hash| guest.queue_of(hash)), [3, 2, 1, 0].map(Some));
    let status = guest.send_page(&mut bench, CTRL_TYPE_SET_HASH_KEY, &[1; 40], [40, 0]);
    assert_eq!(status, CTRL_STATUS_SUCCESS);
    let flags = guest.send(&mut bench, CTRL_TYPE_GET_HASH_FLAGS, [0; 3]);
    assert_eq!(flags, (CTRL_STATUS_SUCCESS, 15));
    let cleared = guest.send(&mut bench, CTRL_TYPE_SET_HASH_ALGORITHM, [0; 3]);
    assert_eq!((cleared, guest.queue_of(1)), ((CTRL_STATUS_SUCCESS, 0), None));
}

#[test]
fn pages_that_cannot_be_read_and_unknown_messages_cost_only_their_message() {
    let mut bench = Bench::new();
    let mut guest = with_toeplitz(&mut bench);
    for gref in [0, 9999, u32::MAX] {
        let refused = guest.send(&mut bench, CTRL_TYPE_SET_HASH_KEY, [gref, 40, 0]);
        assert_eq!(refused, (CTRL_STATUS_INVALID_PARAMETER, 0), "{gref}");
    }
    for kind in [0, 8, 9, 10, 255, u16::MAX] {
        assert_eq!(guest.send(&mut bench, kind, [1; 3]), (CTRL_STATUS_NOT_SUPPORTED, 0), "{kind}");
    }
    let good = guest.send(&mut bench, CTRL_TYPE_SET_HASH_FLAGS, [15, 0, 0]);
    assert_eq!(good, (CTRL_STATUS_SUCCESS, 0));
}

#[test]
fn each_call_carries_out_one_message_in_place_of_frames() {
    let mut bench = Bench::new();
    let mut guest = with_toeplitz(&mut bench);
    for _ in 0..128 {
        guest.push(CTRL_TYPE_GET_HASH_FLAGS, [0; 3]);
    }
    let packet = bench.packet(1, &[&pattern(1, 60)]);
    let _ = bench.send(&packet);
    for served in 1..=128 {
        assert!(bench.ingress().expect("no fault").is_empty());
        assert_eq!(guest.responses().len(), 1, "message {served}");
    }
    assert_eq!(bench.ingress().expect("no fault").len(), 1);
}

#[test]
fn a_message_wakes_the_queue_and_is_carried_out_even_if_no_frames_may_enter() {
    let mut bench = Bench::new();
    let mut guest = with_toeplitz(&mut bench);
    let _ = (guest.event.ack(), guest.ring.arm(1));
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing);
    guest.push(CTRL_TYPE_GET_HASH_FLAGS, [0; 3]);
    guest.event.notify().expect("the host is there");
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
    let behind_rings = 2;
    bench.back.woken(Woken::By(behind_rings)).expect("no fault");
    assert_eq!(guest.responses().len(), 1);
    assert_eq!(bench.counters.totals().events_received, 1);
    assert!(guest.event.ack().expect("the channel is there"), "the guest is notified");

    guest.push(CTRL_TYPE_GET_HASH_FLAGS, [0; 3]);
    bench.back.woken(Woken::Unknown).expect("no fault");
    assert_eq!(guest.responses().len(), 1);
}

#[test]
fn a_change_has_its_response_when_it_is_noted_and_only_messages_wait_for_that() {
    let mut bench = Bench::new();
    let mut guest = with_toeplitz(&mut bench);
    guest.push(CTRL_TYPE_SET_HASH_FLAGS, [3, 0, 0]);
    guest.push(CTRL_TYPE_GET_HASH_FLAGS, [0; 3]);
    let packet = bench.packet(1, &[&pattern(1, 60)]);
    let _ = bench.send(&packet);
    assert!(bench.ingress().expect("no fault").is_empty());
    assert!(bench.changes.has_unnoted());
    assert_eq!(bench.ingress().expect("no fault").len(), 1, "a frame does not wait");
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Nothing, "it would be woken");
    assert!(guest.responses().is_empty());
    bench.changes.note(|| ());
    assert_eq!(bench.back.arm().expect("no fault"), Pending::Work);
    for message in ["the change", "the question behind it"] {
        assert!(bench.ingress().expect("no fault").is_empty());
        assert_eq!(guest.responses().len(), 1, "{message}");
    }
    assert!(!bench.changes.has_unnoted(), "a question changes nothing");

    // A backend that ends before it has noted a change has not responded: the next one carries the
    // message out again.
    let noted = guest.settings.lock().expect("no test panics with the lock").clone();
    guest.push(CTRL_TYPE_SET_HASH_FLAGS, [15, 0, 0]);
    assert!(bench.ingress().expect("no fault").is_empty());
    guest.settings = Arc::new(Mutex::new(noted));
    bench.attach_again().expect("the rings are sound");
    guest.join(&mut bench).expect("the ring is sound");
    assert!(bench.ingress().expect("no fault").is_empty());
    note(&mut bench);
    let statuses: Vec<u32> = guest.responses().iter().map(|response| response.status).collect();
    assert_eq!(statuses, [CTRL_STATUS_SUCCESS]);
    let text = guest.settings.lock().expect("no test panics with the lock").to_string();
    assert!(text.starts_with("1 15 "), "{text}");
}

#[test]
fn an_invalid_index_of_the_ring_ends_the_queue() {
    //= netif.h:producer-bound
    for produced in [130, 1 << 31, u32::MAX, 0] {
        let mut bench = Bench::new();
        let guest = with_toeplitz(&mut bench);
        guest.page.store(REQ_PROD, produced, std::sync::atomic::Ordering::SeqCst);
        let fault: RingFault = bench.ingress_fault().0;
        assert_eq!((fault.ring, fault.produced, fault.slots), ("control", produced, 128));
    }
    let mut bench = Bench::new();
    let mut guest = with_toeplitz(&mut bench);
    guest.page.store(REQ_PROD, 300, std::sync::atomic::Ordering::SeqCst);
    let fault: RingFault = fault_of(&guest.join(&mut bench).expect_err("it is not attached"));
    assert_eq!(fault.ring, "control");
}

#[test]
fn settings_outlive_the_connection_and_interrupted_messages_are_refused() {
    let mut bench = Bench::new();
    let mut guest = with_toeplitz(&mut bench);
    // A backend is killed between writing a response and publishing it.
    guest.push(CTRL_TYPE_GET_HASH_FLAGS, [0; 3]);
    let id = guest.next_id;
    guest.push(CTRL_TYPE_SET_HASH_FLAGS, [15, 0, 0]);
    let mut killed = BackRing::<Control>::attach(guest.page.clone()).expect("it is sound");
    killed.consume(1);
    let kind = CTRL_TYPE_GET_HASH_FLAGS;
    killed.push_response(CtrlResponse { id, kind, status: CTRL_STATUS_SUCCESS, data: 15 });
    drop(killed);

    bench.attach_again().expect("the rings are sound");
    guest.join(&mut bench).expect("the ring is sound");
    assert!(guest.queue_of(1).is_some(), "what was set is published at once");
    let status = CTRL_STATUS_INVALID_PARAMETER;
    assert_eq!(guest.responses(), [CtrlResponse { id, kind, status, data: 0 }]);
    assert!(bench.ingress().expect("no fault").is_empty());
    note(&mut bench);
    let responses = guest.responses();
    assert_eq!(responses.len(), 1, "the next message is carried out");
    assert_eq!((responses[0].id, responses[0].status), (id.wrapping_add(1), CTRL_STATUS_SUCCESS));
}

fn hashed(bench: &mut Bench, bytes: &[u8], offload: Offload) -> ringway_datapath::Frame {
    let mut frame = bench.frame(bytes, offload);
    frame.flow = Some(FlowHash { value: 0x1122_3344, kind: HashType::Ipv4Tcp.number() });
    frame
}

fn extra(response: RxResponse) -> ExtraInfo {
    ExtraInfo::read_from_bytes(response.as_bytes()).expect("both have 8 bytes")
}

#[test]
fn the_hash_of_a_frame_is_in_an_extra() {
    //= netif.h:hash-extra
    let mut bench = Bench::new();
    let _guest = with_toeplitz(&mut bench);
    bench.post(0, 2);
    let frame = hashed(&mut bench, &pattern(1, 60), Offload::NONE);
    assert!(bench.egress(vec![frame]).is_empty());
    let responses = bench.rx_responses();
    let flags = NETRXF_EXTRA_INFO;
    assert_eq!(responses[0], RxResponse { id: 0, offset: 0, flags, status: 60 });
    let expected = ExtraInfo { kind: 4, flags: 0, payload: [1, 1, 0x44, 0x33, 0x22, 0x11] };
    assert_eq!(extra(responses[1]), expected);
}

#[test]
fn the_extra_of_a_hash_follows_that_of_segmentation() {
    //= netif.h:slot-order
    let mut bench = Bench::new();
    let _guest = with_toeplitz(&mut bench);
    let data = pattern(2, 6000);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let frame = hashed(&mut bench, &data, Offload { checksum: Checksum::Blank, gso });
    bench.post(0, 3);
    let mut waiting = bench.egress(vec![frame]);
    assert_eq!(waiting.len(), 1, "it needs a slot more");
    let grefs = bench.post(3, 1);
    bench.back.egress(&mut waiting, &mut bench.pool).expect("no fault");
    let responses = bench.rx_responses();
    let flags = NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED | NETRXF_EXTRA_INFO | NETRXF_MORE_DATA;
    assert_eq!(responses[0], RxResponse { id: 0, offset: 0, flags, status: 4096 });
    let first = ExtraInfo { flags: EXTRA_FLAG_MORE, ..ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4) };
    assert_eq!(extra(responses[1]), first);
    assert_eq!(extra(responses[2]), ExtraInfo::for_hash(0x1122_3344, 1, 1));
    assert_eq!(responses[3], RxResponse { id: 3, offset: 0, flags: 0, status: 1904 });
    assert_eq!(bench.read_page(grefs[0], 1904), &data[4096..]);
}

#[test]
fn the_extra_of_headroom_is_the_last_one() {
    //= netif.h:slot-order
    let mut bench = Bench::new();
    let _guest = with_toeplitz(&mut bench);
    bench.headroom.set(256);
    let data = pattern(2, 6000);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let frame = hashed(&mut bench, &data, Offload { checksum: Checksum::Blank, gso });
    let grefs = bench.post(0, 5);
    assert!(bench.egress(vec![frame]).is_empty());
    let responses = bench.rx_responses();
    let flags = NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED | NETRXF_EXTRA_INFO | NETRXF_MORE_DATA;
    assert_eq!(responses[0], RxResponse { id: 0, offset: 256, flags, status: 3840 });
    let gso = ExtraInfo { flags: EXTRA_FLAG_MORE, ..ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4) };
    let hash = ExtraInfo { flags: EXTRA_FLAG_MORE, ..ExtraInfo::for_hash(0x1122_3344, 1, 1) };
    let extras = [gso, hash, ExtraInfo::for_xdp(256)];
    assert!(responses[1..4].iter().map(|response| extra(*response)).eq(extras));
    assert_eq!(responses[4], RxResponse { id: 4, offset: 0, flags: 0, status: 2160 });
    assert_eq!(bench.read_page(grefs[0], 4096)[256..], data[..3840]);
    assert_eq!(bench.read_page(grefs[4], 2160), &data[3840..]);
}

#[test]
fn room_is_counted_with_the_extra_of_a_hash() {
    let mut bench = Bench::new();
    bench.post(0, 12);
    assert_eq!(bench.back.room_for(60), Some(6));
    let _guest = with_toeplitz(&mut bench);
    assert_eq!(bench.back.room_for(60), Some(4));
}

#[test]
fn a_frontend_without_a_control_ring_gets_no_hash() {
    let mut bench = Bench::new();
    bench.post(0, 2);
    let frame = hashed(&mut bench, &pattern(1, 60), Offload::NONE);
    assert!(bench.egress(vec![frame]).is_empty());
    assert_eq!(bench.rx_responses(), [RxResponse { id: 0, offset: 0, flags: 0, status: 60 }]);
}
