//! Frames go where their receiver's guest wants them.

use ringway_datapath::FlowHash;
use ringway_steering::toeplitz::{HashType, ToeplitzSteering};

use crate::bench::{Bench, ONE, Station};

/// All to one queue of four.
fn to_queue(queue: u32) -> Option<ToeplitzSteering> {
    let mut chosen = ToeplitzSteering::new();
    chosen.set_types(HashType::Ipv4.mask()).expect("the type is known");
    chosen.set_mapping_size(1).expect("it is short");
    chosen.set_mapping(0, &[queue], 4).expect("there is such a queue");
    Some(chosen)
}

/// Sends 64 frames of different flows to station 2, and returns how many each of its queues got.
fn send(bench: &mut Bench, sender: &Station, receivers: &[Station]) -> Vec<u64> {
    let received = |station: &Station| station.far().received;
    let before: Vec<u64> = receivers.iter().map(received).collect();
    sender.far().flows = 64;
    sender.far().script.extend([(2, 100); 64]);
    bench.ready(sender);
    for _ in 0..4 {
        bench.round();
    }
    receivers.iter().zip(before).map(|(station, before)| received(station) - before).collect()
}

#[test]
fn frames_go_to_the_queue_that_their_receiver_chooses_until_it_chooses_none() {
    let mut bench = Bench::new(1 << 24);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receivers = bench.port(2, 4, ONE);
    let steering = bench.let_steer(2);
    let spread = send(&mut bench, &sender, &receivers);
    assert!(spread.iter().all(|frames| *frames > 0), "{spread:?}");
    assert_eq!(receivers[0].far().last_hash, None);

    steering.set(to_queue(3));
    assert_eq!(send(&mut bench, &sender, &receivers), [0, 0, 0, 64]);
    let hash = FlowHash { value: 0, kind: HashType::Ipv4.number() };
    assert_eq!(receivers[3].far().last_hash, Some(hash));
    steering.set(to_queue(1));
    assert_eq!(send(&mut bench, &sender, &receivers), [0, 64, 0, 0]);

    steering.set(None);
    assert_eq!(send(&mut bench, &sender, &receivers), spread);
    assert_eq!(receivers[1].far().last_hash, None);
}

#[test]
fn a_receiver_with_one_queue_is_shown_the_hash_as_well() {
    let mut bench = Bench::new(1 << 24);
    let sender = bench.port(1, 1, ONE).remove(0);
    let receivers = bench.port(2, 1, ONE);
    bench.let_steer(2).set(to_queue(0));
    assert_eq!(send(&mut bench, &sender, &receivers), [64]);
    assert!(receivers[0].far().last_hash.is_some());
}

#[test]
fn what_the_guest_of_a_device_chooses_goes_before_the_queue_that_the_host_chose() {
    let mut bench = Bench::new(1 << 24);
    let senders = bench.patched_port(1, 4, 2);
    let receivers = bench.port(2, 4, ONE);
    let steering = bench.let_steer(2);
    assert_eq!(send(&mut bench, &senders[2], &receivers), [0, 0, 64, 0]);
    steering.set(to_queue(1));
    assert_eq!(send(&mut bench, &senders[2], &receivers), [0, 64, 0, 0]);
    steering.set(None);
    assert_eq!(send(&mut bench, &senders[2], &receivers), [0, 0, 64, 0]);
}
