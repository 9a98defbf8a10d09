//! The serving end of a control socket.

use std::fs;
use std::io::{self, BufReader, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ringway_sys::wake::WakeFd;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Response, STOPPING, files, read_line};

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a request line.
const REQUEST_LEN_MAX: usize = 64 << 10;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may go without reading from its reply, because it occupies a connection.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted: descriptors or memory may be short for a
/// while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A reply to a client.
pub enum Reply {
    /// One response.
    Line(String),
    /// One response, followed by whatever the function writes, on the connection's own thread.
    Stream(String, Box<dyn FnOnce(UnixStream) + Send>),
}

impl Reply {
    /// A response of any type.
    pub fn ok<T: Serialize>(value: &T) -> Reply {
        Reply::Line(line(&Response::Ok(value)))
    }

    /// A refusal with its reason.
    pub fn error(reason: &str) -> Reply {
        Reply::Line(line(&Response::<()>::Error(reason.to_owned())))
    }

    /// An empty response, then a stream.
    pub fn stream(write: impl FnOnce(UnixStream) + Send + 'static) -> Reply {
        Reply::Stream(line(&Response::Ok(())), Box::new(write))
    }
}

fn line<T: Serialize>(response: &Response<T>) -> String {
    serde_json::to_string(response).unwrap_or_else(|error| {
        serde_json::json!({ "error": format!("the response cannot be written: {error}") })
            .to_string()
    })
}

/// A request that waits for its reply.
pub struct Call<R> {
    /// The request.
    pub request: R,
    reply: Sender<Reply>,
}

impl<R> Call<R> {
    /// Sends the reply.
    pub fn reply(self, reply: Reply) {
        // A client that has disconnected needs none.
        let _ = self.reply.send(reply);
    }
}

/// A control socket, and the calls that have come by it: its descriptor is readable when there are
/// some. Each connection is read on its own thread, so that a slow client delays no other. Dropping
/// it removes the socket.
pub struct ControlServer<R> {
    calls: Receiver<Call<R>>,
    bell: Arc<WakeFd>,
    _socket: ControlSocket,
}

/// A control socket that is not read yet: created before the process is confined, while it may
/// still create sockets. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens on `path`, for its owner only. Replaces a socket whose process is gone.
    ///
    /// # Errors
    /// What the socket reports.
    pub fn bind(path: &Path) -> io::Result<ControlSocket> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(ControlSocket { listener: files::listen(path)?, path: path.to_owned() })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl<R: DeserializeOwned + Send + 'static> ControlServer<R> {
    /// Reads requests from a socket.
    ///
    /// # Errors
    /// If no descriptor is left, or no thread can be created.
    pub fn start(socket: ControlSocket) -> io::Result<ControlServer<R>> {
        ControlServer::start_for(socket, REQUEST_LEN_MAX)
    }

    /// As [`start`](ControlServer::start), for requests of at most so many bytes.
    ///
    /// # Errors
    /// As [`start`](ControlServer::start).
    pub fn start_for(socket: ControlSocket, len_max: usize) -> io::Result<ControlServer<R>> {
        let listener = socket.listener.try_clone()?;
        let (calls, receiver) = mpsc::channel();
        let bell = Arc::new(WakeFd::new()?);
        let server = ControlServer { calls: receiver, bell: Arc::clone(&bell), _socket: socket };
        let calls = Arc::new(Mutex::new(calls));
        let open = Arc::new(AtomicUsize::new(0));
        thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming() {
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => {
                        thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                if open.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
                    continue;
                }
                let (calls, bell) = (Arc::clone(&calls), Arc::clone(&bell));
                let place = Place::take(&open);
                // If no thread can be created, the connection ends here and its place is freed.
                let _ = thread::Builder::new().spawn(move || {
                    // A broken connection concerns only its client.
                    let _ = serve(stream, len_max, &calls, &bell);
                    drop(place);
                });
            }
        })?;
        Ok(server)
    }

    /// The next pending call.
    pub fn next_call(&self) -> Option<Call<R>> {
        // Before the calls are read: another one makes it readable again.
        self.bell.clear();
        self.calls.try_recv().ok()
    }

    /// What makes its descriptor readable: another thread with news for its owner may ring, too.
    pub fn bell(&self) -> &Arc<WakeFd> {
        &self.bell
    }
}

impl<R> AsFd for ControlServer<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// One of the places for connections that are served at a time.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Place {
        open.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(open))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve<R: DeserializeOwned>(
    mut stream: UnixStream,
    len_max: usize,
    calls: &Mutex<Sender<Call<R>>>,
    bell: &WakeFd,
) -> io::Result<()> {
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let request = read_line(&mut reader, Instant::now() + REQUEST_TIMEOUT, len_max)?;
    let reply = match serde_json::from_slice(&request) {
        Ok(request) => {
            let (reply, replies) = mpsc::channel();
            let call = Call { request, reply };
            let sent = calls.lock().is_ok_and(|calls| calls.send(call).is_ok());
            bell.ring();
            let stopping = || Reply::error(STOPPING);
            if sent { replies.recv().unwrap_or_else(|_| stopping()) } else { stopping() }
        }
        Err(error) => Reply::error(&format!("not a request: {error}")),
    };
    match reply {
        Reply::Line(line) => writeln!(stream, "{line}"),
        Reply::Stream(line, write) => {
            writeln!(stream, "{line}")?;
            // The reader of a stream may be slow: it has requested an endless one.
            stream.set_write_timeout(None)?;
            write(stream);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use ringway_sys::poll;

    use super::*;
    use crate::BackendRequest;

    /// Many times the limits of the server.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Starts a server whose every reply has `reply_len` bytes.
    fn start(path: &Path, reply_len: usize) {
        let socket = ControlSocket::bind(path).expect("a socket");
        let server = ControlServer::<BackendRequest>::start(socket).expect("a thread");
        thread::spawn(move || {
            while poll::wait_readable(&server, None).is_ok() {
                while let Some(call) = server.next_call() {
                    call.reply(Reply::ok(&"x".repeat(reply_len)));
                }
            }
        });
    }

    fn has_reply(path: &Path) -> bool {
        let mut stream = UnixStream::connect(path).expect("it listens");
        let is_asked = stream.write_all(b"{\"verb\":\"status\"}\n").is_ok();
        let mut reply = String::new();
        is_asked && stream.read_to_string(&mut reply).is_ok() && reply.starts_with("{\"ok\"")
    }

    #[test]
    fn idle_clients_do_not_keep_their_place_forever() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("socket");
        start(&path, 4 << 20);
        let connect = || UnixStream::connect(&path).expect("it listens");
        let mut deaf: Vec<UnixStream> = (0..CONNECTIONS_MAX / 2).map(|_| connect()).collect();
        for stream in &mut deaf {
            stream.write_all(b"{\"verb\":\"status\"}\n").expect("there is room");
        }
        let mut slow: Vec<UnixStream> = (0..CONNECTIONS_MAX / 2).map(|_| connect()).collect();
        let deadline = Instant::now() + PATIENCE;
        while !has_reply(&path) {
            assert!(Instant::now() < deadline, "the places are never free again");
            // Connections that the server has closed need no more bytes.
            slow.retain_mut(|stream| stream.write_all(b" ").is_ok());
            // waits: looks again until a place is free
            thread::sleep(Duration::from_millis(200));
        }
    }
}
