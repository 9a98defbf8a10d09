//! Frames from one engine to another, and the steps by which queues come, move and go.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ringway_datapath::{DropReason, PortId, WaitReason};
use ringway_engine::gauge::Admission;
use ringway_engine::steps::{self, Command, Engines};
use ringway_engine::{Hopped, IfIdle, Limits, PortSteering, SlotId, Wait, Whereabouts};
use ringway_switch::PortPolicy;

use crate::bench::Station;
use crate::pair::Pair;

/// A sender in the first engine, and a receiver in this one.
fn pair_with_receiver(engine: usize) -> (Pair, Station, Station) {
    let mut pair = Pair::new();
    let sender = pair.port(1, &[0]).remove(0);
    let receiver = pair.port(2, &[engine]).remove(0);
    (pair, sender, receiver)
}

/// A frame of each of these lengths for station 2.
fn send(sender: &Station, lens: Range<usize>) {
    sender.far().script.extend(lens.map(|len| (2, len)));
}

/// The lengths of the frames that a station got, in order.
fn lens(station: &Station) -> Vec<usize> {
    station.far().lens.iter().copied().collect()
}

fn all(lens: Range<usize>) -> Vec<usize> {
    lens.collect()
}

#[test]
fn frames_for_another_engine_wake_it_once() {
    let (mut pair, sender, receiver) = pair_with_receiver(1);
    assert_eq!(pair.rest(1), Wait::Event);
    send(&sender, 60..100);
    assert_eq!(pair.round(0, IfIdle::Sleep), Wait::Now);
    assert_eq!([pair.rung(0), pair.rung(1)], [0, 1]);
    assert_eq!(receiver.far().received, 0);
    assert_eq!(pair.round(1, IfIdle::Sleep), Wait::Now);
    assert_eq!(lens(&receiver), all(60..100));
    assert_eq!([pair.rest(0), pair.rest(1)], [Wait::Event; 2]);
    assert_eq!([pair.rung(0), pair.rung(1)], [0, 1]);
}

#[test]
fn only_frames_between_single_queues_of_two_engines_speak_for_a_move() {
    let mut pair = Pair::new();
    let single = pair.port(1, &[0]).remove(0);
    let double = pair.port(2, &[0, 0]);
    pair.port(3, &[1]);
    pair.port(4, &[1, 1]);
    pair.port(5, &[0]);
    let hopped = |pair: &Pair, port| pair.place(port, 0).gauge.hopped();
    single.far().script = [(4, 60), (5, 60)].into();
    double[0].far().script = [(3, 60)].into();
    pair.run(1);
    assert_eq!([hopped(&pair, 1), hopped(&pair, 2)], [None; 2]);
    single.far().script = [(3, 60), (3, 60)].into();
    pair.run(1);
    assert_eq!(hopped(&pair, 1), Some(Hopped { engine: 1, frames: 2 }));
}

#[test]
fn a_source_waits_while_the_inbox_of_another_engine_is_full() {
    let (mut pair, sender, receiver) = pair_with_receiver(1);
    let flooder = pair.port(3, &[0]).remove(0);
    sender.far().script = [(2, 60); 600].into();
    for _ in 0..20 {
        pair.round(0, IfIdle::Poll);
    }
    // It keeps the batch that it had taken in when it found the inbox full.
    assert_eq!((pair.inboxes[1].len(), sender.far().taken), (256, 256 + 64));
    let awaited = sender.counters.tx_wait.get().map(|(reason, _)| reason);
    assert_eq!(awaited, Some(WaitReason::Another));
    let mut visited = 0;
    pair.inboxes[1].visit_parcels(&mut |parcel| visited += usize::from(parcel.frame.len() == 60));
    assert_eq!((visited, pair.inboxes[1].len()), (256, 256));

    // A copy of a flood takes no room there.
    flooder.far().script = [(255, 70)].into();
    pair.round(0, IfIdle::Poll);
    assert_eq!((pair.inboxes[1].len(), flooder.dropped(DropReason::InboxFull)), (256, 1));
    assert_eq!(sender.far().received, 1);

    assert_eq!(pair.rest(0), Wait::Event);
    assert_eq!(pair.round(1, IfIdle::Sleep), Wait::Now);
    assert_eq!((pair.rung(0), pair.inboxes[1].len()), (0, 0));
    pair.round(1, IfIdle::Sleep);
    assert_eq!(pair.rung(0), 1, "there is room");
    pair.run(20);
    assert_eq!((receiver.far().received, sender.dropped(DropReason::InboxFull)), (600, 0));
    flooder.far().script = [(255, 70)].into();
    let id = pair.place(3, 0).slot;
    pair.engines[0].apply(Command::Poll { id });
    pair.run(1);
    assert_eq!(receiver.far().received, 601);
    assert_eq!(flooder.dropped(DropReason::InboxFull), 1);
}

