//! The broker's sockets: `SOCK_SEQPACKET`, so that messages arrive whole or not at all.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use arrayvec::ArrayVec;
use ringway_wire::DomId;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};
use zerocopy::IntoBytes;

use crate::protocol::{Call, FDS_MAX, Reply, Request};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Call(Call),
    /// Nothing yet.
    Nothing,
    /// The end, or a message that no honest process sends.
    End,
}

/// The socket on which a process becomes the domain.
pub(crate) fn path(dir: &Path, domid: DomId) -> PathBuf {
    dir.join(format!("dom-{domid}.sock"))
}

/// Broker: listens, as the umask of its process allows.
pub(crate) fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let socket = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Domain: connects.
pub(crate) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = open(SocketFlags::CLOEXEC)?;
    retry_on_intr(|| connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket)
}

/// Domain: sends a request.
pub(crate) fn send_call(socket: impl AsFd, call: &Call) -> io::Result<()> {
    let request = call.encode();
    retry_on_intr(|| send(&socket, request.as_bytes(), SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Domain: waits for the reply.
pub(crate) fn receive_reply(socket: impl AsFd) -> io::Result<(Reply, ArrayVec<OwnedFd, FDS_MAX>)> {
    let mut bytes = [0; size_of::<Reply>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let mut fds = ArrayVec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.take(fds.remaining_capacity()));
        }
    }
    let reply = Reply::decode(bytes.get(..received.bytes).unwrap_or_default())?;
    Ok((reply, fds))
}

/// Broker: reads a request, without blocking. Closes descriptors beside it unused.
pub(crate) fn receive_call(socket: impl AsFd) -> Received {
    // One byte more than a request, so that a longer message is not truncated to a valid one.
    let mut bytes = [0; size_of::<Request>() + 1];
    match retry_on_intr(|| recv(&socket, &mut bytes, RecvFlags::DONTWAIT)) {
        Ok((len, _)) => {
            bytes.get(..len).and_then(Call::decode).map_or(Received::End, Received::Call)
        }
        Err(rustix::io::Errno::AGAIN) => Received::Nothing,
        Err(_) => Received::End,
    }
}

/// Broker: sends a reply, without blocking.
///
/// # Errors
/// If the domain does not read its replies; it has then broken the rule of one request at a time.
pub(crate) fn send_reply(
    socket: impl AsFd,
    reply: &Reply,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let parts = &[IoSlice::new(reply.as_bytes())];
    retry_on_intr(|| sendmsg(&socket, parts, &mut control, flags))?;
    Ok(())
}

fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
