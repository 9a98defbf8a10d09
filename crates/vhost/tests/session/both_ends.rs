//! Our front-end against our back-end.

use crate::device::{Device, STEP, addresses, file, region, region_key};
use ringway_vhost::backend::{FEATURES, Offer, PROTOCOL_FEATURES};
use ringway_vhost::frontend::{Event, Negotiated, Preferences};
use ringway_vhost::{Fault, Frontend, Inbox, Message, Request};
use ringway_wire::vhost_user::{
    Op, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, VHOST_USER_PROTOCOL_F_MQ,
    VHOST_USER_PROTOCOL_F_REPLY_ACK, VHOST_USER_PROTOCOL_F_STATUS, VringState,
};
use ringway_wire::virtio::{Features, VIRTIO_NET_F_HOST_TSO4};
use zerocopy::IntoBytes;

fn preferences() -> Preferences {
    Preferences { features: FEATURES, protocol: PROTOCOL_FEATURES, pairs: 4 }
}

/// Transfers all messages, split into single bytes, until neither end has any.
fn run(frontend: &mut Frontend, device: &mut Device) -> Result<Vec<Event>, Fault> {
    let mut events = Vec::new();
    loop {
        let Some(message) = frontend.next_message() else { return Ok(events) };
        device.take(over_the_wire(message))?;
        for reply in device.sent.drain(..) {
            frontend.take(over_the_wire(reply))?;
        }
        events.extend(std::iter::from_fn(|| frontend.next_event()));
    }
}

fn over_the_wire(message: Message) -> Message {
    let mut inbox = Inbox::default();
    let bytes = message.bytes();
    let mut files = Some(message.files);
    let mut rest = &bytes[..];
    loop {
        let (now, later) = rest.split_at(inbox.wanted().min(5));
        rest = later;
        let files = files.take().unwrap_or_default();
        if let Some(message) = inbox.take(now, files).unwrap() {
            assert!(rest.is_empty());
            return message;
        }
    }
}

fn agreement(events: &[Event]) -> Option<Negotiated> {
    events.iter().find_map(|event| match event {
        Event::Negotiated(agreement) => Some(*agreement),
        _ => None,
    })
}

fn start(frontend: &mut Frontend, pairs: u16) {
    for ring in 0..2 * pairs {
        frontend.ask(Request::SetVringNum { ring, size: 128 });
        frontend.ask(Request::SetVringBase { ring, base: 0 });
        frontend.ask(Request::SetVringAddr { ring, addresses: addresses(ring) });
        frontend.ask(Request::SetVringCall { ring, file: Some(file()) });
        frontend.ask(Request::SetVringKick { ring, file: Some(file()) });
        frontend.ask(Request::SetVringEnable { ring, is_enabled: true });
    }
}

fn serve(protocol: u64) {
    let tso = Features::of(&[VIRTIO_NET_F_HOST_TSO4]);
    let features = FEATURES.without(tso);
    let offer = Offer { features, floor: Negotiated::NONE, protocol, pairs: 2, mtu_max: 9000 };
    let (mut device, mut frontend) = (Device::with(offer), Frontend::new(preferences()));
    let events = run(&mut frontend, &mut device).unwrap();
    let negotiated = agreement(&events).unwrap();
    let pairs = if protocol & VHOST_USER_PROTOCOL_F_MQ == 0 { 1 } else { 2 };
    assert_eq!(negotiated, Negotiated { features, protocol, pairs, mtu: 0 });
    frontend.share(vec![region(0), region(1)]);
    frontend.ask(Request::NetSetMtu(1500));
    frontend.ask(Request::SendRarp([2, 0, 0, 0, 0, 1]));
    start(&mut frontend, pairs);
    run(&mut frontend, &mut device).unwrap();
    assert_eq!(device.served.len(), usize::from(pairs));
    assert_eq!((device.memory.len(), device.starts), (2, usize::from(pairs)));
    frontend.ask(Request::GetVringBase { ring: 1 });
    let events = run(&mut frontend, &mut device).unwrap();
    assert!(matches!(events[..], [Event::Stopped { ring: 1, base: STEP }]), "{events:?}");
    assert!(!frontend.is_waiting());
}

#[test]
fn both_ends_agree_and_rings_are_served() {
    serve(PROTOCOL_FEATURES);
}

