use std::sync::atomic::{AtomicUsize, Ordering};

use ringway_loopback::{Limits, Loopback, LoopbackDomain};
use ringway_netfront::{HashWish, QUEUE_RUNS};
use ringway_wire::DomId;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

const HOST: DomId = DomId(0);
const GUEST: DomId = DomId(7);
/// Pages of a queue, and of the slabs of a vif.
const QUEUE: usize = 514;
const SLABS: usize = 240;

fn link(handle: u32) -> NicLink<LoopbackDomain> {
    let vif = Vif { backend: HOST, frontend: GUEST, handle };
    let ports = [PortId(0), PortId(1)];
    Nic::new(vif, format!("eth{handle}"), Interface::default(), ports).link
}

/// Counts the lines of a log.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_backend_cannot_fill_the_log_of_its_guest() {
    let lines: Arc<AtomicUsize> = Arc::default();
    let (mut of_storm, mut other) = (link(0), link(1));
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
        (0..1000).for_each(|_| of_storm.note(Note::Closed("its offer is unusable")));
    });
    let written = lines.load(Ordering::Relaxed);
    assert!((1..100).contains(&written), "{written} lines");
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
        other.note(Note::Waits("it lacks memory"));
    });
    assert_eq!(lines.load(Ordering::Relaxed), written + 1, "it has lines of its own");
}

/// A machine, and a guest in it with so many pages.
fn guest(pages_max: usize) -> (Loopback, LoopbackDomain) {
    let machine = Loopback::new();
    let limits = Limits { pages_max, ..Limits::default() };
    let guest = machine.create_domain(GUEST, limits).expect("the first of its number");
    (machine, guest)
}

/// What a vif of one queue asks for.
fn one_queue() -> Allocation {
    Allocation {
        queues: 1,
        split_event_channels: false,
        backend: Features::from(OffloadCaps::ALL),
        control_ring: true,
        multicast_control: false,
    }
}

#[test]
fn no_vif_lacks_pages_for_its_queue_that_only_serve_the_speed_of_another() {
    // One vif after the other, two together, and so on: as their backends come.
    for together in 1..=4 {
        let (machine, guest) = guest(4 * QUEUE + SLABS + 8);
        let mut links: Vec<_> = (0..4).map(link).collect();
        let mut reserve = Reserve::default();
        (0..4).for_each(|handle| reserve.add(handle));
        for links in links.chunks_mut(together) {
            for link in &mut *links {
                let made = link.make_queues(&guest, &mut reserve, one_queue());
                made.unwrap_or_else(|error| panic!("{together} at a time: {error}"));
            }
            links.iter_mut().for_each(|link| link.make_slabs(&guest, &reserve));
        }
        let with_slabs = links.iter().filter(|link| link.slabs.is_some()).count();
        assert_eq!(with_slabs, 1, "{together} at a time: there is room for those of one");
        for link in &mut links {
            assert_eq!(link.release(&guest, &mut reserve), Released::Free);
        }
        assert_eq!(machine.holdings_of(GUEST).pages, 0);
    }
}

#[test]
fn a_vif_whose_backend_does_not_come_costs_others_their_slabs_only_if_memory_is_short() {
    let room = QUEUE + SLABS + QUEUE_RUNS.iter().sum::<usize>();
    for (pages_max, has_slabs) in [(room, true), (room - 1, false)] {
        let (machine, guest) = guest(pages_max);
        let (mut reserve, mut served) = (Reserve::default(), link(0));
        (0..2).for_each(|handle| reserve.add(handle));
        served.make_queues(&guest, &mut reserve, one_queue()).expect("there is room");
        served.make_slabs(&guest, &reserve);
        assert_eq!(served.slabs.is_some(), has_slabs);
        let expected = if has_slabs { QUEUE + SLABS } else { QUEUE };
        assert_eq!(machine.holdings_of(GUEST).pages, expected, "nothing else stays taken");
        // The other one is removed.
        reserve.remove(1);
        served.make_slabs(&guest, &reserve);
        assert!(served.slabs.is_some());
    }
}

#[test]
fn room_is_kept_for_a_vif_that_connects_again() {
    let (_machine, guest) = guest(2 * QUEUE + SLABS - 1);
    let (mut reserve, [mut one, mut other]) = (Reserve::default(), [link(0), link(1)]);
    for link in [&mut one, &mut other] {
        link.make_queues(&guest, &mut reserve, one_queue()).expect("there is room");
    }
    assert_eq!(other.release(&guest, &mut reserve), Released::Free);
    one.make_slabs(&guest, &reserve);
    assert!(one.slabs.is_none());
    other.make_queues(&guest, &mut reserve, one_queue()).expect("its room was kept");
}

#[test]
fn the_room_that_is_kept_is_that_of_a_queue_with_a_control_ring() {
    let (machine, guest) = guest(1000);
    let mut link = link(0);
    link.interface.hash = Some(HashWish::default());
    let made = link.make_queues(&guest, &mut Reserve::default(), one_queue());
    assert!(made.expect("there is room").control.is_some());
    assert_eq!(machine.holdings_of(GUEST).pages, QUEUE_RUNS.iter().sum::<usize>());
}
