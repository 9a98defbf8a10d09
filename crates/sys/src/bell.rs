//! Event descriptors (`eventfd(2)`) that another process has as well.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;

/// A counter that one side raises and the other waits for.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new one.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// One that a peer sent. What it does with its own descriptor of the same counter, it can still
    /// choose: a peer that makes it block and fills the counter stops the thread that rings, until
    /// it reads. The descriptors of front-ends are for processes of the host only.
    ///
    /// # Errors
    /// Of kind `InvalidInput` for a descriptor of another kind.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Bell> {
        // An event descriptor has an inode without a type.
        let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
        if kind != FileType::Unknown {
            let what = format!("{kind:?} in the place of an event descriptor (eventfd)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Bell(fd))
    }

    /// Raises the counter. A counter that is full was not read, so the peer is awake.
    ///
    /// # Errors
    /// What write(2) reports.
    pub fn ring(&self) -> io::Result<()> {
        match rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Clears the counter, and says whether it was raised.
    ///
    /// # Errors
    /// What read(2) reports.
    pub fn clear(&self) -> io::Result<bool> {
        match rustix::io::read(&self.0, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Another descriptor of the same counter, for the peer.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_by_whom_it_is_shared_with() {
        let bell = Bell::new().unwrap();
        let other = Bell::from_peer(bell.share().unwrap()).unwrap();
        assert!(!other.clear().unwrap());
        bell.ring().unwrap();
        bell.ring().unwrap();
        assert!(other.clear().unwrap());
        assert!(!bell.clear().unwrap());
    }

    #[test]
    fn a_full_counter_is_no_error() {
        let bell = Bell::new().unwrap();
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for fd in [OwnedFd::from(socket), OwnedFd::from(file)] {
            assert_eq!(Bell::from_peer(fd).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
