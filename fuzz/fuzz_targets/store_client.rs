//! A XenStore's messages to its client: replies and watch events. Whatever they are, each call of
//! the client returns, and no error is taken for a value.

#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use ringway_fuzz::Input;
use ringway_wire::xenstore::{Op, SockMsg, XENSTORE_PAYLOAD_MAX};
use ringway_xenstore::{Client, DomId, Permissions, Rights};
use zerocopy::IntoBytes;

/// The most bytes of an input: fewer than a socket accepts without a reader.
const INPUT_MAX: usize = 32 << 10;
/// The most calls of an input. Their requests must fit into the socket as well.
const CALLS_MAX: u32 = 64;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(&data[..data.len().min(INPUT_MAX)]);
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    let calls: Vec<u8> = input.bytes(usize::from(input.clone().u8() % 32) + 1).to_vec();
    let mut sent = Vec::new();
    if calls[..].first().is_some_and(|first| first & 0x80 != 0) {
        sent.extend_from_slice(input.rest());
    } else {
        messages(&mut input, &mut sent);
    }
    sent.truncate(INPUT_MAX);
    theirs.write_all(&sent).expect("the socket takes it");
    theirs.shutdown(Shutdown::Write).expect("open until now");
    let mut client = Client::from_stream(ours);
    for call in calls {
        // Each call may fail; none may hang, panic or loop.
        match call % 10 {
            0 => drop(client.read("/a")),
            1 => drop(client.directory("/a")),
            2 => drop(client.set_permissions("/a", &Permissions::new(DomId(1), Rights::None))),
            3 => drop(client.watch("/a", "token")),
            4 => drop(client.write("/a", "value")),
            5 => drop(client.read_bytes("/a")),
            6 => drop(client.remove("/a")),
            7 => drop(client.unwatch("/a", "token")),
            8 => drop(client.next_watch()),
            _ => drop(client.mkdir("/a")),
        }
    }
    let mut events = 0;
    while let Ok(Some(_)) = client.next_watch() {
        events += 1;
        assert!(events <= INPUT_MAX, "more events than bytes");
    }
});

/// Messages with matching headers, so that the fuzzer gets past the first one.
fn messages(input: &mut Input<'_>, sent: &mut Vec<u8>) {
    let mut next_reply = 1_u32;
    for _ in 0..CALLS_MAX {
        if input.is_empty() {
            return;
        }
        let kind = input.choose(Op::ALL);
        let is_odd = input.u8() == 0;
        let payload = match input.u8() % 4 {
            0 => b"EAGAIN\0".to_vec(),
            1 => b"/a\0token\0".to_vec(),
            _ => input.text().as_bytes().to_vec(),
        };
        let req_id = match kind {
            Op::WatchEvent => 0,
            _ if is_odd => input.u32(),
            _ => {
                next_reply += 1;
                next_reply - 1
            }
        };
        let len = u32::try_from(payload.len().min(XENSTORE_PAYLOAD_MAX)).expect("short");
        let header = SockMsg { kind: kind.number(), req_id, tx_id: 0, len };
        sent.extend_from_slice(header.as_bytes());
        sent.extend_from_slice(&payload);
    }
}