#[test]
fn a_receiver_that_changes_engines_gets_all_frames_in_order() {
    let (mut pair, sender, receiver) = pair_with_receiver(1);
    let before = pair.place(2, 0).slot;
    receiver.far().room = 5;
    send(&sender, 60..100);
    pair.run(3);
    assert_eq!(lens(&receiver), all(60..65));
    // These come while it is on its way.
    send(&sender, 100..140);
    assert_eq!(steps::move_queue(&mut pair, PortId(2), 0, 0), Ok(true));
    assert_eq!((sender.far().taken, pair.place(2, 0).engine), (80, 0));
    receiver.far().room = usize::MAX;
    pair.run(2);
    assert_eq!(lens(&receiver), all(60..140));
    assert_eq!(receiver.dropped(DropReason::QueueFull), 0);

    assert_eq!(steps::move_queue(&mut pair, PortId(2), 1, 0), Ok(false), "it has one queue");
    pair.port(3, &[1]);
    let next = pair.place(3, 0).slot;
    assert_eq!(next.index, before.index, "its old place is free");
    assert_ne!(next, before);
}

#[test]
fn a_held_sender_that_changes_engines_takes_along_what_it_keeps() {
    let (mut pair, sender, receiver) = pair_with_receiver(0);
    receiver.far().room = 0;
    send(&sender, 60..260);
    pair.run(5);
    assert_eq!(pair.count(0, Whereabouts::Kept { from: PortId(1) }), 64);
    assert_eq!(steps::move_queue(&mut pair, PortId(1), 0, 1), Ok(true));
    assert_eq!(pair.count(0, Whereabouts::Kept { from: PortId(1) }), 0);
    assert_eq!(pair.count(1, Whereabouts::Kept { from: PortId(1) }), 64);
    receiver.far().room = usize::MAX;
    pair.run(20);
    assert_eq!(lens(&receiver), all(60..260));
}

#[test]
fn frames_for_a_queue_that_fails_on_its_way_are_given_up() {
    let (mut pair, sender, receiver) = pair_with_receiver(1);
    send(&sender, 60..70);
    receiver.far().fails = true;
    assert_eq!(steps::move_queue(&mut pair, PortId(2), 0, 0), Ok(true));
    assert_eq!(sender.far().taken, 10);
    let slot = pair.place(2, 0).slot;
    assert_eq!(pair.count(0, Whereabouts::Gathers { slot }), 0);
    let failure = pair.next_failure().map(|it| (it.port_id, it.queue_index));
    assert_eq!(failure, Some((PortId(2), 0)));
    // waits: the control plane does each step at once
    assert!(pair.next_failure().is_none());
}

#[test]
fn frames_gather_for_a_queue_on_its_way_up_to_a_mark() {
    let (mut pair, _sender, receiver) = pair_with_receiver(1);
    let moved = pair.roster.redirect(PortId(2), 0, 0).expect("it is there");
    let (id, gauge) = (moved.to.slot, Arc::clone(&moved.to.gauge));
    pair.engines[0].apply(Command::Expect { id, gauge: Arc::clone(&gauge) });
    let gathered = |pair: &Pair| pair.count(0, Whereabouts::Gathers { slot: id });
    pair.put_in(0, id, Admission::Late, 60..187);
    pair.round(0, IfIdle::Poll);
    assert_eq!((gathered(&pair), gauge.has_pressure()), (127, false));
    // The first of these reaches the mark.
    pair.put_in(0, id, Admission::Late, 187..190);
    pair.round(0, IfIdle::Poll);
    assert_eq!((gathered(&pair), gauge.has_pressure(), gauge.is_raised()), (128, true, false));
    assert_eq!(pair.engines[0].drops_to_count(), 2);
    let other = SlotId { generation: id.generation + 1, ..id };
    pair.engines[0].apply(Command::Forget { id: other });
    assert_eq!((gathered(&pair), pair.engines[0].port_at(id)), (128, None));

    let attached = pair.take_back(&moved.from).expect("engines stay").expect("it is there");
    let attached = Box::new(attached.moved_to(id, pair.now()));
    pair.engines[0].apply(Command::Attach { attached });
    pair.round(0, IfIdle::Poll);
    assert_eq!(lens(&receiver), all(60..188));
    assert_eq!((gauge.has_pressure(), pair.engines[0].drops_to_count()), (false, 0));
    assert_eq!(receiver.dropped(DropReason::QueueFull), 2, "it counts them now");
    let found = [id, other].map(|id| pair.engines[0].port_at(id));
    assert_eq!(found, [Some(PortId(2)), None]);
}

