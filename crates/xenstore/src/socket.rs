//! The wire protocol on a descriptor: the socket of a XenStore, ours or the daemon's, or
//! `/dev/xen/xenbus`.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ringway_sys::poll::wait_readable;
use ringway_watchdog::Pulse;
use ringway_wire::xenstore::{Errno, Op, SOCKMSG_LEN, SockMsg, XENSTORE_PAYLOAD_MAX};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::Lost;
use crate::events::Events;
use crate::transport::{Reply, Request, Transport};

/// Bytes read at a time: the longest message.
const READ_LEN: usize = SOCKMSG_LEN + XENSTORE_PAYLOAD_MAX;
/// The most reads in one call for events: a peer that causes events that are not kept must not
/// occupy us.
const READS_MAX: usize = 64;

/// Requests and bytes that are sent before their replies are read: so few that they fit the buffers
/// of any descriptor, since a store need not read while its replies wait.
const TOGETHER_MAX: usize = 64; // not a limit: of our own requests
const TOGETHER_LEN_MAX: usize = 16 << 10; // not a limit: likewise

/// How a descriptor takes several requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Any number in one write.
    Joined,
    /// One, and the next after its reply. The kernel's device ignores what follows the first in a
    /// write (`drivers/xen/xenbus/xenbus_dev_frontend.c`), and sends a request some time after the
    /// write, out of the same buffer in which the next write puts its own
    /// (`xenbus_dev_request_and_reply` in `xenbus_xs.c`).
    OneByOne,
}

/// A blocking descriptor that carries the protocol.
#[derive(Debug)]
pub struct Socket {
    stream: File,
    writes: Writes,
    input: Vec<u8>,
    last_request: u32,
    pulse: Option<Arc<Pulse>>,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd, writes: Writes) -> Socket {
        Socket { stream: File::from(fd), writes, input: Vec::new(), last_request: 0, pulse: None }
    }

    /// Shows by this pulse when the thread waits for the store: it may sleep then, for as long as
    /// the store takes.
    pub fn watch_by(&mut self, pulse: Arc<Pulse>) {
        self.pulse = Some(pulse);
    }

    /// The next message that is not a watch event; events before it are put aside.
    fn next_reply(&mut self, events: &mut Events) -> Result<Option<(SockMsg, Vec<u8>)>, Lost> {
        while let Ok((header, body)) = SockMsg::read_from_prefix(&self.input) {
            let len = usize::try_from(header.len).unwrap_or(usize::MAX);
            if len > XENSTORE_PAYLOAD_MAX {
                return Err(Lost::sent(&format!("a message of {len} bytes")));
            }
            let Some(payload) = body.get(..len) else { break };
            let payload = payload.to_vec();
            self.input.drain(..SOCKMSG_LEN + len);
            if header.kind != Op::WatchEvent.number() {
                return Ok(Some((header, payload)));
            }
            events.keep(&payload)?;
        }
        Ok(None)
    }

    /// Waits for bytes and takes what is there.
    fn receive(&mut self) -> Result<(), Lost> {
        let mut chunk = [0; READ_LEN];
        let len = match self.stream.read(&mut chunk) {
            Ok(0) => return Err(Lost::closed()),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(error.into()),
        };
        self.input.extend_from_slice(chunk.get(..len).unwrap_or_default());
        Ok(())
    }

    /// Sends the first of these requests. Returns the header of each; `None` for one that is too
    /// long, and not sent.
    fn send(&mut self, requests: &[Request<'_>]) -> Result<Vec<Option<SockMsg>>, Lost> {
        let (mut headers, mut unsent, mut len_sum) = (Vec::new(), Vec::new(), 0);
        let together_max = match self.writes {
            Writes::Joined => TOGETHER_MAX,
            Writes::OneByOne => 1,
        };
        for Request { op, tx, payload } in requests.iter().take(together_max) {
            len_sum += SOCKMSG_LEN + payload.len();
            if !headers.is_empty() && len_sum > TOGETHER_LEN_MAX {
                break;
            }
            let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let is_short = payload.len() <= XENSTORE_PAYLOAD_MAX;
            headers.push(is_short.then(|| {
                self.last_request = self.last_request.wrapping_add(1);
                SockMsg { kind: op.number(), req_id: self.last_request, tx_id: *tx, len }
            }));
            if let Some(Some(header)) = headers.last() {
                unsent.extend_from_slice(header.as_bytes());
                unsent.extend_from_slice(payload);
            }
        }
        self.stream.write_all(&unsent)?;
        Ok(headers)
    }

    /// Waits for the reply to a request with this header, the first of which the reply is missing.
    fn reply_to(&mut self, header: SockMsg, events: &mut Events) -> Result<Reply, Lost> {
        let (reply, payload) = loop {
            match self.next_reply(events)? {
                Some(reply) => break reply,
                None => self.receive()?,
            }
        };
        if reply.req_id != header.req_id {
            return Err(Lost::sent(&format!("a reply to request {}", reply.req_id)));
        }
        if reply.kind == header.kind {
            return Ok(Ok(payload));
        }
        let name = payload.strip_suffix(b"\0").unwrap_or(&payload);
        let errno = std::str::from_utf8(name).ok().and_then(Errno::from_name);
        match errno {
            Some(errno) if reply.kind == Op::Error.number() => Ok(Err(errno)),
            _ => {
                let (found, wanted) = (reply.kind, header.kind);
                Err(Lost::sent(&format!("a reply of type {found} to a request of type {wanted}")))
            }
        }
    }

    fn is_readable(&self) -> Result<bool, Lost> {
        Ok(wait_readable(&self.stream, Some(Duration::ZERO))?)
    }
}

