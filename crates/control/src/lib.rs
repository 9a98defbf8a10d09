//! What ringway's processes tell each other and the command line.
//!
//! Backend and guest processes each serve a Unix socket in the run directory ([`RunDir`]). A
//! client sends one request as a line of JSON and gets one line back; a capture goes on as a
//! stream of bytes after it. The types here are also what `--json` prints.

mod dir;
mod link;
mod opener;
mod server;
mod status;
mod tenancy;
mod times;

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use dir::RunDir;
pub use link::{Link, Received};
pub use opener::{OpenerNews, OpenerOrder, OpenerRequest};
pub use server::{Call, ControlServer, ControlSocket, Reply};
pub use status::{
    BackendStatus, FdbStatus, FloodStatus, GroupStatus, GuestStatus, GuestVifStatus, LimitsStatus,
    MulticastStatus, QueueStatus, RateStatus, TenantStatus, VifStatus, VirtioStatus, WorkerStatus,
    offload_names,
};
pub use tenancy::{Allowed, ProcessReport, SwitchOrder, TenantOrder, TrunkRules, VifNumber};
pub use times::{Bucket, Times};

/// What the backend can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum BackendRequest {
    /// Answered with [`BackendStatus`].
    Status,
    /// Offer another number of queues to a vif.
    SetMaxQueues {
        /// Name of the vif, such as `vif1.0`.
        vif: String,
        /// At least 1.
        max_queues: u16,
        /// From when on.
        reconnect: Reconnect,
    },
    /// Set a limit of a vif, for as long as the vif is there.
    SetLimit {
        /// Name of the vif.
        vif: String,
        /// Which limit, by its name in `ringway vif set`.
        limit: String,
        /// As its XenStore key has it.
        value: String,
    },
    /// Serve a vif again that is quarantined.
    Release {
        /// Name of the vif.
        vif: String,
    },
    /// Have the worker of a vif panic: for tests, and refused in any other process.
    #[doc(hidden)]
    Panic {
        /// Name of the vif.
        vif: String,
    },
    /// Have the worker of a vif get stuck: likewise.
    #[doc(hidden)]
    Stall {
        /// Name of the vif.
        vif: String,
        /// Asleep, or else in a loop.
        asleep: bool,
    },
    /// Copy a vif's frames to this connection as pcapng.
    Capture {
        /// Name of the vif.
        vif: String,
        /// Bytes kept of each frame.
        snap_len: u32,
    },
}

/// When another number of queues is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reconnect {
    /// From the guest's next connection on, whenever it makes one.
    Later,
    /// At once: the guest is made to connect again. Refused for one that would not.
    Now,
}

/// What a guest process can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum GuestRequest {
    /// Answered with [`GuestStatus`].
    Status,
    /// Reconnect a vif with another number of queues (`ethtool -L`:
    /// `network-node-blog:ethtool`).
    SetQueues {
        /// The vif's number in the guest.
        handle: u32,
        /// Taken as it is: the backend refuses what it does not offer.
        queues: u16,
    },
}

/// An answer: what was asked for, or a sentence that says why not.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer<T> {
    /// Done.
    Ok(T),
    /// Not done, and why.
    Error(String),
}

/// How long a process may take to answer. It does so between two rounds of its work, so one that
/// takes longer is stopped or stuck, and whoever asks should learn that rather than wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends one request and waits for its answer.
///
/// # Errors
/// Of kind `NotFound` or `ConnectionRefused` when no such process runs; `TimedOut` when
/// it does not answer; of kind `Other` with the
/// process's own sentence when it refuses.
pub fn ask<R: Serialize, T: DeserializeOwned>(socket: &Path, request: &R) -> io::Result<T> {
    open(socket, request).map(|(answer, _)| answer)
}

/// Like [`ask`], for requests whose answer is followed by a stream.
///
/// # Errors
/// As [`ask`].
pub fn open<R: Serialize, T: DeserializeOwned>(
    socket: &Path,
    request: &R,
) -> io::Result<(T, BufReader<UnixStream>)> {
    open_within(socket, request, ANSWER_TIMEOUT)
}

/// Like [`open`], with a limit of its own to how long all of it may take.
///
/// # Errors
/// As [`ask`]; of kind `WouldBlock` when so many wait at the socket already that no more may.
pub fn open_within<R: Serialize, T: DeserializeOwned>(
    socket: &Path,
    request: &R,
    limit: Duration,
) -> io::Result<(T, BufReader<UnixStream>)> {
    let explain =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
    let mut stream = connect_at_once(socket).map_err(explain)?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(line.as_bytes()).map_err(explain)?;
    let mut reader = BufReader::new(stream);
    let mut answer = String::new();
    reader.read_line(&mut answer).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => explain(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the process has not answered for {} s", limit.as_secs()),
        )),
        _ => explain(error),
    })?;
    // A stream may rest for as long as there is nothing to tell.
    reader.get_ref().set_read_timeout(None)?;
    reader.get_ref().set_write_timeout(None)?;
    match serde_json::from_str(&answer)? {
        Answer::Ok(answer) => Ok((answer, reader)),
        Answer::Error(reason) => Err(io::Error::other(reason)),
    }
}

/// Connects without waiting for a process that has stopped to accept connections.
fn connect_at_once(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&connection, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(connection);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
