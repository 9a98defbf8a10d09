//! A small HTTP server, for clients on this host: it listens on loopback or on a Unix socket.
//!
//! Clients are not trusted. At most [`CONNECTIONS_MAX`] connections are open at once. Each carries
//! one request of at most [`HEAD_MAX`] bytes, and has [`PATIENCE`] for request and response
//! together.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, chmod, open};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};

/// Further connections are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// The time limit of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request; only the head is read.
const HEAD_MAX: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// An address and port of this host alone.
    Loopback(SocketAddr),
    /// A Unix socket.
    Path(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if text.contains('/') {
            return Ok(Place::Path(PathBuf::from(text)));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            "expected a loopback address and port, such as 127.0.0.1:9819, or the path of a Unix \
             socket, such as /run/ringway-doctor.sock"
        })?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} is not a loopback address. Listen on 127.0.0.1 or a Unix socket, and put a \
                 proxy with TLS and passwords in front; or let node_exporter serve --textfile",
                address.ip()
            ));
        }
        Ok(Place::Loopback(address))
    }
}

/// A response's status and content.
pub(super) struct Page {
    /// Its status, such as `200 OK`.
    pub(super) status: &'static str,
    /// Its media type.
    pub(super) media: &'static str,
    /// Its content.
    pub(super) text: String,
}

impl Page {
    pub(super) fn plain(status: &'static str, text: &str) -> Page {
        Page { status, media: "text/plain; charset=utf-8", text: text.to_owned() }
    }
}

/// The listening socket and what its connections share.
pub(super) struct Server {
    listener: OwnedFd,
    /// The URL of its pages, or the path of its socket.
    name: String,
    /// A socket to remove at the end.
    path: Option<PathBuf>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts to listen.
    pub(super) fn start(place: &Place) -> Result<Server> {
        let connections = Arc::default();
        match place {
            Place::Loopback(address) => {
                let about = || format!("--listen {address}");
                let listener = TcpListener::bind(address).with_context(about)?;
                listener.set_nonblocking(true)?;
                let name = format!("http://{}", listener.local_addr()?);
                Ok(Server { listener: listener.into(), name, path: None, connections })
            }
            Place::Path(path) => {
                let listener =
                    bind(path).with_context(|| format!("--listen {}", path.display()))?;
                listener.set_nonblocking(true)?;
                let name = format!("{}:", path.display());
                Ok(Server {
                    listener: listener.into(),
                    name,
                    path: Some(path.clone()),
                    connections,
                })
            }
        }
    }

    /// What the path of a page is appended to.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Accepts a connection, if one arrives within this time, and serves it on a thread of its own.
    /// `page` returns the page for the path of a request.
    pub(super) fn serve(
        &self,
        patience: Duration,
        page: impl Fn(&str) -> Page + Send + 'static,
    ) -> io::Result<()> {
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut polled, Some(&timeout)))?;
        let stream = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(stream) => File::from(stream),
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            // The connection ended while it waited, or no descriptor is left: the next one may
            // succeed.
            Err(_) => {
                thread::sleep(patience);
                return Ok(());
            }
        };
        let seat = Seat(Arc::clone(&self.connections));
        if self.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            return Ok(());
        }
        let work = move || {
            let _seat = seat;
            let stream = DeadlineStream { stream, deadline: Instant::now() + PATIENCE };
            // A client that disconnected or is too slow is no failure of the server.
            let _ = exchange(stream, &page);
        };
        // If no thread can be started, the connection is closed, like those beyond the limit.
        let _ = thread::Builder::new().name("client".to_owned()).spawn(work);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Listens at a path, for every user of this host, as on loopback; the mode of its directory may
/// restrict that. A socket on which no process listens is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(is_refused) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // Not through a link, which another user may have put there if the directory is that user's.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(0o666))?;
    Ok(listener)
}

/// A connection's place within the limit of connections.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One request and its response.
fn exchange(mut stream: impl Read + Write, page: &dyn Fn(&str) -> Page) -> io::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    let (page, more) = loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        head.extend_from_slice(buffer.get(..len).unwrap_or_default());
        if let Some(page) = response(&head, page) {
            break page;
        }
        if head.len() > HEAD_MAX {
            let status = "431 Request Header Fields Too Large";
            break (Page::plain(status, "the request is too long\n"), "");
        }
    };
    let Page { status, media, text } = page;
    let len = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len}\r\n\
         {more}Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// The response, with extra header lines; `None` if the request is not complete yet.
fn response(head: &[u8], page: &dyn Fn(&str) -> Page) -> Option<(Page, &'static str)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(error) => {
            let text = format!("invalid request: {error}\n");
            return Some((Page::plain("400 Bad Request", &text), ""));
        }
    }
    let path = request.path.unwrap_or_default();
    Some(match request.method {
        Some("GET") => (page(path), ""),
        _ => (Page::plain("405 Method Not Allowed", "use GET\n"), "Allow: GET\r\n"),
    })
}

/// A connection whose reads and writes all fail after its deadline.
struct DeadlineStream {
    stream: File,
    deadline: Instant,
}

impl DeadlineStream {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        set_socket_timeout(&self.stream, Timeout::Recv, Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        set_socket_timeout(&self.stream, Timeout::Send, Some(self.left()?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A client that sends these bytes and records the response.
    struct FakeClient<'a>(&'a [u8], Vec<u8>);

    impl Read for FakeClient<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for FakeClient<'_> {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.1.write(buffer)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn status(request: &[u8]) -> String {
        let mut client = FakeClient(request, Vec::new());
        let page = |path: &str| Page::plain("200 OK", path);
        exchange(&mut client, &page).expect("the response is written");
        let response = String::from_utf8(client.1).expect("text");
        response.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_request_is_bounded_and_a_bad_one_is_refused() {
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status(b"PUT / HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status(b"\x16\x03\x01\x02\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        let mut long = b"GET / HTTP/1.1\r\nA: ".to_vec();
        long.resize(2 * HEAD_MAX, b'a');
        let refused = "HTTP/1.1 431 Request Header Fields Too Large";
        assert_eq!(status(&long), refused);
        assert_eq!(status(b"GET / HTT"), "", "it left before it had sent everything");
    }

    #[test]
    fn it_listens_for_this_host_only() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("/run/d.sock"), Ok(Place::Path(PathBuf::from("/run/d.sock"))));
        for loopback in ["127.0.0.1:9819", "127.1.2.3:1", "[::1]:9819"] {
            assert!(matches!(place(loopback), Ok(Place::Loopback(_))), "{loopback}");
        }
        for open in ["0.0.0.0:9819", "192.0.2.1:9819", "[::]:9819", "[::ffff:127.0.0.1]:9819"] {
            let error = place(open).expect_err("not loopback");
            assert!(error.contains("proxy") && error.contains("--textfile"), "{error}");
        }
        assert!(place("localhost").expect_err("no port").contains("expected"));
    }

    #[test]
    fn a_socket_that_a_killed_process_left_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("doctor.sock");
        drop(UnixListener::bind(&path).expect("it has room"));
        let server = Server::start(&Place::Path(path.clone())).expect("nothing listens there");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        assert!(Server::start(&Place::Path(path.clone())).is_err(), "one listens there");
        drop(server);
        assert!(!path.exists());
        fs::write(&path, "mine").expect("it has room");
        assert!(Server::start(&Place::Path(path.clone())).is_err(), "a file is there");
        assert!(path.exists());
    }
}
