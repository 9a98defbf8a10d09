//! The protocol between ringway's processes and the command line.
//!
//! Backend and guest processes each serve a Unix socket in the run directory ([`RunDir`]). A client
//! sends one request as a line of JSON and receives a line in reply; a capture continues with a
//! stream of bytes. The requests and the state in the replies are those of `ringway-calls`. What a
//! process reports by itself goes to its supervisor or service manager ([`Reports`]).

mod attacher;
mod dir;
pub mod files;
mod link;
mod opener;
mod plugger;
mod recipient;
mod reports;
mod server;
mod tenancy;

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use attacher::{AttacherEvent, AttacherOrder, DeviceWanted};
pub use dir::RunDir;
pub use link::{FDS_MAX, Link, Received};
pub use opener::{AreaWanted, OpenerEvent, OpenerOrder, OpenerRequest};
pub use plugger::{PluggerEvent, PluggerOrder, PluggerRequest};
pub use recipient::Recipient;
pub use reports::Reports;
pub use ringway_calls::*;
pub use server::{Call, ControlServer, ControlSocket, Reply};
pub use tenancy::{
    MadeDevice, PassedDevice, Permitted, ProcessReport, SwitchOrder, TenantOrder, TenantVif,
    TrunkRules,
};

/// A response: the result, or a sentence with the reason for the refusal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response<T> {
    /// Done.
    Ok(T),
    /// Not done, and why.
    Error(String),
}

/// How long a process may take to reply. It replies between two rounds of its work, so a process
/// that takes longer is stopped or stuck, and the client should report that rather than wait.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The reply of a process that ends before it has served a request.
pub(crate) const STOPPING: &str = "the process is stopping";
/// The reply of a process that serves as many requests as it can.
pub const BUSY: &str = "too many simultaneous requests; try again";
/// The most bytes of a reply: the state of more vifs than a host has.
const REPLY_LEN_MAX: usize = 64 << 20;

/// Sends one request and waits for its reply.
///
/// # Errors
/// Of kind `NotFound` or `ConnectionRefused` if no such process runs; as in [`is_gone`] if it ends
/// before its reply; `WouldBlock` if it has no place for a request; `TimedOut` if it does not
/// reply; of kind `Other` with the process's own sentence if it refuses.
pub fn send_request<R: Serialize, T: DeserializeOwned>(
    socket: &Path,
    request: &R,
) -> io::Result<T> {
    open(socket, request).map(|(value, _)| value)
}

/// Like [`send_request`], for requests whose reply is followed by a stream.
///
/// # Errors
/// As [`send_request`].
pub fn open<R: Serialize, T: DeserializeOwned>(
    socket: &Path,
    request: &R,
) -> io::Result<(T, BufReader<UnixStream>)> {
    open_with_limits(socket, request, ReplyLimits { time: REPLY_TIMEOUT, bytes: REPLY_LEN_MAX })
}

/// The limits of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyLimits {
    /// The total time, however the reply arrives.
    pub time: Duration,
    /// The most bytes.
    pub bytes: usize,
}

/// Like [`open`], with other limits: the replying process may be under someone else's control, and
/// must neither block its client nor fill its memory.
///
/// # Errors
/// As [`send_request`]; of kind `InvalidData` for a reply that is too long.
pub fn open_with_limits<R: Serialize, T: DeserializeOwned>(
    socket: &Path,
    request: &R,
    limits: ReplyLimits,
) -> io::Result<(T, BufReader<UnixStream>)> {
    let explain =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
    let deadline = Instant::now() + limits.time;
    let mut stream = connect_at_once(socket).map_err(explain)?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.set_write_timeout(Some(limits.time))?;
    stream.write_all(line.as_bytes()).map_err(explain)?;
    let mut reader = BufReader::new(stream);
    let reply =
        read_line(&mut reader, deadline, limits.bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => explain(io::Error::new(
                ErrorKind::TimedOut,
                format!("the process has not responded for {} s", limits.time.as_secs()),
            )),
            _ => explain(error),
        })?;
    // A stream may be idle as long as there is nothing to report.
    reader.get_ref().set_read_timeout(None)?;
    reader.get_ref().set_write_timeout(None)?;
    if reply.is_empty() {
        return Err(explain(ErrorKind::UnexpectedEof.into()));
    }
    match serde_json::from_slice(&reply)? {
        Response::Ok(value) => Ok((value, reader)),
        Response::Error(reason) if reason == STOPPING => {
            Err(explain(io::Error::new(ErrorKind::ConnectionReset, reason)))
        }
        Response::Error(reason) if reason == BUSY => {
            Err(explain(io::Error::new(ErrorKind::WouldBlock, reason)))
        }
        Response::Error(reason) => Err(io::Error::other(reason)),
    }
}

