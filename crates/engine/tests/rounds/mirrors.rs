//! Copies of frames for the output of a mirror.

use std::time::Duration;

use ringway_datapath::DropReason;

use crate::bench::{Bench, ONE, Station};
use crate::{MEMORY, SECOND, page_each};

/// Sender, receiver, one more port, and the output of a mirror.
fn mirrored(ingress: &[u8], egress: &[u8]) -> (Bench, [Station; 4]) {
    let mut bench = Bench::new(MEMORY);
    let stations = [1, 2, 3, 9].map(|number| bench.port(number, 1, ONE).remove(0));
    bench.mirror(9, ingress, egress);
    (bench, stations)
}

#[test]
fn a_mirror_gets_each_frame_of_its_ports_once_and_nothing_else() {
    for (ingress, egress, copies) in [
        (&[1_u8][..], &[][..], 3),
        (&[], &[2], 3),
        (&[1, 2, 3], &[1, 2, 3], 5),
        (&[3], &[3], 4),
        (&[], &[1], 2),
    ] {
        let (mut bench, [sender, receiver, third, output]) = mirrored(ingress, egress);
        sender.far().script = [(2, 100), (3, 200), (255, 300)].into();
        // The second is for the station at the output, which the switch does not know.
        third.far().script = [(1, 400), (9, 500)].into();
        for _ in 0..20 {
            bench.round();
        }
        assert_eq!((receiver.far().received, third.far().received), (3, 2));
        assert_eq!(output.far().received, copies, "{ingress:?} {egress:?}");
    }
}

#[test]
fn a_mirror_output_neither_sends_nor_gets_floods() {
    let (mut bench, [sender, receiver, _, output]) = mirrored(&[], &[]);
    sender.far().script = [(255, 300), (9, 300)].into();
    for _ in 0..20 {
        bench.round();
    }
    assert!(receiver.far().received >= 1);
    assert_eq!(output.far().received, 0);
}

#[test]
fn a_blocked_mirror_costs_the_mirrored_ports_no_frame() {
    let (mut bench, [sender, receiver, _, output]) = mirrored(&[1], &[2]);
    output.far().room = 0;
    sender.far().script = [(2, 1514)].into();
    sender.far().is_endless = true;
    bench.run(SECOND / 10, |_| ());
    let (taken, received) = (sender.far().taken, receiver.far().received);
    assert!(taken > 10_000 && taken - received < 1024, "{taken} {received}");
    assert_eq!(receiver.dropped(DropReason::QueueFull), 0);
    // They are counted at their destination, not at the sender.
    assert!(output.dropped(DropReason::QueueFull) > 1000);
    assert_eq!(sender.dropped(DropReason::QueueFull), 0);
}

#[test]
fn a_waiting_frame_is_mirrored_once() {
    let (mut bench, [sender, receiver, _, output]) = mirrored(&[1], &[2]);
    sender.far().script = [(2, 60)].into();
    sender.far().is_endless = true;
    receiver.far().room = 0;
    bench.run(SECOND / 50, page_each(&receiver, Duration::from_millis(1)));
    sender.far().script.clear();
    receiver.far().room = usize::MAX;
    bench.run(SECOND / 2, |_| ());
    let taken = sender.far().taken;
    let lost = output.dropped(DropReason::QueueFull);
    assert_eq!(output.far().received + lost, taken, "of {taken}, {lost} were lost");
}
