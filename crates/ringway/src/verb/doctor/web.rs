//! A small HTTP server, with TLS and passwords if the web configuration file (see [`config`]) sets
//! them.
//!
//! Clients are not trusted. At most [`CONNECTIONS_MAX`] connections are open at once. Each carries
//! one request of at most [`HEAD_MAX`] bytes, and has [`PATIENCE`] for handshake, request and
//! response together. A wrong password costs CPU time at most once per [`CHECK_EVERY`].

mod config;
mod password;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use config::Config;
use password::{Passwords, Verdict};

/// Further connections are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// The time limit of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request; only the head is read.
const HEAD_MAX: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// The header that asks a client for a password.
const REALM: &str = "WWW-Authenticate: Basic realm=\"ringway\"\r\n";

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
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    gate: Arc<Gate>,
}

/// What all connections have in common.
struct Gate {
    passwords: Option<Passwords>,
    connections: AtomicUsize,
}

impl Server {
    /// Starts to listen. `file` is a web configuration file of the kind that Prometheus exporters
    /// use.
    pub(super) fn start(address: SocketAddr, file: Option<&Path>) -> Result<Server> {
        let Config { tls, users } = file.map(Config::read).transpose()?.unwrap_or_default();
        let listener = TcpListener::bind(address).with_context(|| format!("--listen {address}"))?;
        listener.set_nonblocking(true)?;
        let passwords = (!users.is_empty()).then(|| Passwords::of(users));
        let gate = Arc::new(Gate { passwords, connections: AtomicUsize::new(0) });
        Ok(Server { listener, tls, gate })
    }

    /// The URL under which it listens.
    pub(super) fn address(&self) -> io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.listener.local_addr()?))
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
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The connection ended while it waited, or no descriptor is left: the next one may
            // succeed.
            Err(_) => {
                thread::sleep(patience);
                return Ok(());
            }
        };
        let place = Place(Arc::clone(&self.gate));
        if self.gate.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            return Ok(());
        }
        let tls = self.tls.clone();
        let work = move || {
            // A client that disconnected or is too slow is no failure of the server.
            let _ = place.serve(stream, tls, &page);
        };
        // If no thread can be started, the connection is closed, like those beyond the limit.
        let _ = thread::Builder::new().name("client".to_owned()).spawn(work);
        Ok(())
    }
}

/// A connection's place within the limit of connections.
struct Place(Arc<Gate>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Place {
    fn serve(
        &self,
        stream: TcpStream,
        tls: Option<Arc<ServerConfig>>,
        page: &dyn Fn(&str) -> Page,
    ) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let stream = DeadlineStream { stream, deadline: Instant::now() + PATIENCE };
        let Some(tls) = tls else { return self.0.exchange(stream, page) };
        let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
        self.0.exchange(StreamOwned::new(connection, stream), page)
    }
}

impl Gate {
    /// One request and its response.
    fn exchange(
        &self,
        mut stream: impl Read + Write,
        page: &dyn Fn(&str) -> Page,
    ) -> io::Result<()> {
        let mut head = Vec::new();
        let mut buffer = [0; 1024];
        let (page, more) = loop {
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            head.extend_from_slice(buffer.get(..len).unwrap_or_default());
            if let Some(page) = self.response(&head, page) {
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
    fn response(&self, head: &[u8], page: &dyn Fn(&str) -> Page) -> Option<(Page, &'static str)> {
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
        if let Some(passwords) = &self.passwords {
            let given = request
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case("authorization"));
            match passwords.judge(given.map_or(&[], |header| header.value)) {
                Verdict::Known => {}
                Verdict::Unknown => {
                    let page = Page::plain("401 Unauthorized", "user and password required\n");
                    return Some((page, REALM));
                }
                Verdict::Later => {
                    let text = "too many wrong passwords; try again in a second\n";
                    return Some((
                        Page::plain("429 Too Many Requests", text),
                        "Retry-After: 1\r\n",
                    ));
                }
            }
        }
        let path = request.path.unwrap_or_default();
        Some(match request.method {
            Some("GET") => (page(path), ""),
            _ => (Page::plain("405 Method Not Allowed", "use GET\n"), "Allow: GET\r\n"),
        })
    }
}

/// A connection whose reads and writes all fail after its deadline.
struct DeadlineStream {
    stream: TcpStream,
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
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(passwords: Option<Passwords>) -> Gate {
        Gate { passwords, connections: AtomicUsize::new(0) }
    }

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

    fn status(gate: &Gate, request: &[u8]) -> String {
        let mut client = FakeClient(request, Vec::new());
        let page = |path: &str| Page::plain("200 OK", path);
        gate.exchange(&mut client, &page).expect("the response is written");
        let response = String::from_utf8(client.1).expect("text");
        response.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_request_is_bounded_and_a_bad_one_is_refused() {
        let open = gate(None);
        assert_eq!(status(&open, b"GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status(&open, b"PUT / HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status(&open, b"\x16\x03\x01\x02\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        let mut long = b"GET / HTTP/1.1\r\nA: ".to_vec();
        long.resize(2 * HEAD_MAX, b'a');
        let refused = "HTTP/1.1 431 Request Header Fields Too Large";
        assert_eq!(status(&open, &long), refused);
        assert_eq!(status(&open, b"GET / HTT"), "", "it left before it had sent everything");
    }

    #[test]
    fn without_a_password_nothing_is_shown() {
        // Of the password "secret", with the lowest cost that bcrypt allows.
        let hash = bcrypt::hash("secret", 4).expect("it hashes");
        let gate = gate(Some(Passwords::of(vec![("anna".to_owned(), hash)])));
        let with = |given: &str| {
            let request = format!("GET / HTTP/1.1\r\nAuthorization: {given}\r\n\r\n");
            status(&gate, request.as_bytes())
        };
        assert_eq!(status(&gate, b"GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 401 Unauthorized");
        // anna:secret
        assert_eq!(with("Basic YW5uYTpzZWNyZXQ="), "HTTP/1.1 200 OK");
        // anna:wrong, soon after a check, and again if the machine was too busy for it to be soon.
        let refused = (0..100)
            .map(|_| with("Basic YW5uYTp3cm9uZw=="))
            .find(|status| status != "HTTP/1.1 401 Unauthorized");
        assert_eq!(refused.as_deref(), Some("HTTP/1.1 429 Too Many Requests"));
        assert_eq!(with("Basic YW5uYTpzZWNyZXQ="), "HTTP/1.1 200 OK", "it is remembered");
    }
}
