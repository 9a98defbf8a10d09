//! A socket of the protocol, as messages.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_vhost::{Fault, Inbox, Message, Name};
use ringway_wire::vhost_user::{HEADER_LEN, PAYLOAD_MAX};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, send, sendmsg, shutdown,
};

/// Replies that may wait for a peer that does not read.
const REPLIES_MAX: usize = 64;
/// Descriptors that are taken from the kernel at a time: all that it passes on at once
/// (`SCM_MAX_FD`). Those beyond it would close here and now, which may take for ever.
const FILES_MAX: usize = 253;

/// A connected socket that is never waited for.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    inbox: Inbox,
    /// What the peer has not read yet, the oldest first.
    replies: VecDeque<Reply>,
}

#[derive(Debug)]
struct Reply {
    bytes: Vec<u8>,
    sent: usize,
    files: Vec<OwnedFd>,
}

/// What one read of a socket gave.
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

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The peer broke the protocol.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The peer does not read what it is replied.
    #[error("{REPLIES_MAX} replies wait, and the front-end reads none")]
    Deaf,
    /// The system.
    #[error("the socket: {0}")]
    Io(#[from] io::Error),
    /// The peer sent a descriptor whose keeper could have us wait for it.
    #[error("{request} came with {kind}, expected an event descriptor (eventfd) or memory")]
    Unwanted {
        /// What it came with.
        request: Name,
        /// What it is.
        kind: &'static str,
    },
    /// What a request asked for could not be done.
    #[error("{0}")]
    Undone(String),
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

    /// Looks once for what the peer has sent.
    ///
    /// # Errors
    /// If the connection is of no more use.
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

    /// Sends a message, or as much of it as the peer has room for, and the rest later.
    ///
    /// # Errors
    /// If the connection is of no more use.
    pub fn send(&mut self, message: Message) -> Result<(), Broken> {
        if self.replies.len() >= REPLIES_MAX {
            return Err(Broken::Deaf);
        }
        let bytes = message.bytes();
        self.replies.push_back(Reply { bytes, sent: 0, files: message.files });
        self.flush()
    }

    /// Sends what waits, as far as the peer has room for it.
    ///
    /// # Errors
    /// If the connection is of no more use.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while let Some(reply) = self.replies.front_mut() {
            match send_some(&self.socket, reply) {
                Ok(sent) => reply.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                // What it sent before it left is read to the end all the same.
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

    /// Whether something waits until the peer has room for it.
    pub fn has_unsent(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Ends it for the peer, also where another process has the socket.
    pub(crate) fn shut(&self) {
        // It may have ended already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Whether a message has begun and not ended.
    pub fn is_amid(&self) -> bool {
        self.inbox.is_amid()
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
    // Descriptors go with the first byte. Most messages have none, and a confined process may not
    // make the call that passes them on.
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
