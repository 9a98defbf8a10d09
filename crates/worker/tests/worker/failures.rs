//! Ports that fail or are detached: each is reported once, and other ports continue.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringway_datapath::{Probe, QueueDown};
use ringway_engine::steps::{self, Command};
use ringway_switch::PortId;
use ringway_sys::poll::wait_readable;
use ringway_worker::{Capture, Failure, Forwarding, Passage, Policy, Workers, WorkersConfig};

use crate::double::{PATIENCE, TestPort, attachment, config, port, port_with};

fn patch(to: u16) -> Forwarding {
    Forwarding::Patch(PortId(to))
}

fn wait_for_event(workers: &mut Workers<TestPort>) -> Failure<TestPort> {
    assert!(wait_readable(workers, Some(PATIENCE)).expect("ours"), "no queue was reported");
    workers.next_failure().expect("an event was announced")
}

#[test]
fn a_failed_queue_is_reported_once_and_the_others_continue() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let (ports, peers): (Vec<_>, Vec<_>) = (0..3).map(|_| port()).unzip();
    let (sink, far) = port();
    let queues = ports.into_iter().map(attachment).collect();
    workers.attach(PortId(1), &patch(2), queues).expect("attached");
    workers.attach(PortId(2), &patch(1), vec![attachment(sink)]).expect("attached");

    peers[1].fail();
    let event = wait_for_event(&mut workers);
    assert_eq!((event.port_id, event.queue_index), (PortId(1), 1));
    assert!(matches!(event.down, QueueDown::Peer(_)));
    // The port is back with its last clone of the far side.
    drop(event.queue);

    peers[0].send_flow(1, 2, 0, 0, 100);
    peers[2].send_flow(1, 2, 1, 0, 100);
    far.wait_until("both other queues continue", |far| far.received == 200);
    assert_eq!(workers.detach(PortId(1)).len(), 2);
    // waits: `detach` ends when every worker has acted on it.
    assert!(workers.next_failure().is_none());
    assert!(workers.detach(PortId(1)).is_empty());
}

/// Ends of a hold other than by room.
enum End {
    Failure,
    Detach,
}

/// A sink on one worker holds a source on another, and is then removed. The source's worker is
/// asleep at that moment, or about to sleep: the rounds differ in how long they wait before the
/// end.
fn hold_and_end(end: &End) {
    for round in 0..200 {
        let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
        let (sink, far) = port();
        let (source, near) = port();
        far.stop_draining();
        workers.attach(PortId(2), &patch(1), vec![attachment(sink)]).expect("attached");
        workers.attach(PortId(1), &patch(2), vec![attachment(source)]).expect("attached");
        near.send_flow(1, 2, 0, 0, 3000);
        near.wait_until("some are in flight", |near| near.script.len() < 3000);
        for _ in 0..round {
            std::thread::yield_now();
        }
        match end {
            End::Failure => far.fail(),
            End::Detach => assert_eq!(workers.detach(PortId(2)).len(), 1),
        }
        near.wait_until("all frames are taken in", |near| near.script.is_empty());
    }
}

#[test]
fn a_source_resumes_when_the_queue_that_held_it_fails() {
    hold_and_end(&End::Failure);
}

#[test]
fn a_source_resumes_when_the_port_that_held_it_is_detached() {
    hold_and_end(&End::Detach);
}

#[test]
fn frames_for_a_failed_queue_reach_no_other_queue() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let (source, near) = port();
    let (sink, far) = port();
    workers.attach(PortId(1), &patch(2), vec![attachment(source)]).expect("attached");
    workers.attach(PortId(2), &patch(1), vec![attachment(sink)]).expect("attached");
    far.fail();
    let failed = wait_for_event(&mut workers);
    assert_eq!(failed.port_id, PortId(2));
    // To the worker that port 3 will be on.
    assert!(workers.place(PortId(2), 0, 1));
    near.send_flow(1, 2, 0, 0, 50);
    near.wait_until("all frames are taken in", |near| near.script.is_empty());
    assert!(workers.detach(PortId(2)).is_empty());

    let (other, other_far) = port();
    let (writer, writer_near) = port();
    workers.attach(PortId(3), &patch(4), vec![attachment(other)]).expect("attached");
    workers.attach(PortId(4), &patch(3), vec![attachment(writer)]).expect("attached");
    writer_near.send_flow(4, 3, 9, 0, 1);
    other_far.wait_until("its own frame came", |far| far.expected[9] == 1);
    assert_eq!(other_far.far().received, 1);
}

