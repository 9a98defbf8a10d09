//! As much of HTTP/1.0 as curl needs: `GET /`, and `GET /bytes/N` for N bytes.

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

/// Clients at a time: smoltcp has no backlog, so each has a socket that listens.
const CLIENTS_MAX: usize = 8;
/// Bytes of each direction's buffer.
const BUFFER_LEN: usize = 64 << 10;
/// The maximum length of a request's head.
const HEAD_LEN_MAX: usize = 4096;
const BLANK_LINE: &[u8] = b"\r\n\r\n";
const GREETING: &str = "TCP/IP of this page: smoltcp. Its network device: ringway-netfront.\n";

/// A server of a few clients.
pub(crate) struct Server {
    port: u16,
    clients: Vec<(SocketHandle, Client)>,
}

/// The exchange with the client of a socket.
enum Client {
    /// Its request, as far as it has arrived.
    Asking(Vec<u8>),
    /// The rest of a text, and the number of bytes that follow it.
    Receiving { text: Vec<u8>, filler: u64 },
}

impl Server {
    /// Listens on `port`.
    pub(crate) fn listen(port: u16, sockets: &mut SocketSet<'_>) -> Server {
        let clients = (0..CLIENTS_MAX).map(|_| {
            let buffer = || SocketBuffer::new(vec![0; BUFFER_LEN]);
            (sockets.add(Socket::new(buffer(), buffer())), Client::Asking(Vec::new()))
        });
        Server { port, clients: clients.collect() }
    }

    /// Serves each client as far as is possible now.
    pub(crate) fn serve(&mut self, sockets: &mut SocketSet<'_>) {
        for (handle, client) in &mut self.clients {
            let socket = sockets.get_mut::<Socket<'_>>(*handle);
            // This end closes first, so each connection would keep a socket in TIME-WAIT for ten
            // seconds, and eight requests in that time would use up all. A late segment finds
            // another connection, whose random sequence numbers refuse it.
            if !socket.is_open() {
                *client = Client::Asking(Vec::new());
                socket.listen(self.port).expect("a socket that is not open may listen");
            }
            client.serve(socket);
        }
    }
}

impl Client {
    fn serve(&mut self, socket: &mut Socket<'_>) {
        if let Client::Asking(head) = self {
            while socket.can_recv() && head.len() < HEAD_LEN_MAX {
                let taken = socket.recv(|bytes| {
                    head.extend_from_slice(bytes);
                    (bytes.len(), bytes.len())
                });
                if taken.is_err() {
                    break;
                }
            }
            let is_whole = head.windows(BLANK_LINE.len()).any(|bytes| bytes == BLANK_LINE);
            if !is_whole && head.len() < HEAD_LEN_MAX {
                if socket.state() == State::CloseWait {
                    // No further request follows.
                    socket.close();
                }
                return;
            }
            *self = response(head);
        }
        if let Client::Receiving { text, filler } = self {
            send(socket, text, filler);
        }
    }
}

/// Sends what fits, and closes after the last byte.
fn send(socket: &mut Socket<'_>, text: &mut Vec<u8>, filler: &mut u64) {
    while socket.can_send() && (!text.is_empty() || *filler > 0) {
        let sent = socket.send(|space| {
            let len = if text.is_empty() {
                let len = space.len().min(usize::try_from(*filler).unwrap_or(usize::MAX));
                space[..len].fill(b'x');
                *filler -= u64::try_from(len).expect("a buffer is small");
                len
            } else {
                let len = space.len().min(text.len());
                space[..len].copy_from_slice(&text[..len]);
                text.drain(..len);
                len
            };
            (len, ())
        });
        if sent.is_err() {
            return;
        }
    }
    if text.is_empty() && *filler == 0 {
        socket.close();
    }
}

fn response(head: &[u8]) -> Client {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (status, body, filler) = match (words.next(), words.next()) {
        (Some("GET"), Some("/")) => ("200 OK", GREETING, 0),
        (Some("GET"), Some(path)) => {
            match path.strip_prefix("/bytes/").and_then(|count| count.parse().ok()) {
                Some(count) => ("200 OK", "", count),
                None => ("404 Not Found", "There are / and /bytes/N.\n", 0),
            }
        }
        _ => ("400 Bad Request", "Only GET is understood.\n", 0),
    };
    let len = filler + u64::try_from(body.len()).expect("a text is short");
    let text = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\n\r\n{body}"
    );
    Client::Receiving { text: text.into_bytes(), filler }
}