/// Whether a process has no socket, or has ended before its whole reply: if another takes its
/// place, that one may be asked.
pub fn is_gone(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof];
    kinds.contains(&error.kind())
}

/// Reads up to the end of a line or of the stream, within the time limit.
fn read_line(
    reader: &mut BufReader<UnixStream>,
    deadline: Instant,
    len_max: usize,
) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        reader.get_ref().set_read_timeout(Some(left))?;
        let read = match reader.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = read.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(read.len(), |end| end + 1);
        line.extend_from_slice(read.get(..count).unwrap_or_default());
        reader.consume(count);
        if end.is_some() || count == 0 {
            return Ok(line);
        }
        if line.len() > len_max {
            let reason = format!("a response of more than {len_max} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        }
    }
}

/// Connects without blocking on a process that no longer accepts connections.
fn connect_at_once(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&connection, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(connection);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Sends a request to a process that replies with `reply`, and returns the result.
    fn ask_one_that(
        reply: impl FnOnce(UnixStream) + Send + 'static,
        limits: ReplyLimits,
    ) -> io::Result<BackendStatus> {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let process = thread::spawn(move || reply(listener.accept().expect("a client connects").0));
        let result = open_with_limits(&path, &BackendRequest::Status, limits);
        process.join().expect("it ends when its reader leaves");
        result.map(|(value, _)| value)
    }

    #[test]
    fn an_endless_reply_is_given_up() {
        let floods = |mut stream: UnixStream| while stream.write_all(&[b' '; 4096]).is_ok() {};
        let limits = ReplyLimits { time: Duration::from_secs(60), bytes: 1 << 20 };
        let error = ask_one_that(floods, limits).expect_err("it has no end");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }

    #[test]
    fn a_process_that_ends_before_its_reply_is_gone() {
        let read = |stream: &UnixStream| {
            BufReader::new(stream).read_line(&mut String::new()).expect("a request")
        };
        let limits = ReplyLimits { time: Duration::from_secs(60), bytes: 1 << 20 };
        let ends: [&[u8]; 3] = [b"", b"{\"o", b"{\"error\":\"the process is stopping\"}\n"];
        for sent in ends {
            let ends = move |mut stream: UnixStream| {
                read(&stream);
                stream.write_all(sent).expect("a client waits");
            };
            let error = ask_one_that(ends, limits).expect_err("it has no reply");
            assert!(is_gone(&error), "{error}");
        }
    }

    #[test]
    fn a_process_without_a_place_for_a_request_may_be_asked_again() {
        let refuses = |mut stream: UnixStream| {
            BufReader::new(&stream).read_line(&mut String::new()).expect("a request");
            writeln!(stream, "{{\"error\":\"{BUSY}\"}}").expect("a client waits");
        };
        let limits = ReplyLimits { time: Duration::from_secs(60), bytes: 1 << 20 };
        let error = ask_one_that(refuses, limits).expect_err("it has no reply");
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    }

    #[test]
    fn a_reply_that_arrives_byte_by_byte_has_the_same_time_limit() {
        let drips = |mut stream: UnixStream| {
            while stream.write_all(b" ").is_ok() {
                // waits: the limit in bytes must not be reached first
                thread::sleep(Duration::from_millis(10));
            }
        };
        let limits = ReplyLimits { time: Duration::from_millis(200), bytes: 1 << 20 };
        let error = ask_one_that(drips, limits).expect_err("it has no end");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn bytes_after_a_reply_remain_readable() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let process = thread::spawn(move || {
            let mut stream = listener.accept().expect("a client connects").0;
            // Closing a socket with an unread request would discard the reply.
            BufReader::new(&stream).read_line(&mut String::new()).expect("a client connects");
            stream.write_all(b"{\"ok\":null}\nmore").expect("there is room");
        });
        let request = BackendRequest::Capture { vif: "vif1.0".to_owned(), snap_len: 64 };
        let ((), mut stream) = open(&path, &request).expect("it replies");
        let mut rest = String::new();
        stream.read_to_string(&mut rest).expect("it is there");
        assert_eq!(rest, "more");
        process.join().expect("it ends");
    }
}