#[test]
fn a_capture_sees_both_directions_and_ends_with_its_port() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let (left, left_far) = port();
    let (right, right_far) = port();
    workers.attach(PortId(1), &patch(2), vec![attachment(left)]).expect("attached");
    workers.attach(PortId(2), &patch(1), vec![attachment(right)]).expect("attached");
    let capture = Arc::new(Capture::new(64, (Instant::now(), SystemTime::now())));
    let copy = |id| Command::Capture { id, capture: Arc::clone(&capture) };
    assert_eq!(steps::command_port(&mut workers, PortId(1), copy), Ok(true));
    assert_eq!(steps::command_port(&mut workers, PortId(3), copy), Ok(false));
    // Moving a queue waits for its workers, which have then applied all earlier commands; and a
    // capture moves with its queue.
    assert!(workers.place(PortId(1), 0, 0));
    left_far.send_flow(1, 2, 0, 0, 5);
    right_far.wait_until("frames from the left", |far| far.received == 5);
    right_far.send_flow(2, 1, 1, 0, 7);
    left_far.wait_until("frames from the right", |far| far.received == 7);
    let copies: Vec<_> = std::iter::from_fn(|| capture.next()).collect();
    let count = |passage| copies.iter().filter(|copy| copy.passage == passage).count();
    assert_eq!((count(Passage::Ingress), count(Passage::Egress)), (5, 7));
    assert!(copies.iter().all(|copy| copy.len == 60 && copy.bytes.len() == 60));
    assert!(capture.is_open());
    workers.detach(PortId(1));
    assert!(!capture.is_open());
    assert_eq!(capture.lost(), 0);
}

#[test]
fn a_port_whose_descriptor_reports_everything_is_served() {
    let mut workers = Workers::start(config(1, Policy::Balanced)).expect("threads can be made");
    let (left, near) = port_with(Probe::SystemCall);
    let (right, far) = port();
    workers.attach(PortId(1), &patch(2), vec![attachment(left)]).expect("attached");
    workers.attach(PortId(2), &patch(1), vec![attachment(right)]).expect("attached");
    for burst in 0..10 {
        near.send_flow(1, 2, 0, burst * 100, 100);
        far.wait_until("a burst", |far| far.received == u64::from(burst + 1) * 100);
    }
}

#[test]
fn a_port_whose_descriptor_reports_everything_is_not_polled_needlessly() {
    let mut workers = Workers::start(config(1, Policy::Balanced)).expect("threads can be made");
    let (left, near) = port_with(Probe::SystemCall);
    let (right, far) = port();
    workers.attach(PortId(1), &patch(2), vec![attachment(left)]).expect("attached");
    workers.attach(PortId(2), &patch(1), vec![attachment(right)]).expect("attached");
    near.wait_until("the poll after it was attached", |near| near.polls > 0);
    assert!(workers.all_respond(PATIENCE));
    let before = near.far().polls;
    for frame in 0..10 {
        near.send_flow(1, 2, 0, frame, 1);
        far.wait_until("a frame", |far| far.received == u64::from(frame + 1));
        // The second call must not take in the next frame.
        near.wait_until("both calls", |near| near.polls >= before + 2 * u64::from(frame + 1));
    }
    assert!(workers.all_respond(PATIENCE));
    // Each frame is taken in by one call, and a second call finds that there is no other.
    assert_eq!(near.far().polls - before, 20);
}

#[test]
fn detached_queues_free_their_memory_and_sources_resume_after_a_shortage() {
    // Less than a few stalled queues could keep: a leak would stop all traffic.
    let little = WorkersConfig { frame_memory: 128 << 10, ..config(2, Policy::Static) };
    let mut workers = Workers::start(little).expect("threads can be made");
    for probe in [Probe::Memory, Probe::SystemCall].repeat(20) {
        let (source, near) = port_with(probe);
        let (other, other_near) = port_with(probe);
        let (sink, far) = port();
        far.stop_draining();
        for (id, to, queue) in [(1, 3, source), (2, 3, other), (3, 1, sink)] {
            workers.attach(PortId(id), &patch(to), vec![attachment(queue)]).expect("attached");
        }
        near.send_flow(1, 3, 0, 0, 1000);
        other_near.send_flow(2, 3, 1, 0, 1000);
        near.wait_until("all frames of one", |near| near.script.is_empty());
        other_near.wait_until("all frames of the other", |near| near.script.is_empty());
        for id in 1..=3 {
            assert_eq!(workers.detach(PortId(id)).len(), 1);
        }
    }
}

#[test]
fn a_worker_that_is_stuck_or_has_panicked_does_not_respond() {
    let mut workers = Workers::start(config(2, Policy::Static)).expect("threads can be made");
    let (left, near) = port();
    workers.attach(PortId(1), &patch(2), vec![attachment(left)]).expect("attached");
    assert!(workers.all_respond(PATIENCE));
    let silence_begins = |workers: &Workers<TestPort>| {
        let deadline = Instant::now() + PATIENCE;
        // waits: a worker that is blocked has no event; a busy machine sees less of it.
        while workers.all_respond(Duration::from_millis(20)) {
            assert!(Instant::now() < deadline, "the worker still responds");
        }
    };
    let held = near.block_worker();
    silence_begins(&workers);
    drop(held);
    assert!(workers.all_respond(PATIENCE));
    // A lock that was held by a panic makes the worker panic, too.
    let poisoned = std::panic::catch_unwind(|| {
        let _held = near.block_worker();
        panic!("as intended");
    });
    poisoned.expect_err("it has panicked");
    silence_begins(&workers);
}