#[test]
fn a_driver_that_is_ready_says_so_if_its_status_was_agreed_on() {
    for protocol in [0, VHOST_USER_PROTOCOL_F_STATUS] {
        let (mut device, preferences) = (Device::new(1), Preferences { protocol, ..preferences() });
        let mut frontend = Frontend::new(preferences);
        run(&mut frontend, &mut device).unwrap();
        frontend.finish();
        frontend.ask(Request::GetStatus);
        let events = run(&mut frontend, &mut device).unwrap();
        let status = events.iter().find_map(|event| match event {
            Event::Status(status) => Some(*status),
            _ => None,
        });
        // ACKNOWLEDGE, DRIVER, DRIVER_OK and FEATURES_OK.
        assert_eq!(status, (protocol != 0).then_some(0b1111), "{events:?}");
    }
}

#[test]
fn every_set_of_protocol_features_will_do() {
    let bits = (0..17).map(|bit| 1 << bit).filter(|bit| PROTOCOL_FEATURES & bit != 0);
    let bits: Vec<u64> = bits.collect();
    for set in 0..1 << bits.len() {
        serve((0..bits.len()).filter(|bit| set >> bit & 1 == 1).map(|bit| bits[bit]).sum());
    }
}

#[test]
fn an_inflight_area_is_passed_to_the_front_end_and_back() {
    let (mut device, mut frontend) = (Device::new(1), Frontend::new(preferences()));
    run(&mut frontend, &mut device).unwrap();
    frontend.ask(Request::GetInflightFd { rings: 2, size: 128 });
    let mut events = run(&mut frontend, &mut device).unwrap();
    let Some(Event::Area(area)) = events.pop() else { panic!("{events:?}") };
    assert_eq!((area.rings, area.size, area.offset), (2, 128, 0));
    assert_eq!(area.len, 2 * 2112, "16 bytes and 16 for each descriptor, in lines of 64");
    frontend.ask(Request::SetInflightFd(area));
    run(&mut frontend, &mut device).unwrap();
    assert!(device.has_area);
}

#[test]
fn memory_is_withdrawn_region_by_region() {
    let (mut device, mut frontend) = (Device::new(1), Frontend::new(preferences()));
    run(&mut frontend, &mut device).unwrap();
    frontend.share(vec![region(0), region(1)]);
    frontend.unshare(region_key(0));
    frontend.ask(Request::GetMaxMemSlots);
    let events = run(&mut frontend, &mut device).unwrap();
    assert_eq!(device.memory, [region_key(1)]);
    assert!(matches!(events.last(), Some(Event::Done(Op::GetMaxMemSlots))), "{events:?}");
}

#[test]
fn a_base_is_an_index_of_the_ring_that_was_stopped() {
    for (index, num, is_good) in [(1, 65535, true), (1, 65536, false), (0, 9, false)] {
        let (mut device, mut frontend) = (Device::new(1), Frontend::new(preferences()));
        run(&mut frontend, &mut device).unwrap();
        frontend.ask(Request::GetVringBase { ring: 1 });
        frontend.next_message().unwrap();
        let payload = VringState { index, num }.as_bytes().to_vec();
        let request = Op::GetVringBase.number();
        let taken = frontend.take(Message { request, flags: 4, payload, files: Vec::new() });
        assert_eq!(taken.is_ok(), is_good, "{num} of ring {index}");
    }
}

#[test]
fn a_reply_that_was_not_asked_for_is_a_fault() {
    let mut frontend = Frontend::new(preferences());
    let reply =
        |op: Op| Message { request: op.number(), flags: 4, payload: vec![0; 8], files: Vec::new() };
    let words = frontend.take(reply(Op::GetQueueNum)).unwrap_err().to_string();
    assert_eq!(words, "GET_QUEUE_NUM is replied to, expected a reply to GET_FEATURES");
    let mut frontend = Frontend::new(preferences());
    let words = frontend.take(reply(Op::GetFeatures)).unwrap_err().to_string();
    assert_eq!(words, "the back-end lacks version 1 of virtio");
}

#[test]
fn a_request_that_the_back_end_could_not_do_is_named() {
    let acks = VHOST_USER_PROTOCOL_F_REPLY_ACK | VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
    let (mut device, mut frontend) =
        (Device::new(1), Frontend::new(Preferences { protocol: acks, ..preferences() }));
    run(&mut frontend, &mut device).unwrap();
    frontend.share(vec![region(0)]);
    frontend.next_message().unwrap();
    let no = Message {
        request: Op::AddMemReg.number(),
        flags: 4,
        payload: vec![1, 0, 0, 0, 0, 0, 0, 0],
        files: Vec::new(),
    };
    let words = frontend.take(no).unwrap_err().to_string();
    assert_eq!(words, "the back-end could not do ADD_MEM_REG: it replied 1");
}
