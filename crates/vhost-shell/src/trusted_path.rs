//! Opens what a path names without following links of other users.
//!
//! The directory of a socket often belongs to the user of a virtual machine monitor. A process that
//! may open files of all users would follow a link there to any socket of the host, such as that of
//! a container engine, and pass the connection on.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The kernel's limit (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40; // not a limit: the kernel's

/// The file that a path names, opened as a place only (`O_PATH`). Links are followed if they belong
/// to root or to the user of this process.
///
/// # Errors
/// As the kernel reports them; `ELOOP` for a link of another user.
pub(crate) fn find(path: &Path) -> Result<OwnedFd, Errno> {
    let as_place = OFlags::PATH | OFlags::CLOEXEC;
    let root = || open("/", as_place | OFlags::DIRECTORY, Mode::empty());
    let mut rest = parts(path);
    let mut at = openat(CWD, ".", as_place | OFlags::DIRECTORY, Mode::empty())?;
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == "/" {
            at = root()?;
            continue;
        }
        let found = openat(&at, &part, as_place | OFlags::NOFOLLOW, Mode::empty())?;
        let status = fstat(&found)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
            at = found;
            continue;
        }
        links += 1;
        let is_trusted = status.st_uid == 0 || status.st_uid == geteuid().as_raw();
        if !is_trusted || links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        for part in parts(&target_of(found)?).into_iter().rev() {
            rest.push_front(part);
        }
    }
    Ok(at)
}

/// The parts of a path; the first of an absolute one is `/`.
fn parts(path: impl AsRef<Path>) -> VecDeque<OsString> {
    let name = |part: Component<'_>| part.as_os_str().to_owned();
    path.as_ref().components().map(name).collect()
}

fn target_of(link: impl AsFd) -> Result<OsString, Errno> {
    let target = readlinkat(link, OsStr::new(""), Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    use super::*;

    #[test]
    fn links_are_followed_only_if_root_or_this_user_has_made_them() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        let inode = dir.join("file").metadata().unwrap().ino();
        let links = [("dir", "to-dir"), ("dir/file", "to-file"), ("to-dir", "to-link")];
        for (target, link) in links {
            symlink(target, place.path().join(link)).unwrap();
        }
        symlink(dir.join("file"), place.path().join("absolute")).unwrap();
        symlink("in-a-circle", place.path().join("in-a-circle")).unwrap();
        let find = |path: &str| find(&place.path().join(path));
        let ways = ["dir/file", "to-dir/file", "to-file", "to-link/file", "absolute"];
        for path in ways.into_iter().chain(["dir/../to-link/./file"]) {
            assert_eq!(fstat(find(path).unwrap()).unwrap().st_ino, inode, "{path}");
        }
        assert_eq!(find("in-a-circle").unwrap_err(), Errno::LOOP);
        assert_eq!(find("nothing").unwrap_err(), Errno::NOENT);
        assert_eq!(find("dir/file/more").unwrap_err(), Errno::NOTDIR);

        if !geteuid().is_root() {
            println!("SKIPPED: links of another user, which only root can make here");
            return;
        }
        for link in ["to-dir", "to-file", "absolute"] {
            lchown(place.path().join(link), Some(65534), Some(65534)).unwrap();
        }
        for path in ["to-dir/file", "to-file", "to-link/file", "absolute"] {
            assert_eq!(find(path).unwrap_err(), Errno::LOOP, "{path}");
        }
        find("dir/file").unwrap();
    }
}
