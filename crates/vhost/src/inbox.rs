//! Messages, and how they are put together from what a socket gives.

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

    /// What it is called.
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

    /// What goes onto the socket, with [`Message::files`] beside its first byte.
    pub fn bytes(&self) -> Vec<u8> {
        let size = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let header = Header { request: self.request, flags: self.flags | VERSION, size };
        [header.as_bytes(), &self.payload].concat()
    }
}

/// What has come of the next message.
///
/// A peer may send it in any pieces, or half of it and nothing more: nothing here waits.
/// Descriptors come beside the first byte of a message, and a reader may get the bytes of several
/// messages at once, so no more is to be read at a time than [`Inbox::wanted`].
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Inbox {
    /// How many bytes are to be read next, at most; never 0.
    pub fn wanted(&self) -> usize {
        match self.header() {
            None => HEADER_LEN - self.bytes.len(),
            Some(header) => HEADER_LEN + payload_len(header) - self.bytes.len(),
        }
    }

    /// Whether a message has begun and not ended.
    pub fn is_amid(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes what was read: at most [`Inbox::wanted`] bytes, and the descriptors beside them.
    ///
    /// # Errors
    /// If no message begins like that. The connection is of no use then.
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