#[test]
fn frames_that_gather_take_no_more_memory_than_a_port_may() {
    let (mut pair, _sender, receiver) = pair_with_receiver(1);
    let moved = pair.roster.redirect(PortId(2), 0, 0).expect("it is there");
    let (id, gauge) = (moved.to.slot, Arc::clone(&moved.to.gauge));
    pair.engines[0].apply(Command::Expect { id, gauge });
    // Each takes 64 KiB. A port may take a quarter of what they leave of 64 MiB.
    pair.put_in(0, id, Admission::Waits, 60_000..60_256);
    pair.round(0, IfIdle::Poll);
    let gathered = pair.count(0, Whereabouts::Gathers { slot: id });
    assert!((150..220).contains(&gathered), "{gathered}");
    assert_eq!(pair.engines[0].drops_to_count(), u64::try_from(256 - gathered).expect("few"));
    pair.engines[0].apply(Command::Forget { id });
    assert_eq!(pair.count(0, Whereabouts::Gathers { slot: id }), 0);
    assert_eq!((receiver.far().received, pair.engines[0].drops_to_count()), (0, 0));
}

#[test]
fn frames_for_a_queue_that_was_in_a_place_before_are_not_for_this_one() {
    let (mut pair, _sender, receiver) = pair_with_receiver(0);
    let id = pair.place(2, 0).slot;
    for other in [SlotId { generation: id.generation + 1, ..id }, SlotId { index: 100, ..id }] {
        pair.put_in(0, other, Admission::Waits, 60..70);
    }
    pair.put_in(0, id, Admission::Waits, 70..75);
    pair.run(1);
    assert_eq!(lens(&receiver), all(70..75));
}

#[test]
fn frames_are_found_where_they_wait() {
    let (mut pair, sender, receiver) = pair_with_receiver(0);
    receiver.far().room = 0;
    send(&sender, 60..252);
    pair.run(5);
    let place = pair.place(2, 0);
    let waits = Whereabouts::Waits { to: PortId(2), slot: place.slot };
    let kept = Whereabouts::Kept { from: PortId(1) };
    assert_eq!((pair.count(0, waits), pair.count(0, kept)), (128, 64));
    let attached = pair.take_back(&place).expect("engines stay").expect("it is there");
    let mut found = 0;
    attached.visit_frames(&mut |at, _| found += usize::from(at == waits));
    assert_eq!((found, attached.port_id(), attached.id()), (128, PortId(2), place.slot));
    pair.release(*attached);
    assert_eq!(pair.count(0, waits), 0);
}

#[test]
fn a_port_is_attached_once_and_a_command_reaches_each_of_its_queues() {
    let mut pair = Pair::new();
    let queues = pair.port(1, &[0, 1]);
    let other = pair.port(2, &[1]).remove(0);
    assert_eq!(pair.complete, [PortId(1), PortId(2)]);
    let again = pair.port_with(1, &[0], None).map_err(|error| error.kind());
    assert_eq!(again.err(), Some(io::ErrorKind::AlreadyExists));
    assert_eq!((pair.roster.count(PortId(1)), pair.complete.len()), (2, 2));

    let cut = |id| {
        let limits = Limits { shut: Some(DropReason::LinkDown), ..Limits::default() };
        Command::Limit { id, limits }
    };
    assert_eq!(steps::command_port(&mut pair, PortId(3), cut), Ok(false));
    assert_eq!(steps::command_port(&mut pair, PortId(1), cut), Ok(true));
    queues.iter().for_each(|queue| send(queue, 60..61));
    other.far().script = [(1, 60)].into();
    pair.run(2);
    let dropped: u64 = queues.iter().map(|queue| queue.dropped(DropReason::LinkDown)).sum();
    assert_eq!((dropped, other.far().received), (2 + 1, 0));
    assert!(queues.iter().all(|queue| queue.dropped(DropReason::LinkDown) > 0));

    let policy = Arc::new(PortPolicy::disabled());
    let close = |id| Command::SetPolicy { id, policy: Arc::clone(&policy) };
    assert_eq!(steps::command_port(&mut pair, PortId(2), close), Ok(true));
    // Nothing but the command wakes it.
    assert_eq!(pair.rest(1), Wait::Event);
    other.far().script = [(1, 60)].into();
    pair.run(1);
    assert_eq!(other.dropped(DropReason::PortDisabled), 0);
    assert_eq!(steps::command_port(&mut pair, PortId(2), |id| Command::Poll { id }), Ok(true));
    pair.run(1);
    assert_eq!(other.dropped(DropReason::PortDisabled), 1);
}

