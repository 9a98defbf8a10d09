//! The directory through which the processes of one emulated host find each other.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The prefix of directories of devices in network namespaces.
const NAMESPACE: &str = "namespace-";
/// The prefix of files of virtio vifs.
const VHOST: &str = "vhost-";
/// The suffix of files with negotiated features.
const FEATURES: &str = ".features";
/// The suffix of files with changed limits.
const LIMITS: &str = ".limits";
/// The prefixes of files with what guests of Xen have set.
const HASHING: &str = "hashing-";
const MULTICAST: &str = "multicast-";

/// A run directory: sockets and state of one emulated host.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// A directory with this path; it is not accessed.
    pub fn new(path: impl Into<PathBuf>) -> RunDir {
        RunDir(path.into())
    }

    /// The directory itself, in which the broker also creates its `dom-N.sock`.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The XenStore socket of domain 0: for `XENSTORED_PATH`.
    pub fn xenstore(&self) -> PathBuf {
        self.0.join("xenstored.sock")
    }

    /// The XenStore socket of another domain.
    pub fn xenstore_of(&self, domid: u16) -> PathBuf {
        self.0.join(format!("xenstored-{domid}.sock"))
    }

    /// The backend's control socket.
    pub fn backend(&self) -> PathBuf {
        self.0.join("backend.sock")
    }

    /// Where the backend process reports what is for the service manager.
    pub fn notices(&self) -> PathBuf {
        self.0.join("notices.sock")
    }

    /// The control socket of the process that opens sockets for the backend.
    pub fn opener(&self) -> PathBuf {
        self.0.join("opener.sock")
    }

    /// The control socket of the process that opens sockets for a tenant's process.
    pub fn opener_of(&self, tenant: &str) -> PathBuf {
        self.0.join(format!("opener-{tenant}.sock"))
    }

    /// Virtio vifs that were added while the host ran, for the next backend.
    pub fn vhosts(&self) -> PathBuf {
        self.opening().0.join("vhosts.json")
    }

    /// The directory of the process that serves all vifs. As the other directories of processes it
    /// is the only one in which the process may change files, and no other process trusts them.
    pub fn serving(&self) -> RunDir {
        RunDir(self.0.join("backend"))
    }

    /// The directory of the process that opens sockets.
    pub fn opening(&self) -> RunDir {
        RunDir(self.0.join("opener"))
    }

    /// The directory of a process that serves one tenant.
    pub fn tenant(&self, name: &str) -> RunDir {
        RunDir(self.0.join(format!("tenant-{name}")))
    }

    /// The directory of the switch process.
    pub fn switch(&self) -> RunDir {
        RunDir(self.0.join("switch"))
    }

    /// The directory of what is known of the device in a network namespace, by the name of its vif.
    pub fn namespace(&self, name: &str) -> RunDir {
        RunDir(self.0.join(format!("{NAMESPACE}{name}")))
    }

    /// The path of the namespace with the device whose directory this is.
    pub fn netns(&self) -> PathBuf {
        self.0.join("netns")
    }

    /// The directories of all devices in network namespaces.
    pub fn namespaces(&self) -> Vec<RunDir> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let named = entries.map(|entry| (entry.file_name(), entry.path()));
        let are_theirs = named.filter(|(name, _)| name.to_string_lossy().starts_with(NAMESPACE));
        are_theirs.map(|(_, path)| RunDir(path)).collect()
    }

    /// Whether a directory of this name in the run directory is that of a process.
    pub fn is_of_process(name: &str) -> bool {
        let is_one_of_many = ["tenant-", NAMESPACE].iter().any(|of| name.starts_with(of));
        ["backend", "opener", "switch"].contains(&name) || is_one_of_many
    }

    /// Creates the directory for its user only, unless it exists.
    ///
    /// # Errors
    /// What the system reports, with the path.
    pub fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let what = format!("make {}: {error}", self.0.display());
                Err(io::Error::new(error.kind(), what))
            }
            _ => Ok(()),
        }
    }

    /// A guest's control socket.
    pub fn guest(&self, name: &str) -> PathBuf {
        self.0.join(format!("guest-{name}.sock"))
    }

    /// The list of what the host has created and started, for cleaning up after it.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// The vifs over which the backend's workers have panicked, for the next backend.
    pub fn panics(&self) -> PathBuf {
        self.0.join("panics")
    }

    /// The negotiated features of a virtio vif's guest, for the next backend.
    pub fn vhost(&self, name: &str) -> PathBuf {
        self.0.join(format!("{VHOST}{name}{FEATURES}"))
    }

    /// What the guest of a Xen vif has set over its control ring, for the next backend.
    pub fn hashing(&self, vif: &str) -> PathBuf {
        self.0.join(format!("{HASHING}{vif}"))
    }

    /// The multicast frames that the guest of a Xen vif has ordered, for the next backend.
    pub fn multicast(&self, vif: &str) -> PathBuf {
        self.0.join(format!("{MULTICAST}{vif}"))
    }

    /// The limits of a virtio vif that a user has changed, for the next backend.
    pub fn vhost_limits(&self, name: &str) -> PathBuf {
        self.0.join(format!("{VHOST}{name}{LIMITS}"))
    }

    /// Whether a file of this name in the directory holds what was set of a vif:
    /// [`vhost_limits`](Self::vhost_limits), [`hashing`](Self::hashing) or
    /// [`multicast`](Self::multicast).
    pub fn has_settings(file_name: &str) -> bool {
        let has_limits = file_name.starts_with(VHOST) && file_name.ends_with(LIMITS);
        has_limits || [HASHING, MULTICAST].iter().any(|of| file_name.starts_with(of))
    }

    /// Whether a file of this name is one of a virtio vif.
    pub fn is_of_vhost(file_name: &str) -> bool {
        let is_kept = |end| file_name.ends_with(end);
        file_name.starts_with(VHOST) && [LIMITS, FEATURES].into_iter().any(is_kept)
    }

    /// What was applied to the network devices of a process, for its successor.
    pub fn devices(&self) -> PathBuf {
        self.0.join("devices.json")
    }

    /// The Xen vifs of a process that had traffic recently, which its successor takes over first.
    pub fn traffic(&self) -> PathBuf {
        self.0.join("traffic")
    }

    /// How often the process of each vif was replaced.
    pub fn restarts(&self) -> PathBuf {
        self.0.join("restarts")
    }

    /// The key by which a host without one in its description chooses a queue of a flow: for the
    /// next host, as its guests may be those of this one, and must not see that it was restarted.
    pub fn flow_key(&self) -> PathBuf {
        self.0.join("flow-key")
    }

    /// The number of the domain of real Xen whose vifs the host serves, for who stops it.
    pub fn xen_domain(&self) -> PathBuf {
        self.0.join("xen-domain")
    }

    /// A file that is locked while a process changes ports of Open vSwitch for this host. One that
    /// has outlived a killed host still has it.
    pub fn plugging(&self) -> PathBuf {
        self.0.join("plugger.lock")
    }

    /// A file that is locked while the host runs.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }
}
