//! Control sockets: a request line that any local process may send, and a response of a broken
//! process. A server replies to each request with one line of JSON; every parsed value survives a
//! round trip.

#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;

use libfuzzer_sys::fuzz_target;
use ringway_control::{
    BackendRequest, BackendStatus, ControlServer, ControlSocket, GuestRequest, GuestStatus, Reply,
    Response,
};
use ringway_sys::poll;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// The most bytes of an input: fewer than a socket accepts without a reader, more than a request
/// may have.
const INPUT_MAX: usize = 80 << 10;

/// Where the server's socket is.
static SERVER: OnceLock<TempDir> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    let data = &data[..data.len().min(INPUT_MAX)];
    match kind % 5 {
        0 => round_trip::<BackendRequest>(data),
        1 => round_trip::<GuestRequest>(data),
        2 => round_trip::<Response<BackendStatus>>(data),
        3 => round_trip::<Response<GuestStatus>>(data),
        _ => ask_server(data),
    }
});

fn round_trip<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(data) else { return };
    let written = serde_json::to_string(&read).expect("it was read");
    assert!(!written.contains('\n'), "a message is one line");
    let again: T = serde_json::from_str(&written).expect("we wrote it");
    assert_eq!(serde_json::to_string(&again).expect("it was read"), written);
}

/// Sends the bytes to a server that executes every request, and expects one line.
fn ask_server(data: &[u8]) {
    let dir = SERVER.get_or_init(start);
    let mut stream = UnixStream::connect(dir.path().join("socket")).expect("the server listens");
    // The server stops reading at the end of the line, or if the line is too long.
    let _ = stream.write_all(data);
    let _ = stream.shutdown(Shutdown::Write);
    let mut line = String::new();
    if stream.read_to_string(&mut line).is_err() || line.is_empty() {
        // The bytes were not UTF-8, or the server left some unread, which resets the connection.
        return;
    }
    assert_eq!(line.find('\n'), Some(line.len() - 1), "one line");
    let response: Response<()> = serde_json::from_str(&line).expect("a response");
    let is_request = serde_json::from_slice::<BackendRequest>(first_line(data)).is_ok();
    assert_eq!(matches!(response, Response::Ok(())), is_request, "{line}");
}

fn first_line(data: &[u8]) -> &[u8] {
    data.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default()
}

fn start() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let socket = ControlSocket::bind(&path).expect("a socket");
    let server = ControlServer::<BackendRequest>::start(socket).expect("a server");
    thread::spawn(move || {
        while poll::wait_readable(&server, None).is_ok() {
            while let Some(call) = server.next_call() {
                call.reply(Reply::ok(&()));
            }
        }
    });
    dir
}
