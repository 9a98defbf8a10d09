//! A socket of the protocol, as messages.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ringway_vhost::{Fault, Inbox, Message, Name};
use ringway_wire::vhost_user::{HEADER_LEN, PAYLOAD_MAX};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, send, sendmsg, shutdown,
};

/// How long a message may take from its first byte to its last. Front-ends send a message at once.
pub const PART_MAX: Duration = Duration::from_secs(10);
/// Replies that may be queued for a peer that does not read.
const REPLIES_MAX: usize = 64;
/// Descriptors that are received at a time: the most that the kernel passes at once (`SCM_MAX_FD`).
/// The kernel would close any beyond that in this thread, which may take for ever.
const FILES_MAX: usize = 253;

/// A connected socket. No method blocks.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    inbox: Inbox,
    /// Bytes that the peer has not read yet, the oldest first.
    replies: VecDeque<Reply>,
}

#[derive(Debug)]
struct Reply {
    bytes: Vec<u8>,
    sent: usize,
    files: Vec<OwnedFd>,
}

/// The result of one read of a socket.
#[derive(Debug)]
pub enum Received {
    /// A whole message.
    Message(Message),
    /// A part of one.
    Part,
    /// Nothing for now.
    Nothing,
    /// The peer has closed it.
    End,
}

/// Why a connection cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The peer broke the protocol.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The peer does not read its replies.
    #[error("{REPLIES_MAX} replies wait, and the front-end does not read them")]
    NotReading,
    /// The peer sent the beginning of a message and not the rest.
    #[error(
        "{found} of the {len} bytes of a message have come in {} s, and not the rest",
        PART_MAX.as_secs()
    )]
    Unfinished {
        /// The bytes that have arrived.
        found: usize,
        /// The bytes of the message, as far as is known.
        len: usize,
    },
    /// The system.
    #[error("the socket: {0}")]
    Io(#[from] io::Error),
    /// The peer sent a descriptor on which another process could make us block.
    #[error("{request} came with {kind}, expected an event descriptor (eventfd) or memory")]
    UnsafeDescriptor {
        /// The request it came with.
        request: Name,
        /// The kind of the descriptor.
        kind: &'static str,
    },
    /// A request could not be carried out.
    #[error("{0}")]
    Failed(String),
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Broken {
        Broken::Io(errno.into())
    }
}

impl Connection {
    /// A connected stream socket.
    pub fn new(socket: OwnedFd) -> Connection {
        Connection { socket, inbox: Inbox::default(), replies: VecDeque::new() }
    }

    /// Reads once from the socket.
    ///
    /// # Errors
    /// If the connection cannot be used any longer.
    pub fn receive(&mut self) -> Result<Received, Broken> {
        let mut bytes = [0; HEADER_LEN + PAYLOAD_MAX];
        let wanted = self.inbox.wanted().min(bytes.len());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| {
            let parts = &mut [IoSliceMut::new(&mut bytes[..wanted])];
            recvmsg(&self.socket, parts, &mut control, flags)
        });
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(error.into()),
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(Received::End);
        }
        Ok(match self.inbox.take(&bytes[..received.bytes], files)? {
            Some(message) => Received::Message(message),
            None => Received::Part,
        })
    }

    /// Sends a message as far as the peer has room for it, and queues the rest.
    ///
    /// # Errors
    /// If the connection cannot be used any longer.
    pub fn send(&mut self, message: Message) -> Result<(), Broken> {
        if self.replies.len() >= REPLIES_MAX {
            return Err(Broken::NotReading);
        }
        let bytes = message.bytes();
        self.replies.push_back(Reply { bytes, sent: 0, files: message.files });
        self.flush()
    }

    /// Sends queued bytes as far as the peer has room for them.
    ///
    /// # Errors
    /// If the connection cannot be used any longer.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while let Some(reply) = self.replies.front_mut() {
            match send_some(&self.socket, reply) {
                Ok(sent) => reply.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                // Bytes that the peer sent before it left are still read.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.replies.clear();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
            if reply.sent == reply.bytes.len() {
                self.replies.pop_front();
            }
        }
        Ok(())
    }

    /// Whether bytes are queued until the peer has room.
    pub fn has_unsent(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Shuts the connection down for the peer, even if another process holds the socket.
    pub(crate) fn shut(&self) {
        // The peer may have shut it down already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Of a message that has started and is incomplete: its bytes that have arrived, and how many
    /// it has as far as is known.
    pub fn partial_message(&self) -> Option<(usize, usize)> {
        self.inbox.partial_message()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_some(socket: &OwnedFd, reply: &mut Reply) -> Result<usize, Errno> {
    let bytes = &reply.bytes[reply.sent..];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // Descriptors go with the first byte. Most messages have none, and the seccomp filter of a
    // confined process does not allow the call that passes them.
    if reply.files.is_empty() {
        return retry_on_intr(|| send(socket, bytes, flags));
    }
    let files: Vec<BorrowedFd<'_>> = reply.files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::INVAL);
    }
    let sent = retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    drop(files);
    reply.files.clear();
    Ok(sent)
}
