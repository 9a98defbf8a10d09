//! The run directory: chosen, locked, cleaned of what a killed host left, and emptied at the end.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use ringway_control::{RunDir, files};
use ringway_net::Netlink;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::process::ProcessRecord;
use crate::description::{FlowKeyText, Host};

/// Bytes of the directory's path: those of a socket's path (`sun_path`), less the longest name in
/// the directory.
const DIR_LEN_MAX: usize = 107 - "/guest-12345678901234567890123456789012.sock".len();
/// Lock files that may vanish while we lock them, before we give up.
const LOCK_ATTEMPTS_MAX: usize = 16;
/// Name of the description in the run directory.
const DESCRIPTION: &str = "host.json";
/// Files that a host removes: those that concern itself, and what a killed process was writing.
const FILES: [&str; 6] =
    ["state.json", DESCRIPTION, "state.new", "host.new", "vhosts.new", "flow-key.new"];

/// The run directory of a host whose user names none.
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

/// Checks the path of a run directory.
///
/// # Errors
/// If paths of sockets in it would be too long.
pub(crate) fn check_path(path: &Path) -> Result<()> {
    let len = path.as_os_str().len();
    if len > DIR_LEN_MAX {
        bail!("--dir {}: has {len} bytes, expected at most {DIR_LEN_MAX}", path.display());
    }
    Ok(())
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
    /// Determined at the start, because a process that enters a user namespace becomes root there.
    is_default: bool,
    state: State,
    /// Whether network devices outlive this host, and with them the notes about them.
    keeps_devices: bool,
    _lock: File,
}

