//! One client's socket: bytes in, requests out; replies in, bytes out. Both buffers are bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use ringway_wire::xenstore::{Errno, Op, SOCKMSG_LEN, SockMsg, XENSTORE_PAYLOAD_MAX};
use rustix::event::epoll::EventFlags;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes taken from a socket at a time.
const READ_LEN: usize = 8192;
/// The most bytes that wait for a client that does not read. Beyond that its requests wait in its
/// socket and its events in the tree, where they are merged and counted.
const OUTPUT_MAX: usize = 64 * 1024;

/// A non-blocking stream with its input and output buffers.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    interest: EventFlags,
}

impl Connection {
    /// Takes over a stream and makes it non-blocking.
    ///
    /// # Errors
    /// What the system reports.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        let (input, output) = (Vec::new(), Vec::new());
        Ok(Connection { stream, input, output, interest: EventFlags::IN })
    }

    /// Reads once, unless enough requests are buffered already.
    ///
    /// # Errors
    /// Of kind `UnexpectedEof` when the client is gone, else what the system reports.
    pub(crate) fn receive(&mut self) -> io::Result<()> {
        if !self.wants_input() {
            return Ok(());
        }
        let mut chunk = [0; READ_LEN];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.input.extend_from_slice(chunk.get(..len).unwrap_or_default());
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next whole request, if there is one.
    ///
    /// # Errors
    /// Of kind `InvalidData` if the client sends an invalid message: the start of the next one
    /// cannot be found.
    pub(crate) fn next_request(&mut self) -> io::Result<Option<(SockMsg, Vec<u8>)>> {
        let Ok((header, body)) = SockMsg::read_from_prefix(&self.input) else { return Ok(None) };
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        if len > XENSTORE_PAYLOAD_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let Some(payload) = body.get(..len) else { return Ok(None) };
        let payload = payload.to_vec();
        self.input.drain(..SOCKMSG_LEN + len);
        Ok(Some((header, payload)))
    }

    /// Queues the reply to a request.
    pub(crate) fn reply(&mut self, request: &SockMsg, outcome: Result<Vec<u8>, Errno>) {
        let (kind, payload) = match outcome {
            Ok(payload) => (request.kind, payload),
            Err(error) => (Op::Error.number(), format!("{error}\0").into_bytes()),
        };
        self.push(SockMsg { kind, ..*request }, &payload);
    }

    /// Queues a watch event.
    pub(crate) fn event(&mut self, payload: &[u8]) {
        self.push(SockMsg { kind: Op::WatchEvent.number(), ..SockMsg::default() }, payload);
    }

    /// Whether another message may be queued, after writing if that is needed to find out.
    ///
    /// # Errors
    /// As [`flush`](Connection::flush).
    pub(crate) fn make_room(&mut self) -> io::Result<bool> {
        if !self.has_room() {
            self.flush()?;
        }
        Ok(self.has_room())
    }

    /// Writes what the socket takes.
    ///
    /// # Errors
    /// What the system reports, in particular that the client is gone.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => drop(self.output.drain(..len)),
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The events to poll for, if they have changed since the last call. A client that
    /// `is_throttled` is not read.
    pub(crate) fn changed_interest(&mut self, is_throttled: bool) -> Option<EventFlags> {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, !is_throttled && self.wants_input());
        interest.set(EventFlags::OUT, !self.output.is_empty());
        let has_changed = interest != self.interest;
        self.interest = interest;
        has_changed.then_some(interest)
    }

    fn has_room(&self) -> bool {
        self.output.len() <= OUTPUT_MAX
    }

    fn wants_input(&self) -> bool {
        self.has_room() && self.input.len() < READ_LEN
    }

    fn push(&mut self, header: SockMsg, payload: &[u8]) {
        // The tree keeps replies and events within the limit of a message.
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.output.extend_from_slice(SockMsg { len, ..header }.as_bytes());
        self.output.extend_from_slice(payload);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
