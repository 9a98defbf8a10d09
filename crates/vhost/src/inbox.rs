//! Messages, and their assembly from the bytes that a socket delivers.

use std::mem;
use std::os::fd::OwnedFd;

use ringway_wire::vhost_user::{
    HEADER_LEN, Header, NEED_REPLY_MASK, PAYLOAD_MAX, REGIONS_MAX, REPLY_MASK, VERSION,
    VERSION_MASK,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Fault, Name};

/// A whole message.
#[derive(Debug)]
pub struct Message {
    /// Its request; unchecked when it comes from a peer.
    pub request: u32,
    /// Flags without the version.
    pub flags: u32,
    /// At most [`PAYLOAD_MAX`] bytes.
    pub payload: Vec<u8>,
    /// At most [`REGIONS_MAX`] descriptors.
    pub files: Vec<OwnedFd>,
}

impl Message {
    /// A message without descriptors.
    pub(crate) fn new(
        request: Name,
        flags: u32,
        payload: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Message {
        let payload = payload.as_bytes().to_vec();
        Message { request: request.0, flags, payload, files: Vec::new() }
    }

    /// The name of its request.
    pub fn name(&self) -> Name {
        Name(self.request)
    }

    /// Whether its sender wants a reply even where the request has none.
    pub fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY_MASK != 0
    }

    /// Whether it is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & REPLY_MASK != 0
    }

    /// The bytes to send, with [`Message::files`] beside the first one.
    pub fn bytes(&self) -> Vec<u8> {
        let size = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let header = Header { request: self.request, flags: self.flags | VERSION, size };
        [header.as_bytes(), &self.payload].concat()
    }
}

/// The part of the next message that has arrived.
///
/// A peer may send a message in any pieces, or half of it and nothing more; nothing here blocks.
/// Descriptors arrive beside the first byte of a message, and one read could return the bytes of
/// several messages, so a caller must read at most [`Inbox::wanted`] bytes at a time.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Inbox {
    /// The most bytes to read next; never 0.
    pub fn wanted(&self) -> usize {
        match self.header() {
            None => HEADER_LEN - self.bytes.len(),
            Some(header) => HEADER_LEN + payload_len(header) - self.bytes.len(),
        }
    }

    /// Of a message that has started and is incomplete: its bytes that have arrived, and how many
    /// it has as far as is known.
    pub fn partial_message(&self) -> Option<(usize, usize)> {
        let found = self.bytes.len();
        (found > 0).then(|| (found, found + self.wanted()))
    }

    /// Takes bytes that were read, at most [`Inbox::wanted`], and the descriptors beside them.
    ///
    /// # Errors
    /// If no message starts like this. The connection must be closed.
    pub fn take(
        &mut self,
        bytes: &[u8],
        files: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Option<Message>, Fault> {
        self.files.extend(files);
        if self.files.len() > REGIONS_MAX {
            return Err(Fault::TooManyFiles { found: self.files.len(), max: REGIONS_MAX });
        }
        self.bytes.extend_from_slice(bytes);
        let Some(header) = self.header() else { return Ok(None) };
        let request = Name(header.request);
        if header.flags & VERSION_MASK != VERSION {
            return Err(Fault::Version { request, found: header.flags & VERSION_MASK });
        }
        let len = payload_len(header);
        if len > PAYLOAD_MAX {
            return Err(Fault::TooLong { request, size: header.size, max: PAYLOAD_MAX });
        }
        if self.bytes.len() < HEADER_LEN + len {
            return Ok(None);
        }
        let mut payload = mem::take(&mut self.bytes);
        payload.drain(..HEADER_LEN);
        let flags = header.flags & !VERSION_MASK;
        let files = mem::take(&mut self.files);
        Ok(Some(Message { request: header.request, flags, payload, files }))
    }

    fn header(&self) -> Option<Header> {
        Header::read_from_prefix(&self.bytes).ok().map(|(header, _)| header)
    }
}

fn payload_len(header: Header) -> usize {
    usize::try_from(header.size).unwrap_or(usize::MAX - HEADER_LEN)
}