impl Claim {
    /// Takes a directory and removes what a killed host left in it.
    pub(crate) fn take(path: &Path) -> Result<Claim> {
        check_path(path)?;
        make_private(path)?;
        let dir = RunDir::new(path);
        let lock = lock(&dir)?;
        let before = read_state(&dir);
        remove_leftovers(&before);
        adopt(&dir)?;
        remove_files(&dir).with_context(|| format!("empty {}", dir.path().display()))?;
        let _ = fs::remove_file(dir.xen_domain());
        Ok(Claim {
            is_default: path == default_dir(),
            dir,
            state: State::default(),
            keeps_devices: true,
            _lock: lock,
        })
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// Removes what a killed host leaves to the next one about its vifs: panics over them, virtio
    /// vifs that were added, and what was set of vifs.
    pub(crate) fn forget_vifs(&self) {
        let _ = fs::remove_file(self.dir.vhosts());
        for of_process in of_processes(&self.dir) {
            let _ = fs::remove_file(of_process.panics());
            for entry in fs::read_dir(of_process.path()).into_iter().flatten().flatten() {
                if RunDir::has_settings(&entry.file_name().to_string_lossy()) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// Forgets the network devices of earlier hosts, and at the end those of this one: they do not
    /// outlive it.
    pub(crate) fn forget_devices(&mut self) {
        self.keeps_devices = false;
        remove_device_notes(&self.dir);
    }

    /// Writes the description for the host's processes. One without a key of flows gets that of the
    /// host before, or a random one, which is kept.
    pub(crate) fn write_description(&self, host: &mut Host) -> Result<()> {
        if host.flow_key.is_none() {
            host.flow_key = Some(self.kept_flow_key()?);
        }
        write_description(&self.dir, host)
    }

    fn kept_flow_key(&self) -> Result<FlowKeyText> {
        let path = self.dir.flow_key();
        let kept = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        let key = kept.unwrap_or_else(FlowKeyText::random);
        if kept.is_none() {
            files::replace(&path, format!("{key}\n").as_bytes())?;
        }
        Ok(key)
    }

    /// Changes what the next host finds if this one is killed.
    pub(crate) fn record(&mut self, change: impl FnOnce(&mut State)) -> Result<()> {
        change(&mut self.state);
        Ok(files::replace(&self.dir.state(), &serde_json::to_vec_pretty(&self.state)?)?)
    }
}

/// Writes the description for the host's processes that start from now on.
pub(super) fn write_description(dir: &RunDir, host: &Host) -> Result<()> {
    let path = dir.path().join(DESCRIPTION);
    Ok(files::replace(&path, &serde_json::to_vec_pretty(host)?)?)
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.keeps_devices {
            remove_device_notes(&self.dir);
        }
        // The next host needs this only if this one was killed.
        self.forget_vifs();
        if let Err(error) = remove_files(&self.dir) {
            tracing::warn!("{}: {error:#}", self.dir.path().display());
        }
        // While we hold the lock, so that we do not remove another host's lock.
        let _ = fs::remove_file(self.dir.lock());
        let _ = fs::remove_file(self.dir.plugging());
        // It stays if it holds files that are not ours.
        let _ = fs::remove_dir(self.dir.path());
        if self.is_default {
            // The parent is ours as well; it stays while it holds the directory of another host.
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

/// What the host in a directory has made; empty if there is no such directory.
pub(crate) fn read_state(dir: &RunDir) -> State {
    // An unreadable state file counts as a missing one: it is only ever written whole.
    fs::read(dir.state())
        .ok()
        .and_then(|content| serde_json::from_slice(&content).ok())
        .unwrap_or_default()
}

/// Creates the directory with access for its user only. An existing one must already be restricted
/// like that, because a user who can write to it can take the place of any process.
fn make_private(path: &Path) -> Result<()> {
    let shown = path.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| anyhow!("make the run directory {shown}: {error}; --dir names another"))?;
    let found = fs::symlink_metadata(path).with_context(|| format!("run directory {shown}"))?;
    let uid = geteuid().as_raw();
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        bail!(
            "run directory {shown}: expected a directory of user {uid} that no other user can \
             write to; it belongs to {} and has mode {:o}; --dir names another",
            found.uid(),
            found.mode() & 0o7777
        );
    }
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => check_parent(path, parent, uid),
        None => Ok(()),
    }
}

/// A user who can rename entries of the parent can replace our directory without owning it: for
/// example one who created `/tmp/ringway-1000` before user 1000 did.
fn check_parent(path: &Path, parent: &Path, uid: u32) -> Result<()> {
    let found = fs::metadata(parent).with_context(|| format!("{}", parent.display()))?;
    let is_trusted = [0, uid, UNMAPPED].contains(&found.uid());
    // Group write access is fine: on many systems each user has a group of their own.
    let is_open = found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0;
    if is_trusted && !is_open {
        return Ok(());
    }
    bail!(
        "run directory {}: {} belongs to {} and has mode {:o}, so others could put another \
         directory in its place; use one that belongs to root or to user {uid}, or choose another \
         with --dir",
        path.display(),
        parent.display(),
        found.uid(),
        found.mode() & 0o7777
    )
}

/// In a user namespace, users that it does not map, root among them, appear as this one
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
                "another `ringway run` (process {}) uses {}: stop it, or choose another directory \
                 with --dir",
                holder.trim(),
                dir.path().display()
            );
        }
        // Its previous owner may have removed the file that we opened.
        let is_same =
            |found: fs::Metadata| file.metadata().is_ok_and(|ours| ours.ino() == found.ino());
        if fs::metadata(&path).is_ok_and(is_same) {
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id()))
                .with_context(|| format!("write {}", path.display()))?;
            return Ok(file);
        }
    }
    bail!("another process keeps removing {}", path.display())
}

fn remove_leftovers(before: &State) {
    for process in &before.processes {
        if process.is_alive() {
            tracing::warn!(
                "killing {} (process {}), which an earlier run left behind",
                process.name,
                process.pid
            );
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
            Ok(()) => tracing::warn!("removing bridge {name}, which an earlier run left behind"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                "cannot remove bridge {name}, which an earlier run left behind: {error}"
            ),
        }
    }
}

