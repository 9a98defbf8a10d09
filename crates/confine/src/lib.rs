//! What a process that serves vifs gives up once it has started.
//!
//! A guest that finds a hole in the backend has what the backend has, and a frontend trusts its
//! backend no more. So both keep what serving takes, and nothing else: one capability
//! ([`capabilities`]), the system calls and ioctls on a list ([`calls`]), and, where the kernel has
//! Landlock, a directory and a few devices ([`files`]). Sockets are made and connected before: a
//! process that was taken over reaches no other service of the machine. A process cannot get
//! anything back, nor can threads that it starts later.
//!
//! A call that is not on the list ends the process with `SIGSYS`; `docs/adr` says why.
//!
//! Nothing here knows a hypervisor: the list has the ioctls of Xen's devices, which are the only
//! trace of it. To read first: [`Confinement::apply`], then [`calls`].

mod calls;
mod capabilities;
mod files;
mod role;

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::set_no_new_privs;

pub use files::FileRules;
pub use role::Role;

/// What a process keeps beside the fixed lists.
#[derive(Debug, Clone, Copy)]
pub struct Confinement<'a> {
    /// The directory in which it may make, change and remove files and sockets.
    pub dir: &'a Path,
    /// Devices that it may open; those that do not exist now are left out.
    pub devices: &'a [&'a str],
    /// What it is there for.
    pub role: Role,
}

/// What a backend opens as guests come: TAP devices, and on Xen the devices of event channels and
/// grants. XenStore is not among them, because it is open by then.
pub const BACKEND_DEVICES: &[&str] = &["/dev/net/tun", "/dev/xen/evtchn", "/dev/xen/gntdev"];

/// What the broker opens: a descriptor that it gives up for a moment when it has no other left.
pub const BROKER_DEVICES: &[&str] = &["/dev/null"];

/// What a frontend opens as its vifs come and go.
pub const FRONTEND_DEVICES: &[&str] = &["/dev/net/tun", "/dev/xen/evtchn", "/dev/xen/gntalloc"];

/// Why a process is not confined. It may be in part, so it should end.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Capabilities belong to threads, and those of others cannot be changed.
    #[error("the process has {0} threads, expected 1: it is confined before it starts others")]
    Threads(usize),
    /// The system refused a step.
    #[error("{step}: {error}")]
    Step {
        /// What was to be done.
        step: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// The filter was not made or not taken.
    #[error("system call filter: {0}")]
    Calls(#[from] seccompiler::Error),
    /// Landlock is there and refused the rules.
    #[error("file rules: {0}")]
    Files(#[from] landlock::RulesetError),
}

impl Confinement<'_> {
    /// Confines this process for good. What it has open stays open.
    ///
    /// # Errors
    /// If it has started a thread, or the kernel refuses: any kernel since 4.14 with seccomp takes
    /// all of it but the file rules, which are left out where Landlock is missing.
    pub fn apply(&self) -> Result<FileRules, ConfineError> {
        let threads = fs::read_dir("/proc/self/task").map_err(at("count threads"))?.count();
        if threads != 1 {
            return Err(ConfineError::Threads(threads));
        }
        // Memory holds frames of guests, which belong neither in a core dump nor in a debugger.
        if !self.role.is_entered() {
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at("PR_SET_DUMPABLE"))?;
        }
        set_no_new_privs(true).map_err(at("PR_SET_NO_NEW_PRIVS"))?;
        let rules = files::restrict(self.dir, self.devices, self.role.makes_sockets())?;
        capabilities::reduce(self.role.capabilities()).map_err(at("capabilities"))?;
        // Last, because the list has none of the above.
        calls::filter(self.role)?;
        Ok(rules)
    }
}

/// Names the step in which something failed.
fn at<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> ConfineError {
    move |error| ConfineError::Step { step, error: error.into() }
}
