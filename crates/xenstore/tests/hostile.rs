//! Clients that break the protocol, or do not read, affect only themselves.

use std::io::{ErrorKind, Read, Write};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringway_sys::poll::wait_readable;
use ringway_wire::xenstore::{Op, SockMsg};
use ringway_xenstore::{
    Client, DomId, Errno, Permissions, Quota, Reason, Refusal, Rights, Server, ServerHandle,
    WatchEvent, Watched, XsError,
};
use zerocopy::IntoBytes;

/// Far more than anything here takes on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(quota: Quota) -> (ServerHandle, JoinHandle<()>) {
    let server = Server::new(quota).expect("a server can be made");
    let handle = server.handle();
    (handle, std::thread::spawn(move || server.run().expect("the loop does not fail")))
}

fn client(handle: &ServerHandle, domain: u16) -> Client {
    Client::from_stream(handle.connect(DomId(domain)).expect("the server is there"))
}

fn message(kind: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("it is short");
    let header = SockMsg { kind, req_id: 1, tx_id: 0, len };
    [header.as_bytes(), payload].concat()
}

#[test]
fn random_bytes_end_only_their_own_connection() {
    let (handle, thread) = start(Quota::default());
    let mut witness = client(&handle, 0);
    witness.write("/alive", "yes").expect("the server replies");
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    for round in 0..200 {
        let mut stream = handle.connect(DomId(3)).expect("the server is there");
        let mut bytes = Vec::new();
        for _ in 0..64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let noise = state.to_le_bytes();
            if round % 2 == 0 {
                bytes.extend_from_slice(&noise);
            } else {
                let kind = u32::from(noise[7] % 26);
                bytes.extend(message(kind, &noise[..usize::from(noise[6] % 8)]));
            }
        }
        // The server may close before it has read everything.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert_eq!(witness.read("/alive").expect("it still replies").as_deref(), Some("yes"));
    }
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn a_payload_that_is_too_long_ends_the_connection() {
    let (handle, thread) = start(Quota::default());
    let mut stream = handle.connect(DomId(3)).expect("the server is there");
    let header = SockMsg { kind: Op::Read.number(), req_id: 1, tx_id: 0, len: 4097 };
    stream.write_all(header.as_bytes()).expect("it can be sent");
    assert_eq!(stream.read(&mut [0; 1]).expect("it is closed in order"), 0);
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn a_client_that_never_reads_replies_is_not_served_and_delays_no_other() {
    let (handle, thread) = start(Quota::default());
    let mut witness = client(&handle, 0);
    let mut stream = handle.connect(DomId(3)).expect("the server is there");
    stream.set_nonblocking(true).expect("it can be set");
    let request = message(Op::GetDomainPath.number(), b"3\0");
    // Ends when both buffers between us and the server's limit are full. The same thread serves the
    // witness, which gives the server every chance to read on.
    let mut refusals = 0;
    while refusals < 100 {
        match stream.write_all(&request) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                refusals += 1;
                witness.write("/alive", "yes").expect("the server replies");
            }
        }
    }
    drop(stream);
    witness.write("/alive", "still").expect("the server replies");
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn replies_that_waited_for_room_all_arrive_in_order() {
    let (handle, thread) = start(Quota::default());
    let mut stream = handle.connect(DomId(3)).expect("the server is there");
    let mut writer = stream.try_clone().expect("it can be cloned");
    const REQUESTS: u32 = 40_000;
    let writing = std::thread::spawn(move || {
        for req_id in 0..REQUESTS {
            let header = SockMsg { kind: Op::GetDomainPath.number(), req_id, tx_id: 0, len: 2 };
            writer.write_all(&[header.as_bytes(), b"3\0"].concat()).expect("it is taken");
        }
    });
    let mut reply = [0; 16 + "/local/domain/3\0".len()];
    for req_id in 0..REQUESTS {
        stream.read_exact(&mut reply).expect("each has a reply");
        assert_eq!(reply[4..8], req_id.to_ne_bytes());
    }
    writing.join().expect("all were sent");
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn a_client_that_reads_its_events_late_learns_that_it_must_rescan() {
    let (handle, thread) = start(Quota { events: 16, ..Quota::default() });
    let mut dom0 = client(&handle, 0);
    let mut lazy = client(&handle, 3);
    dom0.write("/public", "").expect("domain 0 may write");
    let readable = Permissions::new(DomId(0), Rights::Read);
    dom0.set_permissions("/public", &readable).expect("domain 0 may");
    lazy.watch("/public", &"t".repeat(1000)).expect("it can be set");
    assert_eq!(next(&mut lazy).path, "/public", "it fires at once");
    for n in 0..2000 {
        dom0.write(&format!("/public/{n}"), "").expect("other clients need not wait");
    }
    let mut taken = 0;
    // The test ends exactly when the server reports that everything must be read again.
    while next(&mut lazy).path != "/public" {
        taken += 1;
    }
    assert!(taken < 1000, "{taken}");
    handle.stop();
    thread.join().expect("the server has not panicked");
}

/// Waits for an event.
fn next(client: &mut Client) -> WatchEvent {
    loop {
        match client.next_watch().expect("the server is there") {
            Some(Watched::Node(event)) => return event,
            Some(Watched::Overflow) => panic!("there is room"),
            None => {}
        }
        wait_readable(client, None).expect("it can wait");
    }
}

/// Attacks of a guest below a node that domain 0 watches, as a backend watches each guest's state.
#[test]
fn many_writes_below_a_watched_node_close_no_session_and_hide_no_change() {
    let (handle, thread) = start(Quota { requests_per_second: u32::MAX, ..Quota::default() });
    let mut dom0 = client(&handle, 0);
    for guest in [3, 4] {
        let state = format!("/local/domain/{guest}/state");
        dom0.write(&state, "1").expect("domain 0 may write");
        let own = Permissions::new(DomId(guest), Rights::None);
        dom0.set_permissions(&state, &own).expect("domain 0 may");
        dom0.watch_node(&state, &guest.to_string()).expect("it can be set");
    }
    for token in ["3", "4"] {
        assert_eq!(next(&mut dom0).token, token, "each fires at once");
    }
    // Domain 0 does not read meanwhile. More events than fit into its session and its client.
    let mut hostile = client(&handle, 3);
    let mut honest = client(&handle, 4);
    for n in 0..70_000 {
        let name = format!("state/x{n}");
        hostile.write(&name, "").expect("it is the guest's");
        hostile.remove(&name).expect("it is the guest's");
    }
    honest.write("state", "4").expect("it is the guest's");
    while next(&mut dom0).token != "4" {}
    assert!(matches!(dom0.next_watch(), Ok(None | Some(Watched::Node(_)))), "nothing is lost");
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn a_released_domain_is_closed_and_its_number_can_be_reused() {
    let (handle, thread) = start(Quota::default());
    let mut dom0 = client(&handle, 0);
    handle.introduce(DomId(4)).expect("the server is there");
    dom0.watch("@releaseDomain", "gone").expect("it can be set");
    dom0.write("/local/domain/4", "").expect("domain 0 may write");
    let own = Permissions::new(DomId(4), Rights::None);
    dom0.set_permissions("/local/domain/4", &own).expect("domain 0 may");
    let mut guest = client(&handle, 4);
    guest.write("data", "x").expect("it owns its home");
    assert_eq!(dom0.domain_path(DomId(4)).expect("it has a path"), "/local/domain/4");
    while dom0.next_watch().expect("the server is there").is_some() {}

    handle.release(DomId(4)).expect("the server is there");
    wait_readable(&dom0, None).expect("it can wait");
    let event = dom0.next_watch().expect("the server is there").expect("it was notified");
    let Watched::Node(event) = event else { panic!("{event:?}") };
    assert_eq!((event.path.as_str(), event.token.as_str()), ("@releaseDomain", "gone"));
    assert!(matches!(guest.read("data"), Err(XsError::Lost(_))), "it was disconnected");
    assert_eq!(dom0.read("/local/domain/4/data").expect("it replies"), None);
    let mut successor = client(&handle, 4);
    let refused = successor.write("data", "y").expect_err("its home is not made yet");
    assert!(refused.is(Errno::Acces));
    assert_eq!(refused.to_string(), "XenStore Write data: EACCES");
    handle.stop();
    thread.join().expect("the server has not panicked");
    assert!(handle.connect(DomId(1)).is_err());
}

#[test]
fn a_transaction_is_run_again_after_a_conflict_and_gives_up_in_the_end() {
    let (handle, thread) = start(Quota::default());
    let mut ours = client(&handle, 0);
    let mut theirs = client(&handle, 0);
    ours.write("/n", "0").expect("domain 0 may write");
    let mut runs = 0;
    let seen = ours
        .transaction(|t| {
            runs += 1;
            let seen = t.read("/n")?;
            if runs < 3 {
                theirs.write("/n", runs.to_string())?;
            }
            t.write("/n", "ours")?;
            Ok(seen)
        })
        .expect("it commits in the end");
    assert_eq!((runs, seen.as_deref()), (3, Some("2")));
    let endless = ours.transaction(|t| {
        t.write("/n", "ours")?;
        theirs.write("/n", "theirs")
    });
    assert!(endless.expect_err("it gives up").is(Errno::Again));
    let own = Refusal { op: Op::Write, path: "/n".to_owned(), reason: Reason::NotText };
    let failed: Result<(), XsError> = ours.transaction(|t| {
        t.write("/n", "never seen")?;
        Err(own.clone().into())
    });
    assert!(matches!(failed, Err(XsError::Refused(refusal)) if refusal == own));
    assert_eq!(ours.read("/n").expect("it replies").as_deref(), Some("theirs"));
    assert_eq!(Errno::Again.name(), "EAGAIN");
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn a_guest_that_sends_requests_endlessly_is_served_at_its_rate_and_delays_no_other_client() {
    const RATE: u32 = 200;
    let (handle, thread) = start(Quota { requests_per_second: RATE, ..Quota::default() });
    let (mut witness, mut other) = (client(&handle, 0), client(&handle, 4));
    witness.write("/alive", "yes").expect("the server replies");
    let readable = Permissions::new(DomId(0), Rights::Read);
    witness.set_permissions("/alive", &readable).expect("domain 0 may");
    let start = Instant::now();
    let asking = std::thread::spawn({
        let handle = handle.clone();
        move || {
            let mut count = 0;
            // Neither another connection nor a closed one increases its rate.
            while count < 2 * RATE {
                let mut guest = client(&handle, 3);
                for _ in 0..50 {
                    guest.read("/alive").expect("it is served in the end");
                    count += 1;
                }
            }
            (count, start.elapsed())
        }
    });
    for _ in 0..50 {
        assert_eq!(other.read("/alive").expect("it replies").as_deref(), Some("yes"));
        assert_eq!(witness.read("/alive").expect("it replies").as_deref(), Some("yes"));
    }
    for _ in 0..2000 {
        witness.read("/alive").expect("domain 0 has no rate");
    }
    let (count, took) = asking.join().expect("it does not panic");
    // A burst of one second's worth, plus the allowance of the elapsed time.
    let most = f64::from(RATE) * (1.0 + took.as_secs_f64()) + 1.0;
    assert!(f64::from(count) <= most, "{count} in {took:?}");
    handle.stop();
    thread.join().expect("the server has not panicked");
}

#[test]
fn a_guest_that_disconnects_while_deferred_is_released() {
    let (handle, thread) = start(Quota { requests_per_second: 1, ..Quota::default() });
    for _ in 0..100 {
        let mut stream = handle.connect(DomId(3)).expect("the server is there");
        let request = message(Op::GetDomainPath.number(), b"3\0");
        // With too many connections open, this one is closed at once.
        let _ = stream.write_all(&request.repeat(5));
    }
    let start = Instant::now();
    while client(&handle, 3).domain_path(DomId(3)).is_err() {
        assert!(start.elapsed() < PATIENCE, "its connections are still open");
    }
    handle.stop();
    thread.join().expect("the server has not panicked");
}