/// Moves what the first version kept in the run directory itself to the processes that read it now.
fn adopt(dir: &RunDir) -> io::Result<()> {
    for entry in fs::read_dir(dir.path())? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let of_process = match &*text {
            "vhosts.json" => dir.opening(),
            text if RunDir::is_of_vhost(text) => dir.serving(),
            _ => continue,
        };
        of_process.make()?;
        fs::rename(dir.path().join(&name), of_process.path().join(&name))?;
    }
    Ok(())
}

/// Removes only what hosts put into their directory, except the lock. The administrator may have
/// named any directory.
fn remove_files(dir: &RunDir) -> io::Result<()> {
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let name = name.to_string_lossy();
        let is_ours = name.ends_with(".sock") && kind.is_socket()
            || FILES.contains(&name.as_ref()) && kind.is_file();
        if is_ours {
            fs::remove_file(entry.path())?;
        }
    }
    for of_process in of_processes(dir) {
        remove_files(&of_process)?;
        // It stays if it holds files that are not ours, or that the next process reads.
        let _ = fs::remove_dir(of_process.path());
    }
    Ok(())
}

/// The directories of processes in a run directory.
fn of_processes(dir: &RunDir) -> Vec<RunDir> {
    let entries = fs::read_dir(dir.path()).into_iter().flatten().flatten();
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let of_process = entries.filter(|entry| {
        RunDir::is_of_process(&entry.file_name().to_string_lossy()) && is_dir(entry)
    });
    of_process.map(|entry| RunDir::new(entry.path())).collect()
}

/// Removes what processes have noted of vifs that are gone with their guests: their traffic, and
/// their restarts.
pub(super) fn forget_vifs(dir: &RunDir) {
    for of_process in of_processes(dir) {
        for note in [of_process.traffic(), of_process.restarts()] {
            let _ = fs::remove_file(note);
        }
    }
}

