//! A family of generic netlink: how it is found, and requests to it, with attributes by their
//! numbers.

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NlaBuffer, NlasIterator, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::socket::NetlinkSocket;

/// The name of a family in the kernel.
pub trait Named: Debug {
    /// It.
    const NAME: &'static str;
}

/// The resolved family, in one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Family<N> {
    socket: NetlinkSocket,
    id: u16,
    name: PhantomData<N>,
}

impl<N: Named> Family<N> {
    /// Resolves the family.
    ///
    /// # Errors
    /// `NotFound` if the kernel has none.
    pub fn open() -> io::Result<Family<N>> {
        let mut socket = NetlinkSocket::open(NETLINK_GENERIC)?;
        let name = GenlCtrlAttrs::FamilyName(N::NAME.to_owned());
        let question = GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: vec![name] };
        let replies = socket.request(GenlMessage::from_payload(question), NLM_F_ACK)?;
        let attributes = replies.into_iter().flat_map(|reply| reply.payload.nlas);
        let family = attributes.into_iter().find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(id) => Some(id),
            _ => None,
        });
        Ok(Family { socket, id: family.ok_or(io::ErrorKind::NotFound)?, name: PhantomData })
    }

    /// Sends a request and collects the replies. `flags` are those of [`NetlinkSocket::request`].
    ///
    /// # Errors
    /// As there.
    pub fn request(&mut self, message: Message<N>, flags: u16) -> io::Result<Vec<Message<N>>> {
        let mut question = GenlMessage::from_payload(message);
        question.set_resolved_family_id(self.id);
        let replies = self.socket.request(question, flags)?;
        Ok(replies.into_iter().map(|reply| reply.payload).collect())
    }
}

/// A request or a reply: attributes by their numbers.
#[derive(Debug)]
pub struct Message<N> {
    command: u8,
    attributes: Vec<(u16, Vec<u8>)>,
    family: PhantomData<N>,
}

impl<N> Message<N> {
    /// A request with this command of its family.
    pub fn new(command: u8, attributes: Vec<(u16, Vec<u8>)>) -> Message<N> {
        Message { command, attributes, family: PhantomData }
    }

    /// The value of an attribute.
    pub fn get(&self, kind: u16) -> Option<&[u8]> {
        let found = self.attributes.iter().find(|(one, _)| *one == kind);
        found.map(|(_, value)| value.as_slice())
    }

    fn nlas(&self) -> Vec<DefaultNla> {
        self.attributes.iter().map(|(kind, value)| attribute(*kind, value)).collect()
    }
}

/// An attribute of this number, for nested ones.
pub fn attribute(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

/// The error for a reply that is not as its family defines it.
pub fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<N: Named> GenlFamily for Message<N> {
    fn family_name() -> &'static str {
        N::NAME
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl<N> Emitable for Message<N> {
    fn buffer_len(&self) -> usize {
        self.nlas().as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.nlas().as_slice().emit(buffer);
    }
}

impl<N> ParseableParametrized<[u8], GenlHeader> for Message<N> {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Message<N>, DecodeError> {
        let own = |nla: NlaBuffer<&[u8]>| (nla.kind(), nla.value().to_vec());
        let attributes = NlasIterator::new(bytes).map(|nla| nla.map(own));
        Ok(Message::new(header.cmd, attributes.collect::<Result<_, _>>()?))
    }
}
