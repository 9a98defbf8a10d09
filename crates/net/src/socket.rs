//! Sends one request at a time to a netlink family, and reads its replies.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// More than the kernel puts into one datagram (32 KiB).
const RECEIVE_LEN: usize = 1 << 16;

/// A socket of one netlink protocol, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens it. The protocol is one of `netlink_sys::protocols`.
    ///
    /// # Errors
    /// What socket(2), bind(2) or connect(2) report.
    pub fn open(protocol: isize) -> io::Result<NetlinkSocket> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(NetlinkSocket { socket, sequence: 0, buffer: Vec::with_capacity(RECEIVE_LEN) })
    }

    /// Sends a request, and collects the replies until the acknowledgement or the end of the dump,
    /// one of which `flags` must request.
    ///
    /// # Errors
    /// The kernel's error; `Interrupted` if a dump may be inconsistent.
    pub fn request<M>(&mut self, message: M, flags: u16) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
        NetlinkPayload<M>: From<M>,
    {
        let mut replies = Vec::new();
        self.request_each(message, flags, |reply| {
            replies.push(reply);
            ControlFlow::Continue(())
        })?;
        Ok(replies)
    }

    /// As [`request`](NetlinkSocket::request), but passes each reply on as it arrives. After a
    /// `Break` the rest of the replies is still in the socket, which should then be dropped.
    ///
    /// # Errors
    /// As above.
    pub fn request_each<M>(
        &mut self,
        message: M,
        flags: u16,
        mut each: impl FnMut(M) -> ControlFlow<()>,
    ) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
        NetlinkPayload<M>: From<M>,
    {
        self.send(message, flags)?;
        let mut is_interrupted = false;
        // The kernel ends every reply, so this needs no bound of its own.
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = self.buffer.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<M>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                rest = after(rest, message.header.length);
                // The tail of a reply that an earlier error cut short.
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(reply) => match each(reply) {
                        ControlFlow::Continue(()) => {}
                        ControlFlow::Break(()) => return Ok(()),
                    },
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Done(done) if done.code != 0 => {
                        return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
                    }
                    NetlinkPayload::Done(_) if is_interrupted => {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Opens a socket that receives what the kernel announces to multicast groups. Events that
    /// arrive while `buffer_bytes` are full are lost.
    ///
    /// # Errors
    /// As [`open`](NetlinkSocket::open).
    pub fn subscribe(
        protocol: isize,
        groups: &[u32],
        buffer_bytes: u32,
    ) -> io::Result<NetlinkSocket> {
        let socket = NetlinkSocket::open(protocol)?;
        // The kernel may grant less.
        socket.socket.set_rx_buf_sz(buffer_bytes)?;
        socket.socket.set_non_blocking(true)?;
        for group in groups {
            socket.socket.add_membership(*group)?;
        }
        Ok(socket)
    }

    /// Passes on the messages of one datagram of a group, without those that cannot be parsed.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; ENOBUFS if some were lost since the last call.
    pub fn receive_each<M: NetlinkDeserializable>(
        &mut self,
        mut each: impl FnMut(M),
    ) -> io::Result<()> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer, 0)?;
        let mut rest = self.buffer.as_slice();
        while let Ok(header) = NetlinkBuffer::new_checked(rest) {
            let len = header.length();
            if let Ok(message) = NetlinkMessage::<M>::deserialize(rest) {
                if let NetlinkPayload::InnerMessage(message) = message.payload {
                    each(message);
                }
            }
            rest = after(rest, len);
        }
        Ok(())
    }

    /// Drops one datagram of a group.
    ///
    /// # Errors
    /// As [`receive_each`](NetlinkSocket::receive_each).
    pub fn discard(&mut self) -> io::Result<()> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer, 0).map(drop)
    }

    fn send<M>(&mut self, message: M, flags: u16) -> io::Result<()>
    where
        M: NetlinkSerializable,
        NetlinkPayload<M>: From<M>,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), message.into());
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The rest of a datagram after a message; messages are padded to 4 bytes.
fn after(bytes: &[u8], len: u32) -> &[u8] {
    let len = usize::try_from(len).ok().and_then(|len| len.checked_next_multiple_of(4));
    len.and_then(|len| bytes.get(len..)).unwrap_or_default()
}
