//! The path of a frame through both ends makes no system call, except that a batch may wake the
//! other end. It runs on a thread that the kernel kills on any call except `read` and `write`
//! (strict seccomp), and those are counted.

#[path = "pair/joined.rs"]
mod joined;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ringway_datapath::{Budget, FrameBatch, FramePool, FrameQueue, PoolBudget, PortQueue};
use ringway_wire::virtio::{
    Features, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_RING_F_EVENT_IDX,
};
use rustix::thread::{SecureComputingMode, gettid, set_secure_computing_mode};

use joined::Joined;

const ROUNDS: usize = 200;
const WARM_UP: usize = 20;
/// Frames of a round, in each direction.
const BATCH: usize = 32;
/// Queues that are published in a round: both, by either end.
const PUBLISHED: usize = 4;
/// No machine is so busy that the frames take longer.
const PATIENCE: Duration = Duration::from_secs(60);
const DONE: [u8; 8] = *b"all done";

#[test]
fn a_batch_makes_a_system_call_at_most_to_wake_the_other_end() {
    if cfg!(miri) {
        println!("SKIPPED: Miri has no seccomp");
        return;
    }
    let split = Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_RING_F_EVENT_IDX]);
    let mergeable = split.or(Features::of(&[VIRTIO_NET_F_MRG_RXBUF]));
    for features in [split, mergeable, mergeable.or(Features::of(&[VIRTIO_F_RING_PACKED]))] {
        // The thread waits for a byte that never arrives, because it may not even exit.
        let (mut ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
        let thread = std::thread::spawn(move || alone(features, &theirs));
        let mut said = [0; DONE.len() + 4];
        let heard = ours.read_exact(&mut said);
        assert!(heard.is_ok(), "the kernel has ended the thread: it made another call ({heard:?})");
        assert_eq!(said[..DONE.len()], DONE);
        let tid = u32::from_ne_bytes(said[DONE.len()..].try_into().expect("four"));
        let written = count("syscw", tid);
        println!("{written:?} calls to wake, {} frames", 2 * ROUNDS * BATCH);
        // A few belong to its start and its end.
        assert!(written.is_none_or(|it| it <= (WARM_UP + ROUNDS) * PUBLISHED + 8), "{written:?}");
        std::mem::forget(ours);
        drop(thread);
    }
}

/// System calls of a thread; `None` if the kernel does not count them.
fn count(what: &str, tid: u32) -> Option<usize> {
    let io = std::fs::read_to_string(format!("/proc/self/task/{tid}/io")).ok()?;
    let line = io.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(": "))?;
    line.parse().ok()
}

fn alone(features: Features, say: &UnixStream) {
    let Joined { mut front, mut back, .. } = Joined::new(features, 256, 1514);
    let mut pool = FramePool::new(PoolBudget::new(16 << 20));
    let (mut up, mut down) = (FrameQueue::new(), FrameQueue::new());
    let mut frames = FrameBatch::new();
    let mut done = 0;
    let mut round = || {
        for _ in 0..BATCH {
            up.push_back(pool.take(60).expect("the pool has room"));
        }
        front.egress(&mut up, &mut pool).expect("the device is honest");
        back.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the driver is honest");
        down.extend(frames.drain(..));
        back.egress(&mut down, &mut pool).expect("the driver is honest");
        front.ingress(Budget::BATCH, &mut pool, &mut frames).expect("the device is honest");
        done += frames.len();
        frames.drain(..).for_each(|frame| pool.recycle(frame));
        front.arm().expect("the device is honest");
        back.arm().expect("the driver is honest");
    };
    for _ in 0..WARM_UP {
        round();
    }
    let tid = u32::try_from(gettid().as_raw_nonzero().get()).expect("a number");
    let last = [&DONE[..], &tid.to_ne_bytes()].concat();
    // From here on it may only read and write.
    set_secure_computing_mode(SecureComputingMode::Strict).expect("the kernel has seccomp");
    for _ in 0..ROUNDS {
        round();
    }
    if done == (WARM_UP + ROUNDS) * BATCH {
        let _ = rustix::io::write(say, &last);
    }
    loop {
        let _ = rustix::io::read(say, &mut [0; 1]);
    }
}
