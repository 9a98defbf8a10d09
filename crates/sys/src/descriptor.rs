//! What a descriptor is that a peer has sent, asked without waiting for its keeper.
//!
//! A peer may send any descriptor that it has: also of a file system that it serves itself
//! (`fuse(4)`), or of one that a host of its choice serves. To ask such a file for its length, to
//! map it, even to close it may take for ever.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, RawMode, StatxFlags, fcntl_get_seals, statx};

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file in memory (`memfd_create(2)`, tmpfs, huge pages), or on a disk of this host: no
    /// process can have who uses it wait for ever.
    Local,
    /// A file that another process or another host may keep.
    Remote,
    /// Something without a name, such as an eventfd.
    Nameless,
    /// Of another type.
    Other(FileType),
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Local => "a file",
            Kind::Remote => "a file that is neither in memory nor on a disk of this host",
            Kind::Nameless => "a descriptor without a name",
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

/// Finds out what a descriptor is.
///
/// # Errors
/// What statx(2) reports.
pub fn kind(fd: impl AsFd) -> io::Result<Kind> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&fd, c"", flags, StatxFlags::TYPE)?;
    Ok(match FileType::from_raw_mode(RawMode::from(found.stx_mode)) {
        // Only files in memory know seals; only file systems on disks have a major number.
        FileType::RegularFile => match fcntl_get_seals(&fd).is_ok() || found.stx_dev_major != 0 {
            true => Kind::Local,
            false => Kind::Remote,
        },
        FileType::Unknown => Kind::Nameless,
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
        // What the kernel makes up as it is read, as a process would for `fuse(4)`.
        assert_eq!(kind(File::open("/proc/version").unwrap()).unwrap(), Kind::Remote);
        assert_eq!(kind(eventfd(0, EventfdFlags::CLOEXEC).unwrap()).unwrap(), Kind::Nameless);
        let null = kind(File::open("/dev/null").unwrap()).unwrap();
        assert_eq!(null, Kind::Other(FileType::CharacterDevice));
    }
}
