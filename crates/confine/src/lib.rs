//! The privileges that a process that serves vifs gives up after its start.
//!
//! A guest that exploits a hole in the backend gets the backend's privileges, and the same holds
//! for a backend that attacks a frontend. So both keep only what serving requires: at most one
//! capability (`capabilities.rs`), the system calls and ioctls on a list (`calls.rs`), and, if the
//! kernel has Landlock, a directory and a few devices (`files.rs`). Sockets are created and
//! connected before, so a compromised process reaches no other service of the machine. Neither the
//! process nor threads that it starts later can regain anything.
//!
//! A call that is not on the list ends the process with `SIGSYS`; `docs/adr` says why. What an
//! attacker in such a process can still do is in `docs/confinement.md`: a row for each entry of the
//! lists ([`kept`]).
//!
//! Nothing here depends on a hypervisor, except that the list has the ioctls of Xen's devices. To
//! read first: [`Confinement::apply`], then `calls.rs`.

mod calls;
mod capabilities;
mod files;
mod role;
mod user;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, set_no_new_privs};

pub use files::{FileRules, has_landlock};
pub use role::Role;
use user::OwnUser;

/// What a process keeps besides the fixed lists.
#[derive(Debug, Clone, Copy)]
pub struct Confinement<'a> {
    /// The directory of its own files, which it may create, read, change and remove.
    pub files: Option<&'a Path>,
    /// What its user belongs to, if root's process should become a user of its own: a path in the
    /// run directory that no other process has. It should reach its files as those of its working
    /// directory then, because the directories above may be closed to that user.
    pub user_of: Option<&'a Path>,
    /// A directory that it shares with other processes. It may remove its sockets there, create
    /// some if its role does, and read or change no file.
    pub sockets: Option<&'a Path>,
    /// The directories of the host's description, whose files it may read.
    pub description: &'a [PathBuf],
    /// The directory where it keeps the last accepted one, apart from other files of its own.
    pub accepted: Option<&'a Path>,
    /// Devices that it may open; those that do not exist now are left out.
    pub devices: &'a [&'a str],
    /// Its role.
    pub role: Role,
}

/// Devices that a backend opens as guests come: TAP devices, and on Xen the devices for event
/// channels and grants. XenStore is not among them, because it is already open.
pub const BACKEND_DEVICES: &[&str] = &["/dev/net/tun", "/dev/xen/evtchn", "/dev/xen/gntdev"];

/// Devices that the process of a tenant opens: TAP devices come as open descriptors.
pub const TENANT_DEVICES: &[&str] = &["/dev/xen/evtchn", "/dev/xen/gntdev"];

/// The device that the broker opens: a spare descriptor, which it closes for a moment when it has
/// no other left.
pub const BROKER_DEVICES: &[&str] = &["/dev/null"];

/// Devices that a frontend on real Xen opens as its vifs come and go.
pub const FRONTEND_DEVICES: &[&str] = &["/dev/net/tun", "/dev/xen/evtchn", "/dev/xen/gntalloc"];

/// The device of guests on the emulated hypervisor or behind a vhost-user socket, and of a process
/// that serves an uplink only.
pub const TAP_DEVICES: &[&str] = &["/dev/net/tun"];

/// The devices that processes of a role open.
fn devices(role: Role) -> BTreeSet<&'static str> {
    let lists: &[&[&'static str]] = match role {
        Role::Vifs => &[BACKEND_DEVICES, FRONTEND_DEVICES],
        Role::Tenant => &[TENANT_DEVICES],
        Role::EmulatedGuest | Role::VirtioGuest => &[TAP_DEVICES],
        Role::Broker => &[BROKER_DEVICES],
        Role::Opener => &[],
    };
    lists.iter().copied().flatten().copied().collect()
}

/// All that a process of a role keeps, by the names that `docs/confinement.md` has for it.
///
/// # Errors
/// If the filter cannot be built.
pub fn kept(role: Role) -> Result<BTreeSet<String>, ConfineError> {
    let calls = calls::names(role).map_err(seccompiler::Error::from)?;
    let capabilities = role.capabilities();
    let capabilities = capabilities.iter_names().map(|(name, _)| format!("CAP_{name}"));
    let devices = devices(role).into_iter().map(str::to_owned);
    Ok(calls.into_iter().chain(capabilities).chain(devices).chain(files::names(role)).collect())
}

