//! A page for those who may read it: HTTP, with TLS and passwords where the file of
//! [`config`] says so.
//!
//! A client is not trusted. There are [`CONNECTIONS_MAX`] connections at once, each has
//! [`PATIENCE`] for its handshake, its request of [`HEAD_MAX`] bytes and the response together, and
//! carries one request. A wrong password costs time only as often as [`CHECK_EVERY`].

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

/// Those beyond are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// For all that a connection does.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request, of which only the head is read.
const HEAD_MAX: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// What a client is asked to use a password for.
const REALM: &str = "WWW-Authenticate: Basic realm=\"ringway\"\r\n";

/// What is sent.
pub(super) struct Page {
    /// Its status, such as `200 OK`.
    pub(super) status: &'static str,
    /// Its media type.
    pub(super) media: &'static str,
    /// What it says.
    pub(super) text: String,
}

impl Page {
    pub(super) fn plain(status: &'static str, text: &str) -> Page {
        Page { status, media: "text/plain; charset=utf-8", text: text.to_owned() }
    }
}

/// Where requests come in.
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
    /// Listens. `file` is a web configuration file as exporters of Prometheus have it.
    pub(super) fn start(address: SocketAddr, file: Option<&Path>) -> Result<Server> {
        let Config { tls, users } = file.map(Config::read).transpose()?.unwrap_or_default();
        let listener = TcpListener::bind(address).with_context(|| format!("--listen {address}"))?;
        listener.set_nonblocking(true)?;
        let passwords = (!users.is_empty()).then(|| Passwords::of(users));
        let gate = Arc::new(Gate { passwords, connections: AtomicUsize::new(0) });
        Ok(Server { listener, tls, gate })
    }

    /// Where it listens, as an address to open.
    pub(super) fn address(&self) -> io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.listener.local_addr()?))
    }

    /// Takes a connection, if one comes in this time, and serves it on a thread of its own: `page`
    /// is asked for the path of a request.
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
            // One that ended while it waited, or no descriptor left: the next one may do.
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
            // A client that left or is too slow is no failure of ours.
            let _ = place.serve(stream, tls, &page);
        };
        // Without room for a thread the connection is closed, as those beyond are.
        let _ = thread::Builder::new().name("client".to_owned()).spawn(work);
        Ok(())
    }
}

/// A connection's place among those that there may be.
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
        let stream = Hurried { stream, deadline: Instant::now() + PATIENCE };
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

    /// What to send, with lines for the head; `None` if the request is not whole yet.
    fn response(&self, head: &[u8], page: &dyn Fn(&str) -> Page) -> Option<(Page, &'static str)> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(httparse::Status::Partial) => return None,
            Ok(httparse::Status::Complete(_)) => {}
            Err(error) => {
                let text = format!("this is no request: {error}\n");
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
                    let page = Page::plain("401 Unauthorized", "a user and a password, please\n");
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
            _ => (Page::plain("405 Method Not Allowed", "try GET\n"), "Allow: GET\r\n"),
        })
    }
}

/// A connection that ends at its deadline, whatever it waits for.
struct Hurried {
    stream: TcpStream,
    deadline: Instant,
}

impl Hurried {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Hurried {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Hurried {
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

    /// A client that says this and hears what is sent.
    struct Said<'a>(&'a [u8], Vec<u8>);

    impl Read for Said<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Said<'_> {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.1.write(buffer)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn status(gate: &Gate, request: &[u8]) -> String {
        let mut said = Said(request, Vec::new());
        let page = |path: &str| Page::plain("200 OK", path);
        gate.exchange(&mut SaidRef(&mut said), &page).expect("it hears");
        let heard = String::from_utf8(said.1).expect("text");
        heard.lines().next().unwrap_or_default().to_owned()
    }

    struct SaidRef<'a, 'b>(&'a mut Said<'b>);

    impl Read for SaidRef<'_, '_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for SaidRef<'_, '_> {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.0.write(buffer)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
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
        assert_eq!(status(&open, b"GET / HTT"), "", "it left before it had said all");
    }

    #[test]
    fn who_has_no_password_sees_nothing() {
        // Of the password "secret", with the least cost that there is.
        let hash = bcrypt::hash("secret", 4).expect("it hashes");
        let gate = gate(Some(Passwords::of(vec![("anna".to_owned(), hash)])));
        let with = |given: &str| {
            let request = format!("GET / HTTP/1.1\r\nAuthorization: {given}\r\n\r\n");
            status(&gate, request.as_bytes())
        };
        assert_eq!(status(&gate, b"GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 401 Unauthorized");
        let begun = Instant::now();
        // anna:secret
        assert_eq!(with("Basic YW5uYTpzZWNyZXQ="), "HTTP/1.1 200 OK");
        // anna:wrong, at once after a check
        let wrong = with("Basic YW5uYTp3cm9uZw==");
        match begun.elapsed() < password::CHECK_EVERY {
            true => assert_eq!(wrong, "HTTP/1.1 429 Too Many Requests"),
            false => assert_eq!(wrong, "HTTP/1.1 401 Unauthorized", "on a very busy machine"),
        }
        assert_eq!(with("Basic YW5uYTpzZWNyZXQ="), "HTTP/1.1 200 OK", "it is remembered");
    }
}
