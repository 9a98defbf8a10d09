//! The run directory: chosen, locked, cleaned of what a killed host left, and emptied at the end.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ringway_control::RunDir;
use ringway_net::Netlink;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::process::ProcessRecord;
use crate::description::Host;

/// Bytes of a socket's path (`sun_path`), less those that the longest name in the directory takes.
const DIR_LEN_MAX: usize = 107 - "/guest-12345678901234567890123456789012.sock".len();
/// Lock files that may vanish while we take them, before we give up.
const LOCK_ATTEMPTS_MAX: usize = 16;
/// What the description is called in the run directory.
const DESCRIPTION: &str = "host.json";

/// Where a host runs whose user names no directory.
pub(crate) fn default_dir() -> PathBuf {
    let uid = geteuid().as_raw();
    if uid == 0 {
        return PathBuf::from("/run/ringway/default");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => PathBuf::from(dir).join("ringway/default"),
        None => PathBuf::from(format!("/tmp/ringway-{uid}/default")),
    }
}

/// What a host has made and started.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// The supervisor first, then its processes.
    pub(crate) processes: Vec<ProcessRecord>,
    /// Bridges in the network namespace of the caller.
    pub(crate) bridges: Vec<String>,
}

/// A run directory that is ours. Dropping it removes what we put there.
pub(crate) struct Claim {
    dir: RunDir,
    /// Found out at the start, because who enters a user namespace becomes root there.
    is_default: bool,
    state: State,
    _lock: File,
}

impl Claim {
    /// Takes a directory; what a killed host left there is removed.
    pub(crate) fn take(path: &Path) -> Result<Claim> {
        let shown = path.display();
        let len = path.as_os_str().len();
        if len > DIR_LEN_MAX {
            bail!("--dir {shown}: has {len} bytes, expected at most {DIR_LEN_MAX}");
        }
        make_private(path)?;
        let dir = RunDir::new(path);
        let lock = lock(&dir)?;
        let before = read_state(&dir);
        remove_leftovers(&before);
        remove_files(&dir)?;
        Ok(Claim { is_default: path == default_dir(), dir, state: State::default(), _lock: lock })
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// Leaves the description for the host's processes.
    pub(crate) fn write_description(&self, host: &Host) -> Result<()> {
        let path = self.dir.path().join(DESCRIPTION);
        fs::write(&path, serde_json::to_vec_pretty(host)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Changes what the next host will find should this one be killed.
    pub(crate) fn record(&mut self, change: impl FnOnce(&mut State)) -> Result<()> {
        change(&mut self.state);
        let path = self.dir.state();
        let new = path.with_extension("new");
        // A reader finds the old content or the new one.
        fs::write(&new, serde_json::to_vec_pretty(&self.state)?)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("write {}", path.display()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = remove_files(&self.dir) {
            tracing::warn!("{}: {error:#}", self.dir.path().display());
        }
        // Of these the next host is only to know if this one was killed.
        let _ = fs::remove_file(self.dir.panics());
        let _ = fs::remove_file(self.dir.vhosts());
        // While we hold the lock, so that it is not another one's lock that goes.
        let _ = fs::remove_file(self.dir.lock());
        // It stays if it holds files that are not ours.
        let _ = fs::remove_dir(self.dir.path());
        if self.is_default {
            // Its parent is ours as well, and stays while it holds another host.
            let _ = self.dir.path().parent().map(fs::remove_dir);
        }
    }
}

/// The description of the host that runs in a directory.
pub(crate) fn read_description(dir: &RunDir) -> Result<Host> {
    let path = dir.path().join(DESCRIPTION);
    let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&content).with_context(|| format!("read {}", path.display()))
}

/// What the host in a directory has made; nothing if there is no such directory.
pub(crate) fn read_state(dir: &RunDir) -> State {
    // A state file that cannot be read is as good as none: it is only written whole.
    fs::read(dir.state())
        .ok()
        .and_then(|content| serde_json::from_slice(&content).ok())
        .unwrap_or_default()
}

/// Makes the directory, for its user only. One that is there must be like that already, because
/// who can write to it can take the place of any process.
fn make_private(path: &Path) -> Result<()> {
    let shown = path.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("make the run directory {shown}"))?;
    let found = fs::symlink_metadata(path).with_context(|| format!("run directory {shown}"))?;
    let uid = geteuid().as_raw();
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        bail!(
            "run directory {shown}: expected a directory of user {uid} that no other user can \
             write to; it belongs to {} and has mode {:o}",
            found.uid(),
            found.mode() & 0o7777
        );
    }
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => check_parent(path, parent, uid),
        None => Ok(()),
    }
}