/// Why a process is not confined. It may be confined in part, so it should end.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Other threads exist. Capabilities belong to threads, and those of other threads cannot be
    /// changed.
    #[error("the process has {0} threads, expected 1: confine it before it starts others")]
    Threads(usize),
    /// The system rejected a step.
    #[error("{step}: {error}")]
    Step {
        /// The step.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The filter was not built or not accepted.
    #[error("system call filter: {0}")]
    Calls(#[from] seccompiler::Error),
    /// Landlock exists and rejected the rules.
    #[error("file rules: {0}")]
    Files(#[from] landlock::RulesetError),
}

impl Confinement<'static> {
    /// Nothing besides what each process of a role keeps.
    pub fn of(role: Role) -> Confinement<'static> {
        Confinement {
            files: None,
            user_of: None,
            sockets: None,
            description: &[],
            accepted: None,
            devices: &[],
            role,
        }
    }
}

impl Confinement<'_> {
    /// Confines this process for good. Open descriptors stay open.
    ///
    /// # Errors
    /// If it has started a thread, or the kernel refuses: any kernel since 4.14 with seccomp
    /// supports everything except the file rules, which are left out where Landlock is missing.
    pub fn apply(&self) -> Result<FileRules, ConfineError> {
        debug_assert!(self.devices.iter().all(|device| devices(self.role).contains(device)));
        debug_assert!(self.files.is_none() || self.role.has_files());
        debug_assert!(self.sockets.is_none() || self.role.has_sockets());
        debug_assert!(self.description.is_empty() || self.role.reads_description());
        debug_assert!(self.accepted.is_none() || self.role.reads_description());
        let threads = fs::read_dir("/proc/self/task").map_err(at("count threads"))?.count();
        if threads != 1 {
            return Err(ConfineError::Threads(threads));
        }
        set_no_new_privs(true).map_err(at("PR_SET_NO_NEW_PRIVS"))?;
        // While all directories can still be reached.
        let rules = files::restrict(self)?;
        capabilities::bound(self.role.capabilities()).map_err(at("capabilities"))?;
        match self.user_of.and_then(|what| OwnUser::of(what, self.devices)) {
            Some(user) => user.take(self.files).map_err(at("a user of its own"))?,
            None => self.files.into_iter().for_each(user::take_back),
        }
        capabilities::reduce(self.role.capabilities()).map_err(at("capabilities"))?;
        // Memory holds guests' frames, so neither core dumps nor debuggers may read it. A change of
        // the user has this effect on any process, and the reverse is not needed: root may enter.
        if !self.role.allows_namespace_entry() {
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at("PR_SET_DUMPABLE"))?;
        }
        // Last, because the list allows none of the calls above.
        calls::filter(self.role)?;
        Ok(rules)
    }
}

/// A process that serves no guest, and whose calls and files are on no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlisted {
    /// It starts programs of others, which open others' files and sockets.
    Plugger,
    /// It makes network devices in network namespaces, whose files may be in directories of others.
    Attacher,
}

/// Gives up all privileges that such a process does not need, for it and the programs that it
/// starts.
///
/// # Errors
/// The kernel refuses.
pub fn give_up_privileges(of: Unlisted) -> Result<(), ConfineError> {
    set_no_new_privs(true).map_err(at("PR_SET_NO_NEW_PRIVS"))?;
    let files = CapabilitySet::DAC_OVERRIDE;
    let keep = match of {
        Unlisted::Plugger => files,
        Unlisted::Attacher => files | CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN,
    };
    capabilities::bound(keep).map_err(at("capabilities"))?;
    let reduced = match of {
        Unlisted::Plugger => capabilities::reduce_with_programs(keep),
        Unlisted::Attacher => capabilities::reduce(keep),
    };
    reduced.map_err(at("capabilities"))
}

/// Adds the failed step to an error.
fn at<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> ConfineError {
    move |error| ConfineError::Step { step, error: error.into() }
}
