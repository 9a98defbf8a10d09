//! Notices that links, their addresses or what they do with frames have changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::explain;
use crate::socket::NetlinkSocket;

/// The kernel's `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`.
const GROUPS: [u32; 3] = [1, 5, 9];
/// `RTNLGRP_LINK`, `RTNLGRP_TC`, `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF`: what
/// [`is_local_end`](crate::Netlink::is_local_end) depends on.
const GROUPS_OF_ENDS: [u32; 4] = [1, 4, 24, 25];
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
    /// Watches links and addresses of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<LinkWatch> {
        LinkWatch::of(&GROUPS)
    }

    /// Watches what [`is_local_end`](crate::Netlink::is_local_end) depends on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_local_ends() -> io::Result<LinkWatch> {
        LinkWatch::of(&GROUPS_OF_ENDS)
    }

    fn of(groups: &[u32]) -> io::Result<LinkWatch> {
        let socket = NetlinkSocket::subscribe(NETLINK_ROUTE, groups, BUFFER_BYTES);
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
