//! Determines the kind of a descriptor that a peer has sent, without blocking on the process behind
//! it.
//!
//! A peer may send any descriptor that it has, also one of a file system that it serves itself
//! (`fuse(4)`), or that a host of its choice serves. Querying the length of such a file, mapping
//! it, or even closing it may block forever.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, RawMode, StatxFlags, fcntl_get_seals, statx};

/// The kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file in memory (`memfd_create(2)`, tmpfs, huge pages), or on a local disk: no process can
    /// make its users block forever.
    Local,
    /// A file that may be served by another process or host.
    Remote,
    /// A file without a name, such as an eventfd.
    Anonymous,
    /// Of another type.
    Other(FileType),
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Local => "a file",
            Kind::Remote => "a file that is neither in memory nor on a disk of this host",
            Kind::Anonymous => "a descriptor without a name",
            Kind::Other(FileType::Directory) => "a directory",
            Kind::Other(FileType::Symlink) => "a symbolic link",
            Kind::Other(FileType::Fifo) => "a pipe",
            Kind::Other(FileType::Socket) => "a socket",
            Kind::Other(FileType::CharacterDevice) => "a character device",
            Kind::Other(FileType::BlockDevice) => "a block device",
            Kind::Other(_) => "something of an unknown kind",
        }
    }
}

/// Determines the kind of a descriptor.
///
/// # Errors
/// What statx(2) reports.
pub fn kind(fd: impl AsFd) -> io::Result<Kind> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&fd, c"", flags, StatxFlags::TYPE)?;
    Ok(match FileType::from_raw_mode(RawMode::from(found.stx_mode)) {
        // Only files in memory have seals; only file systems on disks have a major device number.
        FileType::RegularFile => match fcntl_get_seals(&fd).is_ok() || found.stx_dev_major != 0 {
            true => Kind::Local,
            false => Kind::Remote,
        },
        FileType::Unknown => Kind::Anonymous,
        other => Kind::Other(other),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn files_in_memory_are_distinguished_from_those_that_others_keep() {
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(kind(memory).unwrap(), Kind::Local);
        // A file that the kernel generates as it is read, as a process would for `fuse(4)`.
        assert_eq!(kind(File::open("/proc/version").unwrap()).unwrap(), Kind::Remote);
        assert_eq!(kind(eventfd(0, EventfdFlags::CLOEXEC).unwrap()).unwrap(), Kind::Anonymous);
        let null = kind(File::open("/dev/null").unwrap()).unwrap();
        assert_eq!(null, Kind::Other(FileType::CharacterDevice));
    }
}