/// Removes what outlives a host while network devices do: the notes of all processes about them,
/// and the key of flows. Directories that are empty then are removed, too.
pub(super) fn remove_device_notes(dir: &RunDir) {
    let _ = fs::remove_file(dir.flow_key());
    let _ = fs::remove_file(dir.xen_domain());
    forget_vifs(dir);
    // Those of the supervisor of tenants.
    let _ = fs::remove_file(dir.devices());
    for of_process in of_processes(dir) {
        let _ = fs::remove_file(of_process.devices());
        let _ = fs::remove_dir(of_process.path());
    }
    let _ = fs::remove_dir(dir.path());
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::description::{Usage, parse};

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
    fn leftovers_of_a_killed_host_are_removed_and_other_files_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        RunDir::new(dir.path()).serving().make().expect("ours");
        for name in ["state.json", "backend/vhost-vm1.limits", "backend/panics", "notes.txt"] {
            fs::write(dir.path().join(name), "not json").expect("written");
        }
        UnixListener::bind(dir.path().join("backend.sock")).expect("a socket");
        drop(Claim::take(dir.path()).expect("free"));
        let left: Vec<_> = fs::read_dir(dir.path()).expect("it stays").flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "notes.txt");
    }

    #[test]
    fn the_domain_that_a_host_served_is_known_until_the_next_host() {
        let dir = tempfile::tempdir().expect("a directory");
        let claim = Claim::take(dir.path()).expect("free");
        let known = claim.dir().xen_domain();
        fs::write(&known, "0").expect("ours");
        drop(claim);
        assert!(known.exists(), "for who has stopped it");
        let _next = Claim::take(dir.path()).expect("free");
        assert!(!known.exists());
    }

    #[test]
    fn what_the_first_version_kept_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["vhosts.json", "vhost-vm1.features", "vhost-vm1.limits"] {
            fs::write(dir.path().join(name), name).expect("written");
        }
        let claim = Claim::take(dir.path()).expect("free");
        let run = claim.dir();
        let found = [run.vhosts(), run.serving().vhost("vm1"), run.serving().vhost_limits("vm1")];
        for path in &found {
            let name = path.file_name().expect("a name").to_string_lossy();
            assert_eq!(fs::read_to_string(path).expect("moved"), name);
        }
        let [_, features, _] = found;
        drop(claim);
        assert!(features.exists(), "its guest may still run");
    }

    #[test]
    fn files_that_no_host_made_stay() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("run");
        let theirs = ["notes.sock", "tenant-list", "switch/notes", "switch/deep/notes"];
        fs::create_dir_all(path.join("switch/deep")).expect("ours");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&path, mode).expect("ours");
        for name in theirs {
            fs::write(path.join(name), "notes").expect("ours");
        }
        fs::create_dir(path.join("tenant-a")).expect("ours");
        let ours = ["backend.sock", "tenant-a/backend.sock", "switch/backend.sock"];
        for name in ours {
            UnixListener::bind(path.join(name)).expect("a socket");
        }
        drop(Claim::take(&path).expect("free"));
        for name in theirs {
            assert!(path.join(name).exists(), "{name}");
        }
        for name in ours {
            assert!(!path.join(name).exists(), "{name}");
        }
        assert!(!path.join("tenant-a").exists());
    }

    #[test]
    fn notes_about_network_devices_stay_as_long_as_the_devices() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(dir.path());
        let notes = [run.clone(), run.serving(), run.switch()].map(|of_process| {
            of_process.make().expect("ours");
            of_process.devices()
        });
        for note in &notes {
            fs::write(note, "{}").expect("written");
        }
        drop(Claim::take(dir.path()).expect("free"));
        assert!(notes.iter().all(|note| note.exists()));
        let mut claim = Claim::take(dir.path()).expect("free");
        claim.forget_devices();
        assert!(!notes.iter().any(|note| note.exists()));
        run.serving().make().expect("ours");
        fs::write(run.serving().devices(), "{}").expect("written");
        drop(claim);
        assert!(!run.serving().path().exists() && !run.switch().path().exists());
    }

    #[test]
    fn a_flow_key_stays_as_long_as_devices_unless_the_description_has_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let key_in = |text: &str| {
            let mut host = parse("test", text, Usage::default()).expect("good");
            let claim = Claim::take(dir.path()).expect("free");
            claim.write_description(&mut host).expect("written");
            let passed = read_description(claim.dir()).expect("written").flow_key;
            assert_eq!(passed, host.flow_key);
            (passed.expect("each host has one"), claim)
        };
        let first = key_in("").0;
        assert_eq!(key_in("").0, first);
        let named = key_in("[host]\nflow-key = '6d5a56da255b0ec24167253d43a38fb0'\n").0;
        assert_eq!(named.to_string(), "6d5a56da255b0ec24167253d43a38fb0");
        let (again, mut claim) = key_in("");
        assert_eq!(again, first);
        claim.forget_devices();
        drop(claim);
        assert_ne!(key_in("").0, first);
        fs::write(RunDir::new(dir.path()).flow_key(), "damaged").expect("written");
        let other = key_in("").0;
        assert!(other != first && key_in("").0 == other);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir.path(), mode).expect("ours");
        assert!(refusal(dir.path()).contains("mode 777"));
    }

    #[test]
    fn a_directory_inside_one_that_others_can_write_to_is_refused() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("run");
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(parent.path(), mode(0o777)).expect("ours");
        assert!(refusal(&path).contains("could put another directory in its place"));
        // As in /tmp, where users cannot rename each other's files.
        fs::set_permissions(parent.path(), mode(0o1777)).expect("ours");
        Claim::take(&path).expect("free");
    }

    #[test]
    fn a_directory_whose_socket_paths_would_be_too_long_is_refused() {
        let path = PathBuf::from(format!("/{}", "x".repeat(100)));
        assert!(refusal(&path).contains("expected at most"));
    }
}
