//! The user: a process that root has started becomes a user of its own.
//!
//! Without capabilities, root still owns most files of a system, and all processes of root may
//! signal each other. A number suffices for a user who owns one directory and needs no name.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use rustix::process::{
    Gid, Uid, geteuid, getppid, parent_process_death_signal, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// Numbers that no user has: systemd's `UIDS-GIDS.md` lists them as unused, between those of
/// containers and those of files of other systems.
const FIRST: u32 = 0x7000_0000;
const COUNT: u32 = 1 << 27;
/// What becoming another user takes.
const NEEDED: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::SETGID).union(CapabilitySet::SETUID);
/// Read and write access for every user.
const FOR_ALL: u32 = 0o006;

/// A user that one process is.
#[derive(Debug)]
pub(crate) struct OwnUser {
    number: u32,
}

impl OwnUser {
    /// The user that belongs to a path, the same one for the next process. Others have another one,
    /// except by chance: any two of 512 tenants, on one host in a thousand.
    ///
    /// `None` if the process keeps its user: it is not root's, lacks a capability for that, or
    /// opens a device later that only root may open, such as Xen's.
    pub(crate) fn of(path: &Path, devices: &[&str]) -> Option<OwnUser> {
        let is_closed = |device: &&str| {
            fs::metadata(device).is_ok_and(|found| found.mode() & FOR_ALL != FOR_ALL)
        };
        let may = capabilities(None).is_ok_and(|had| had.effective.contains(NEEDED));
        let is_kept = !geteuid().is_root() || !may || devices.iter().any(is_closed);
        (!is_kept).then(|| OwnUser { number: FIRST + hash(path) % COUNT })
    }

    /// Becomes that user, and keeps the capabilities that are permitted. `files` and what earlier
    /// processes left there belong to the user from then on. Where the system has no such user, as
    /// in some containers, the process keeps its own.
    ///
    /// # Errors
    /// What the system reports, and the end of the parent.
    pub(crate) fn take(&self, files: Option<&Path>) -> io::Result<()> {
        let (parent, signal) = (getppid(), parent_process_death_signal()?);
        let given = files.map_or(Ok(()), |files| give(files, self.number));
        match given.and_then(|()| self.switch()) {
            Err(error) if is_without(&error) => {
                files.map(take_back);
                return Ok(());
            }
            done => done?,
        }
        // Another user's process is not ended with its parent unless it asks again.
        set_parent_process_death_signal(signal)?;
        match getppid() == parent {
            true => Ok(()),
            false => Err(io::Error::other("the parent process has ended")),
        }
    }

    fn switch(&self) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.number), Gid::from_raw(self.number));
        set_keep_capabilities(true)?;
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        // The user last: it may change no group.
        set_thread_res_uid(user, user, user)?;
        Ok(set_keep_capabilities(false)?)
    }
}

/// Makes a directory that of a process that keeps its user: an earlier one may have been another,
/// and without its capabilities root may not write there either. If that is impossible, the first
/// write reports it.
pub(crate) fn take_back(files: &Path) {
    let ours = geteuid().as_raw();
    if fs::metadata(files).is_ok_and(|found| found.uid() != ours) {
        let _ = give(files, ours);
    }
}

fn give(files: &Path, user: u32) -> io::Result<()> {
    let owner = Some(user);
    for entry in fs::read_dir(files)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_file() {
            lchown(&path, owner, owner)?;
        }
    }
    lchown(files, owner, owner)
}

/// Whether the system has no such user, or does not let this process become another one.
fn is_without(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput)
}

/// FNV-1a of a path.
fn hash(path: &Path) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    path.as_os_str().as_bytes().iter().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_has_its_user_and_no_user_is_anothers() {
        let user = |path: &str| FIRST + hash(Path::new(path)) % COUNT;
        assert_eq!(user("/run/ringway/default/backend"), user("/run/ringway/default/backend"));
        assert_ne!(user("/run/ringway/default/tenant-a"), user("/run/ringway/default/tenant-b"));
        // The range of systemd's foreign users begins at 0x7ffe_0000.
        let last = FIRST + COUNT - 1;
        assert!(FIRST >= 0x7000_0000 && last < 0x7ffe_0000, "{last:#x}");
    }
}
