//! One question at a time to the kernel's rtnetlink, and its answers.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// More than the kernel puts into one datagram (32 KiB).
const RECEIVE_LEN: usize = 1 << 16;

#[derive(Debug)]
pub(crate) struct RouteSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl RouteSocket {
    pub(crate) fn open() -> io::Result<RouteSocket> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(RouteSocket { socket, sequence: 0, buffer: Vec::with_capacity(RECEIVE_LEN) })
    }

    /// Asks, and collects the answers until the acknowledgement or the end of the dump, one of
    /// which `flags` has to ask for.
    ///
    /// # Errors
    /// What the kernel answers; `Interrupted` if a dump may be inconsistent.
    pub(crate) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), message.into());
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        let mut is_interrupted = false;
        // The kernel ends every answer, so this needs no bound of its own.
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = self.buffer.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                rest = after(rest, &message.header);
                // The tail of an answer that an earlier error cut short.
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Done(done) if done.code != 0 => {
                        return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
                    }
                    NetlinkPayload::Done(_) if is_interrupted => {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                    _ => {}
                }
            }
        }
    }
}

/// What follows a message in its datagram; messages are padded to 4 bytes.
fn after<'a>(bytes: &'a [u8], header: &NetlinkHeader) -> &'a [u8] {
    let len = usize::try_from(header.length).ok().and_then(|len| len.checked_next_multiple_of(4));
    len.and_then(|len| bytes.get(len..)).unwrap_or_default()
}
