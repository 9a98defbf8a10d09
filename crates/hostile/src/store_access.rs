//! How a guest reaches XenStore: as a normal client, or with pipelined requests.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ringway_wire::xenstore::{Op, SOCKMSG_LEN, XENSTORE_PAYLOAD_MAX};
use ringway_xenstore::Client;

/// The most outstanding requests: their replies fit into the socket.
const PIPELINED: usize = 256;
/// How long a reply may take before the store counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The location of this guest's XenStore.
#[derive(Debug, Clone)]
pub enum StoreAccess {
    /// A socket of the emulated host.
    Socket(PathBuf),
    /// The interface that the kernel of a Xen domain provides.
    Domain,
}

impl StoreAccess {
    /// Opens another connection.
    ///
    /// # Errors
    /// What the system reports.
    pub fn client(&self) -> io::Result<Client> {
        match self {
            StoreAccess::Socket(path) => Client::connect(path),
            StoreAccess::Domain => Client::of_this_domain(),
        }
    }

    /// Opens another connection for pipelined requests. `None` if the kernel is in between, which
    /// takes one request at a time.
    ///
    /// # Errors
    /// What the system reports.
    pub fn pipeline(&self) -> io::Result<Option<Pipeline>> {
        let StoreAccess::Socket(path) = self else { return Ok(None) };
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Some(Pipeline { stream, under_way: 0, body: vec![0; XENSTORE_PAYLOAD_MAX] }))
    }
}

/// A connection that sends further requests before it has read the replies.
#[derive(Debug)]
pub struct Pipeline {
    stream: UnixStream,
    under_way: usize,
    body: Vec<u8>,
}

impl Pipeline {
    /// Sends a request outside of transactions. The reply is ignored.
    ///
    /// # Errors
    /// If the store has closed the connection, or does not reply for 60 s.
    pub fn send(&mut self, op: Op, payload: &[u8]) -> io::Result<()> {
        if self.under_way == PIPELINED {
            self.take_reply()?;
        }
        let len = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let header = [op.number(), 1, 0, len].map(u32::to_ne_bytes).concat();
        self.stream.write_all(&[&header, payload].concat())?;
        self.under_way += 1;
        Ok(())
    }

    /// Waits for the outstanding replies.
    ///
    /// # Errors
    /// As [`send`](Pipeline::send).
    pub fn finish(mut self) -> io::Result<()> {
        while self.under_way > 0 {
            self.take_reply()?;
        }
        Ok(())
    }

    fn take_reply(&mut self) -> io::Result<()> {
        let mut header = [0; SOCKMSG_LEN];
        self.stream.read_exact(&mut header)?;
        let len = header[12..].try_into().map(u32::from_ne_bytes).map_err(io::Error::other)?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let body = self.body.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?;
        self.stream.read_exact(body)?;
        self.under_way -= 1;
        Ok(())
    }
}
