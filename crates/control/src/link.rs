//! A pair of sockets between a process and its child: messages with descriptors.
//!
//! The kernel keeps messages whole and in order. Sending never blocks, and only a limited number of
//! messages waits for a process that does not read, so neither end can hold up the other.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a message.
const MESSAGE_LEN_MAX: usize = 64 << 10;
/// The most descriptors of one message.
pub const FDS_MAX: usize = 32;

/// One end.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// The result of a read.
#[derive(Debug)]
pub enum Received<T> {
    /// A message, and the descriptors beside it.
    Message(T, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other process has ended.
    End,
}

impl Link {
    /// Creates two ends. One is passed to a process as its standard input.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn pair() -> io::Result<(Link, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Link(ours), theirs))
    }

    /// Uses the end that this process was started with.
    pub fn new(socket: OwnedFd) -> Link {
        Link(socket)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if the other process does not read; `BrokenPipe` if it has ended;
    /// `InvalidInput` for a message that is too long or has too many descriptors.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MESSAGE_LEN_MAX || fds.len() > FDS_MAX {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // The seccomp filter of a confined process does not allow the call that passes descriptors.
        if fds.is_empty() {
            retry_on_intr(|| send(&self.0, &bytes, flags))?;
            return Ok(());
        }
        let parts = &[IoSlice::new(&bytes)];
        retry_on_intr(|| sendmsg(&self.0, parts, &mut control, flags))?;
        Ok(())
    }

    /// Receives the next message, without blocking.
    ///
    /// # Errors
    /// Of kind `InvalidData` for a message of another type.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Received<T>> {
        self.take(RecvFlags::DONTWAIT)
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// As [`receive`](Link::receive).
    pub fn wait<T: DeserializeOwned>(&self) -> io::Result<Received<T>> {
        self.take(RecvFlags::empty())
    }

    fn take<T: DeserializeOwned>(&self, flags: RecvFlags) -> io::Result<Received<T>> {
        let mut bytes = vec![0; MESSAGE_LEN_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            recvmsg(&self.0, parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(error.into()),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(Received::End);
        }
        let text = bytes.get(..received.bytes).unwrap_or_default();
        Ok(Received::Message(serde_json::from_slice(text)?, fds))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_whole_and_the_end_is_reported() {
        let (ours, theirs) = Link::pair().expect("descriptors");
        let theirs = Link::new(theirs);
        ours.send(&("one", 1), &[theirs.as_fd()]).expect("there is room");
        ours.send(&("two", 2), &[]).expect("there is room");
        let next = || theirs.receive::<(String, u8)>().expect("a message");
        match next() {
            Received::Message((text, number), fds) => {
                assert_eq!((text.as_str(), number, fds.len()), ("one", 1, 1));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(next(), Received::Message((_, 2), fds) if fds.is_empty()));
        assert!(matches!(next(), Received::Nothing));
        drop(ours);
        assert!(matches!(next(), Received::End));
    }

    #[test]
    fn a_process_that_does_not_read_blocks_no_sender() {
        let (ours, theirs) = Link::pair().expect("descriptors");
        let sent = (0..1_000_000).map(|_| ours.send(&"x".repeat(1000), &[]));
        let refused = sent.filter_map(Result::err).next().expect("there is a limit");
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        let long = ours.send(&"x".repeat(MESSAGE_LEN_MAX), &[]).expect_err("too long");
        assert_eq!(long.kind(), ErrorKind::InvalidInput);
        drop(theirs);
    }
}
