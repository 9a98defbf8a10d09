//! Notices that links or their addresses have changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::explain;
use crate::socket::NetlinkSocket;

/// The kernel's `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`.
const GROUPS: [u32; 3] = [1, 5, 9];
/// Some hundred announcements. More than fit count as a change like others.
const BUFFER_BYTES: u32 = 256 << 10;
/// Datagrams that are read at a time: other work needs the thread, too.
const DATAGRAMS_MAX: usize = 1024; // not a limit: a batch, the rest follows

/// A watch on the links of one network namespace. Its descriptor is readable when something has
/// changed.
#[derive(Debug)]
pub struct LinkWatch {
    socket: NetlinkSocket,
}

impl LinkWatch {
    /// Watches the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<LinkWatch> {
        let socket = NetlinkSocket::subscribe(NETLINK_ROUTE, &GROUPS, BUFFER_BYTES);
        Ok(LinkWatch { socket: socket.map_err(|error| explain(&error, "watch links"))? })
    }

    /// Whether something has changed since the last call; ask the kernel what.
    pub fn has_changed(&mut self) -> bool {
        for read in 0..DATAGRAMS_MAX {
            match self.socket.discard() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return read > 0,
                // Some were lost.
                Err(_) => return true,
            }
        }
        true
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
