//! Which settings root can change from here: a network namespace has settings of its own, can read
//! but not change some of the machine's, and does not see others at all.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// A file that exists only in the machine's initial network namespace.
const OF_THE_MACHINE: &str = "proc/sys/net/core/netdev_max_backlog";
/// A file that every namespace has since Linux 4.15; it shows that `/proc/sys` is readable.
const OF_EACH: &str = "proc/sys/net/ipv4/tcp_rmem";
/// The bit of a mode that lets the owner write.
const OWNER_WRITES: u32 = 0o200;

/// The network namespace that the evidence describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Netns {
    /// The initial one, which has the machine's cards and settings.
    Initial,
    /// Another one, such as that of a container, of an OpenStack router or of `ip netns`.
    Other,
}

impl Netns {
    /// The namespace of this process; `None` if that cannot be determined.
    ///
    /// It is determined by the files that the kernel shows in it. A process that may not trace
    /// process 1 cannot read that one's namespace link, and in another PID namespace the link is
    /// not the machine's.
    pub fn live() -> Option<Netns> {
        Netns::below(Path::new("/"))
    }

    /// The namespace that a `/proc` below another root shows.
    pub fn below(root: &Path) -> Option<Netns> {
        if root.join(OF_THE_MACHINE).exists() {
            return Some(Netns::Initial);
        }
        root.join(OF_EACH).exists().then_some(Netns::Other)
    }

    /// The word for it in a record.
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

/// Why root cannot write a readable file from here; `None` if it can.
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