#[test]
fn a_port_that_is_detached_gives_back_its_queues_in_order() {
    let mut pair = Pair::new();
    let sender = pair.port(1, &[0]).remove(0);
    pair.port(2, &[1, 0, 1]);
    let places = [0, 1, 2].map(|queue| pair.place(2, queue).slot);
    let mut returned = Vec::new();
    let detached = steps::detach(&mut pair, PortId(2), |pair, attached| {
        returned.push((attached.port_id(), attached.id()));
        pair.release(attached);
    });
    assert_eq!(detached, Ok(()));
    assert_eq!(returned, places.map(|id| (PortId(2), id)));
    assert_eq!(pair.roster.count(PortId(2)), 0);
    // A command that comes late has no effect.
    for id in [places[0], SlotId { index: 100, ..places[0] }] {
        pair.engines[1].apply(Command::Poll { id });
    }
    send(&sender, 60..61);
    pair.run(1);
    assert_eq!(sender.dropped(DropReason::NoRoute), 1);
    pair.port(3, &[1, 1, 1]);
    let next: BTreeSet<usize> = (0..3).map(|queue| pair.place(3, queue).slot.index).collect();
    assert_eq!(next, BTreeSet::from([0, 1, 2]), "two of these places were used before");
}

/// A balanced port with a queue in each engine, of which the first gets the longer frames and has
/// no room; flows begin to leave it.
fn leaving() -> (Pair, [Station; 2], Arc<PortSteering>) {
    let mut pair = Pair::new();
    let sender = pair.port(1, &[0]).remove(0);
    let steering = Arc::new(PortSteering::balanced(2));
    let mut queues = pair.port_with(2, &[0, 1], Some(&steering)).expect("it has no queues yet");
    let queues = [queues.remove(0), queues.remove(0)];
    sender.far().flows = 64;
    queues[0].far().ring = Some(VecDeque::new());
    sender.far().script = [(2, 100); 64].into();
    pair.run(2);
    let of_first = queues[0].far().ring.take().expect("it has one");
    let of_first: BTreeSet<u16> = of_first.into_iter().map(|(flow, _)| flow).collect();
    assert_eq!(steps::balance_flows(&mut pair), Ok(()), "nothing waits");
    let len = |flow: u16| if of_first.contains(&flow) { 1400 } else { 100 };
    sender.far().script = (0..64).map(|flow| (2, len(flow))).collect();
    queues[0].far().room = 0;
    pair.run(2);
    assert_eq!(steps::balance_flows(&mut pair), Ok(()));
    assert_eq!(steering.moved(), Some(0));
    (pair, queues, steering)
}

#[test]
fn flows_of_a_balanced_port_leave_a_queue_that_cannot_keep_up() {
    let (mut pair, queues, steering) = leaving();
    queues[0].far().room = usize::MAX;
    pair.run(200);
    assert!(steering.moved() > Some(0));
    assert_eq!(queues.iter().map(|queue| queue.far().received).sum::<u64>(), 128);
}

#[test]
fn flows_stay_in_a_queue_that_changes_engines_meanwhile() {
    let (mut pair, queues, steering) = leaving();
    assert_eq!(steps::move_queue(&mut pair, PortId(2), 0, 1), Ok(true));
    queues[0].far().room = usize::MAX;
    pair.run(200);
    assert_eq!(steering.moved(), Some(0));
    assert_eq!(queues.iter().map(|queue| queue.far().received).sum::<u64>(), 128);
}
