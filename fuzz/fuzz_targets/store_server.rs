//! The bytes that a guest sends to the XenStore server, at once and in pieces. Whatever they are,
//! the server replies with a sequence of whole messages, and keeps running.

#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::OnceLock;
use std::thread;

use libfuzzer_sys::fuzz_target;
use ringway_wire::xenstore::{Op, SOCKMSG_LEN, SockMsg, XENSTORE_PAYLOAD_MAX};
use ringway_xenstore::{DomId, Quota, Server, ServerHandle};
use zerocopy::FromBytes;

const GUEST: DomId = DomId(1);
/// The most bytes of an input: fewer than a socket accepts without a reader.
const INPUT_MAX: usize = 32 << 10;

static SERVER: OnceLock<ServerHandle> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let server = SERVER.get_or_init(start);
    let data = &data[..data.len().min(INPUT_MAX)];
    server.introduce(GUEST).expect("the server runs");
    let mut stream = server.connect(GUEST).expect("the server runs");
    let (first, second) = data.split_at(data.first().map_or(0, |at| usize::from(*at) % data.len()));
    // The server may end the connection after the first half, and then the second cannot be sent.
    let _ = stream.write_all(first).and_then(|()| stream.write_all(second));
    let _ = stream.shutdown(Shutdown::Write);
    let mut replies = Vec::new();
    let _ = stream.read_to_end(&mut replies);
    check(&replies);
    // Removes its nodes and watches, so that the next input finds the server unchanged.
    server.release(GUEST).expect("the server runs");
});

fn start() -> ServerHandle {
    let server = Server::new(Quota::default()).expect("a server");
    let handle = server.handle();
    thread::spawn(move || {
        server.run().expect("no client ends the server");
    });
    handle
}

/// A client receives messages of known types; the last may be cut off if the server closed the
/// connection.
fn check(mut bytes: &[u8]) {
    while let Ok((header, rest)) = SockMsg::read_from_prefix(bytes) {
        let len = usize::try_from(header.len).expect("a length");
        assert!(len <= XENSTORE_PAYLOAD_MAX, "a message of {len} bytes");
        assert!(Op::from_number(header.kind).is_some(), "a reply of type {}", header.kind);
        let Some(rest) = rest.get(len..) else { return };
        bytes = rest;
    }
    assert!(bytes.len() < SOCKMSG_LEN);
}
