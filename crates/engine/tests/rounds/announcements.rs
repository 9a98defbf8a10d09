//! Stations that are announced in their name.

use std::sync::Arc;

use ringway_datapath::{DropReason, LockingMode, PortRules};
use ringway_engine::Announcement;
use ringway_switch::{Binding, Claim, PortPolicy};

use crate::MEMORY;
use crate::bench::{Bench, ONE, Station, address};

fn claim(station: u8, ip: Option<[u8; 4]>) -> Claim {
    Claim { mac: address(station), ip: ip.map(Into::into) }
}

/// Has all queues of a port send an announcement.
fn announce(bench: &mut Bench, queues: &[Station], announcement: &Arc<Announcement>) {
    queues.iter().for_each(|queue| bench.announce(queue, announcement));
    for _ in 0..8 {
        bench.round();
    }
}

#[test]
fn one_queue_of_a_port_announces_what_its_guest_may_not_send() {
    let mut bench = Bench::new(MEMORY);
    let rules =
        PortRules { allowed: vec!["10.0.0.1".parse().expect("good")], ..Default::default() };
    let locked = Some(LockingMode::Locked);
    let own = Some(address(1));
    let policy = PortPolicy::for_vif(&rules, locked, 1, own, Binding::None);
    let queues = bench.port_of(1, 2, policy);
    let other = bench.port(2, 1, ONE).remove(0);
    let claims = vec![claim(1, Some([10, 0, 0, 1])), claim(1, None)];
    let announcement = Arc::new(Announcement::new(claims, 0, false));
    announce(&mut bench, &queues, &announcement);
    assert_eq!(other.far().received, 2);
    assert_eq!(other.far().last[..2], [0x80, 0x35]);
    announce(&mut bench, &queues, &announcement);
    assert_eq!(other.far().received, 2, "all was announced");
    announcement.repeat();
    announce(&mut bench, &queues, &announcement);
    assert_eq!(other.far().received, 4);
    // The guest itself is checked as before.
    queues[0].far().script = [(2, 60)].into();
    bench.ready(&queues[0]);
    bench.round();
    assert_eq!((other.far().received, queues[0].dropped(DropReason::Protocol)), (4, 1));
    // The address of another station is not announced.
    let of_another = Arc::new(Announcement::new(vec![claim(9, None)], 0, false));
    announce(&mut bench, &queues[1..], &of_another);
    assert_eq!((other.far().received, queues[1].dropped(DropReason::BadSource)), (4, 1));
}

#[test]
fn a_port_through_which_nothing_passes_announces_nothing() {
    let mut bench = Bench::new(MEMORY);
    let queues = bench.port_of(1, 1, PortPolicy::disabled());
    let other = bench.port(2, 1, ONE).remove(0);
    let announcement = Arc::new(Announcement::new(vec![claim(1, None)], 0, false));
    announce(&mut bench, &queues, &announcement);
    assert_eq!((other.far().received, queues[0].dropped(DropReason::PortDisabled)), (0, 1));
}

#[test]
fn more_claims_than_a_batch_has_room_for_are_all_announced() {
    let mut bench = Bench::new(MEMORY);
    let queues = bench.port(1, 1, ONE);
    let other = bench.port(2, 1, ONE).remove(0);
    let claims = (0..150).map(|last| claim(1, Some([10, 0, 0, last]))).collect();
    announce(&mut bench, &queues, &Arc::new(Announcement::new(claims, 0, false)));
    assert_eq!(other.far().received, 150);
}

#[test]
fn the_first_frames_of_a_port_show_what_else_is_to_be_announced() {
    let mut bench = Bench::new(MEMORY);
    let queues = bench.port(1, 2, ONE);
    let refused = bench.port_of(3, 1, PortPolicy::of_addresses([address(9)]));
    let sharing = bench.port_of(4, 1, PortPolicy::open().sharing([address(4)]));
    let other = bench.port(2, 1, ONE).remove(0);
    for queues in [&queues, &refused, &sharing] {
        announce(&mut bench, queues, &Arc::new(Announcement::new(Vec::new(), 8, false)));
    }
    assert_eq!(other.far().received, 0, "nothing is known");
    for station in queues.iter().chain(&refused).chain(&sharing) {
        station.far().script = [(2, 100); 3].into();
        bench.ready(station);
    }
    for _ in 0..8 {
        bench.round();
    }
    assert_eq!(refused[0].dropped(DropReason::BadSource), 3, "its frames show nothing");
    // Once, although two queues have shown it. A shared address may be elsewhere by then.
    assert_eq!(other.far().received, 3 * 3 + 1);
}