/// Who can rename what is in the parent can put another directory in the place of ours, and
/// need not own ours: such as another user who has made `/tmp/ringway-1000` before its user did.
fn check_parent(path: &Path, parent: &Path, uid: u32) -> Result<()> {
    let found = fs::metadata(parent).with_context(|| format!("{}", parent.display()))?;
    let is_trusted = [0, uid, UNMAPPED].contains(&found.uid());
    // A group of its own has every user on many systems.
    let is_open = found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0;
    if is_trusted && !is_open {
        return Ok(());
    }
    bail!(
        "run directory {}: {} belongs to {} and has mode {:o}, so others could put another \
         directory in its place; expected one of root or of user {uid}, or choose \
         another with --dir",
        path.display(),
        parent.display(),
        found.uid(),
        found.mode() & 0o7777
    )
}

/// Users that a user namespace does not know, root among them, are this one there
/// (`user_namespaces(7)`).
const UNMAPPED: u32 = 65534;

fn lock(dir: &RunDir) -> Result<File> {
    let path = dir.lock();
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("lock {}", path.display()))?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            bail!(
                "another `ringway run` (process {}) uses {}: end it, or choose another directory \
                 with --dir",
                holder.trim(),
                dir.path().display()
            );
        }
        // Its previous owner may have removed the file that we opened.
        let is_same =
            |found: fs::Metadata| file.metadata().is_ok_and(|ours| ours.ino() == found.ino());
        if fs::metadata(&path).is_ok_and(is_same) {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())?;
            return Ok(file);
        }
    }
    bail!("{} is removed again and again", path.display())
}

fn remove_leftovers(before: &State) {
    for process in &before.processes {
        if process.is_alive() {
            tracing::warn!("{} (process {}) was left and is killed", process.name, process.pid);
            if let Err(error) = process.kill() {
                tracing::warn!("{}: {error}", process.name);
            }
        }
    }
    for name in &before.bridges {
        let removed = Netlink::open().and_then(|mut netlink| {
            let link = netlink.link(name)?;
            if link.kind.as_deref() == Some("bridge") { netlink.delete(name) } else { Ok(()) }
        });
        match removed {
            Ok(()) => tracing::warn!("bridge {name} was left and is removed"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("bridge {name} was left: {error}"),
        }
    }
}

/// Removes what hosts put into their directory; not the lock, and nothing else.
fn remove_files(dir: &RunDir) -> io::Result<()> {
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours = name.ends_with(".sock")
            || ["state.json", "state.new", DESCRIPTION].contains(&name.as_ref());
        if is_ours {
            fs::remove_file(entry.path())?;
        } else if name == "switch" || name.starts_with("tenant-") {
            // A directory of one process, with its socket in it.
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        format!("{:#}", Claim::take(path).err().expect("refused"))
    }

    #[test]
    fn a_second_claim_is_refused_and_names_the_first() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("run");
        let claim = Claim::take(&path).expect("free");
        let refusal = refusal(&path);
        assert!(refusal.contains(&std::process::id().to_string()), "{refusal}");
        drop(claim);
        assert!(!path.exists());
        Claim::take(&path).expect("free again");
    }

    #[test]
    fn what_a_killed_host_left_goes_and_what_it_did_not_make_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["backend.sock", "state.json", "notes.txt"] {
            fs::write(dir.path().join(name), "not json").expect("written");
        }
        drop(Claim::take(dir.path()).expect("free"));
        let left: Vec<_> = fs::read_dir(dir.path()).expect("it stays").flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "notes.txt");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir.path(), mode).expect("ours");
        assert!(refusal(dir.path()).contains("mode 777"));
    }

    #[test]
    fn a_directory_in_one_that_others_can_write_to_is_refused() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("run");
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(parent.path(), mode(0o777)).expect("ours");
        assert!(refusal(&path).contains("could put another directory in its place"));
        // As in /tmp, where no user renames what is another's.
        fs::set_permissions(parent.path(), mode(0o1777)).expect("ours");
        Claim::take(&path).expect("free");
    }

    #[test]
    fn a_directory_whose_sockets_would_have_too_long_names_is_refused() {
        let path = PathBuf::from(format!("/{}", "x".repeat(100)));
        assert!(refusal(&path).contains("expected at most"));
    }
}