impl Transport for Socket {
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
        let reply = self.requests(&[request], events)?.pop();
        reply.ok_or_else(|| Lost::sent("no reply"))
    }

    fn requests(
        &mut self,
        requests: &[Request<'_>],
        events: &mut Events,
    ) -> Result<Vec<Reply>, Lost> {
        let pulse = self.pulse.clone();
        let _waiting = pulse.as_deref().map(Pulse::wait);
        let mut replies = Vec::with_capacity(requests.len());
        while let Some(rest) = requests.get(replies.len()..).filter(|rest| !rest.is_empty()) {
            for header in self.send(rest)? {
                replies.push(match header {
                    Some(header) => self.reply_to(header, events)?,
                    None => Err(Errno::Toobig),
                });
            }
        }
        Ok(replies)
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        for _ in 0..READS_MAX {
            // First what came together with an earlier reply: the descriptor does not become
            // readable for it again.
            if let Some((header, _)) = self.next_reply(events)? {
                let id = header.req_id;
                return Err(Lost::sent(&format!("a reply to request {id}, which was not sent")));
            }
            if !events.is_empty() || !self.is_readable()? {
                return Ok(());
            }
            self.receive()?;
        }
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{Client, Watched};

    fn message(op: Op, req_id: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).expect("a test's payload is short");
        let header = SockMsg { kind: op.number(), req_id, tx_id: 0, len };
        [header.as_bytes(), payload].concat()
    }

    #[test]
    fn an_event_that_arrived_with_a_reply_is_found_without_reading_more() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let store = std::thread::spawn(move || {
            let mut request = [0; SOCKMSG_LEN + 3];
            theirs.read_exact(&mut request).expect("the request for /a");
            let reply = message(Op::Read, 1, b"value");
            let event = message(Op::WatchEvent, 0, b"/b\0token\0");
            theirs.write_all(&[reply, event].concat()).expect("both at once");
            theirs
        });
        let mut client = Client::from_stream(ours);
        assert_eq!(client.read("/a").expect("a reply").as_deref(), Some("value"));
        let event = client.next_watch().expect("no error").expect("the event is in the client");
        let Watched::Node(event) = event else { panic!("{event:?}") };
        assert_eq!((event.path.as_str(), event.token.as_str()), ("/b", "token"));
        assert_eq!(client.next_watch().expect("no error"), None);
        drop(store.join().expect("the store ends"));
    }

    /// Reads nodes, of which the last does not exist, from a store that replies to a batch when it
    /// has so many requests.
    fn read_in_batches(writes: Writes, paths: &[String], batches: &[usize]) {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let (wanted, batches) = (paths.to_vec(), batches.to_vec());
        let store = std::thread::spawn(move || {
            let mut ids = 1..;
            let mut left = wanted.iter();
            for batch in batches {
                let mut replies = Vec::new();
                for path in left.by_ref().take(batch) {
                    let mut request = vec![0; SOCKMSG_LEN + path.len() + 1];
                    theirs.read_exact(&mut request).expect("a request");
                    assert_eq!(&request[SOCKMSG_LEN..], format!("{path}\0").as_bytes());
                    let id = ids.next().expect("they do not end");
                    replies.extend(match Some(path) == wanted.last() {
                        true => message(Op::Error, id, b"ENOENT\0"),
                        false => message(Op::Read, id, path.as_bytes()),
                    });
                }
                theirs.write_all(&replies).expect("all at once");
            }
            assert_eq!(left.next(), None);
        });
        let mut client = Client::with_transport(Socket::new(ours.into(), writes));
        let found = client.read_all(paths).expect("replies");
        let found: Vec<_> = found.into_iter().map(|it| it.expect("no refusal")).collect();
        let mut expected: Vec<_> = paths.iter().map(|path| Some(path.clone().into())).collect();
        expected.pop();
        assert_eq!(found, [expected, vec![None]].concat());
        store.join().expect("the store ends");
    }

    #[test]
    fn requests_are_sent_together_as_far_as_they_fit_any_buffer() {
        let short: Vec<String> = (0..TOGETHER_MAX + 3).map(|it| format!("/{it}")).collect();
        read_in_batches(Writes::Joined, &short, &[TOGETHER_MAX, 3]);
        let long: Vec<String> = (0..7).map(|it| format!("/{it}{}", "x".repeat(3000))).collect();
        read_in_batches(Writes::Joined, &long, &[5, 2]);
    }

    #[test]
    fn the_kernels_device_gets_the_next_request_after_a_reply() {
        let paths: Vec<String> = (0..3).map(|it| format!("/{it}")).collect();
        read_in_batches(Writes::OneByOne, &paths, &[1, 1, 1]);

        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let mut socket = Socket::new(ours.into(), Writes::OneByOne);
        let requests: [Request<'_>; 2] =
            [b"/a\0", b"/b\0"].map(|payload| Request { op: Op::Read, tx: 0, payload });
        assert_eq!(socket.send(&requests).expect("sent").len(), 1);
        drop(socket);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).expect("all that was sent");
        assert_eq!(sent, message(Op::Read, 1, b"/a\0"));
    }
}
