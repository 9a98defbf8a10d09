//! What may be set where we run, by root of where we run: a network namespace has settings of its
//! own, sees some of the machine's and cannot set those, and does not see others at all.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// A file that only the machine's own network namespace has.
const OF_THE_MACHINE: &str = "proc/sys/net/core/netdev_max_backlog";
/// One that all have since Linux 4.15, so that `/proc/sys` is known to be readable.
const OF_EACH: &str = "proc/sys/net/ipv4/tcp_rmem";
/// The bit of a mode that lets the owner write.
const OWNER_WRITES: u32 = 0o200;

/// Which network namespace evidence is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Netns {
    /// The one that the machine started with, which has its cards and its settings.
    Initial,
    /// Another one: that of a container, of a router of OpenStack, of `ip netns`.
    Other,
}

impl Netns {
    /// That of this process; none if nothing says which it is.
    ///
    /// By what the kernel shows in it: who may not trace process 1 cannot compare with its link,
    /// and in a process namespace of its own that link says nothing of the machine.
    pub fn live() -> Option<Netns> {
        Netns::below(Path::new("/"))
    }

    /// The same, where `/proc` is below another root.
    pub fn below(root: &Path) -> Option<Netns> {
        if root.join(OF_THE_MACHINE).exists() {
            return Some(Netns::Initial);
        }
        root.join(OF_EACH).exists().then_some(Netns::Other)
    }

    /// As it is written down.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Netns::Initial => "initial",
            Netns::Other => "other",
        }
    }

    /// The reverse.
    pub(crate) fn of_word(word: &str) -> Option<Netns> {
        [Netns::Initial, Netns::Other].into_iter().find(|one| one.word() == word)
    }
}

/// Why a file that can be read cannot be written by root of where we run; none if it can.
pub(super) fn read_only(path: &Path) -> io::Result<Option<&'static str>> {
    let metadata = fs::metadata(path)?;
    if metadata.mode() & OWNER_WRITES == 0 {
        return Ok(Some("it can only be read here"));
    }
    if metadata.uid() != 0 {
        return Ok(Some("it belongs to another user namespace"));
    }
    let is_read_only = statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(is_read_only.then_some("it is mounted read-only"))
}
