use std::os::fd::OwnedFd;
use std::thread;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::*;

/// Messages that are on their way at most, fewer than a socket's buffer takes.
const WINDOW: u32 = 24;
const MESSAGES: u32 = 50 * WINDOW;

/// Whether a relay can run here; if not, says so.
fn has_uring() -> bool {
    let checked = check();
    if let Err(error) = &checked {
        eprintln!("SKIPPED: {error}");
    }
    checked.is_ok()
}

/// Two sockets that are connected and keep the boundaries of messages.
fn pair() -> [OwnedFd; 2] {
    let (domain, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let pair = socketpair(domain, SocketType::SEQPACKET, flags, None).expect("sockets");
    [pair.0, pair.1]
}

/// Content that tells a message from the others, by length, number and direction.
fn message(number: u32, direction: u8) -> Vec<u8> {
    let len = 8 + (number as usize * 769) % 3000;
    let bytes = number.to_le_bytes().into_iter().cycle().take(len);
    bytes.map(|byte| byte ^ direction).collect()
}

/// Sends in windows from one end, and expects the same at the other.
fn exchange(from: &OwnedFd, to: &OwnedFd, direction: u8) {
    let mut buffer = vec![0; 4096];
    for start in (0..MESSAGES).step_by(WINDOW as usize) {
        for number in start..start + WINDOW {
            send(from, &message(number, direction), SendFlags::empty()).expect("sent");
        }
        for number in start..start + WINDOW {
            let (_, len) = recv(to, &mut buffer[..], RecvFlags::empty()).expect("received");
            assert!(buffer[..len] == message(number, direction), "message {number}");
        }
    }
}

#[test]
fn messages_arrive_whole_and_in_order_in_both_directions() {
    if !has_uring() {
        return;
    }
    const { assert!(WINDOW > BUFFERS as u32, "the buffers have to run out") };
    let ([left, left_end], [right, right_end]) = (pair(), pair());
    // The relay's sockets go with its thread, so that no end waits for a relay that has failed.
    let relay = thread::spawn(move || {
        let mut relay = UringRelay::new([left, right]).expect("made");
        let error = loop {
            if let Err(error) = relay.round() {
                break error;
            }
        };
        (error.kind(), relay.lost())
    });
    thread::scope(|scope| {
        scope.spawn(|| exchange(&left_end, &right_end, 0));
        scope.spawn(|| exchange(&right_end, &left_end, 0xff));
    });
    drop(left_end);
    let (end, lost) = relay.join().expect("no panic");
    assert_eq!((end, lost), (io::ErrorKind::UnexpectedEof, 0));
}

#[test]
fn a_message_that_the_other_file_has_no_room_for_is_lost_and_counted() {
    if !has_uring() {
        return;
    }
    let ([left, left_end], [right, right_end]) = (pair(), pair());
    let mut relay = UringRelay::new([&left, &right]).expect("made");
    let mut sent = 0;
    while relay.lost() == 0 {
        send(&left_end, &message(sent, 0), SendFlags::empty()).expect("sent");
        sent += 1;
        // One round reads it, and the next writes it.
        relay.round().expect("relayed");
        relay.round().expect("relayed");
    }
    let mut buffer = vec![0; 4096];
    let mut received = 0;
    while let Ok((_, len)) = recv(&right_end, &mut buffer[..], RecvFlags::DONTWAIT) {
        assert!(buffer[..len] == message(received, 0), "message {received}");
        received += 1;
    }
    assert_eq!((received, relay.lost()), (sent - 1, 1));
}

#[test]
fn nothing_is_in_flight_once_a_relay_has_ended() {
    if !has_uring() {
        return;
    }
    let ([left, left_end], [right, _right_end]) = (pair(), pair());
    let mut relay = UringRelay::new([&left, &right]).expect("made");
    assert_eq!(relay.in_flight, 2, "a read of each file");
    send(&left_end, &message(1, 0), SendFlags::empty()).expect("sent");
    relay.round().expect("read");
    assert_eq!(relay.in_flight, 3, "and a write that is queued");
    relay.finish().expect("cancelled");
    assert_eq!(relay.in_flight, 0);
    // The ring does not read the next message.
    send(&left_end, &message(2, 0), SendFlags::empty()).expect("sent");
    let mut buffer = vec![0; 4096];
    let (_, len) = recv(&left, &mut buffer[..], RecvFlags::DONTWAIT).expect("it is still there");
    assert!(buffer[..len] == message(2, 0));
}

#[test]
fn a_relay_may_be_dropped_at_any_time() {
    if !has_uring() {
        return;
    }
    let ([left, left_end], [right, right_end]) = (pair(), pair());
    for rounds in 0..3 {
        let mut relay = UringRelay::new([&left, &right]).expect("made");
        for number in 0..WINDOW {
            send(&left_end, &message(number, 0), SendFlags::empty()).expect("sent");
        }
        (0..rounds).for_each(|_| relay.round().expect("relayed"));
        let memory = relay.directions.each_ref().map(|direction| direction.pages.clone());
        let ring = another_handle(&relay.ring);
        drop(relay);
        assert_eq!(waiting_operations(&ring), 0, "after {rounds} rounds");
        // Ours is the last handle: the memory was not kept because the ring could not end.
        for pages in &memory {
            assert_eq!(pages.handles(), 1);
        }
        // The kernel does not write it any more, whatever arrives.
        let before = contents(&memory);
        for number in 0..WINDOW {
            send(&left_end, &message(number, 0x55), SendFlags::empty()).expect("sent");
        }
        assert!(contents(&memory) == before, "after {rounds} rounds");
        let mut buffer = vec![0; 4096];
        for end in [&left, &right_end] {
            while recv(end, &mut buffer[..], RecvFlags::DONTWAIT).is_ok() {}
        }
    }
}

/// A handle that keeps a ring, with what it does, after its owner has closed it.
fn another_handle(ring: &IoUring) -> OwnedFd {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).expect("we live");
    pidfd_getfd(own, ring.as_raw_fd(), PidfdGetfdFlags::empty()).expect("our own descriptor")
}

/// The operations of a ring that wait for a file, as the kernel lists them.
fn waiting_operations(ring: &OwnedFd) -> usize {
    let file = format!("/proc/self/fdinfo/{}", ring.as_raw_fd());
    std::fs::read_to_string(file).expect("it is open").matches("op=").count()
}

fn contents(memory: &[SharedPages]) -> Vec<u8> {
    let mut bytes = vec![0; memory.iter().map(SharedPages::len).sum()];
    for (pages, bytes) in memory.iter().zip(bytes.chunks_mut(DIRECTION_LEN)) {
        pages.copy_to(0, bytes);
    }
    bytes
}

#[test]
fn a_report_says_what_it_is_about() {
    let operations = [
        Operation::Read { from: 0 },
        Operation::Read { from: 1 },
        Operation::Write { from: 0, buffer: u16::MAX, len: u32::MAX },
        Operation::Write { from: 1, buffer: 0, len: 1 },
    ];
    for operation in operations {
        assert_eq!(Operation::of(operation.number()), operation);
    }
}

#[test]
fn every_refusal_has_a_remedy() {
    assert!(setup_remedy(Some(Errno::PERM)).contains("kernel.io_uring_disabled"));
    assert!(setup_remedy(Some(Errno::INVAL)).contains("6.7"));
    assert!(setup_remedy(Some(Errno::NOSYS)).contains("CONFIG_IO_URING"));
}
