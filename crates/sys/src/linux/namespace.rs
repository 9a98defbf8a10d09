//! Linux namespaces, with or without root.
//!
//! An emulated guest is a network namespace. A user other than root first creates a user namespace
//! to contain it. Each function does one step; [`namespaces(7)`] describes them.
//!
//! [`namespaces(7)`]: https://man7.org/linux/man-pages/man7/namespaces.7.html

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Pid, PidfdFlags, getegid, geteuid, pidfd_open};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
    move_into_thread_name_spaces,
};

use crate::linux::explain;

/// Moves the calling thread into a new, empty network namespace. Threads and processes that it
/// starts later begin there; open sockets and TAP devices stay where they are.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN: call [`enter_user_namespace`] before.
pub fn unshare_network() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET).map_err(|error| match error {
        Errno::PERM => {
            explain(error, "new network namespace: needs CAP_SYS_ADMIN or a user namespace")
        }
        Errno::NOSPC => explain(
            error,
            "new network namespace: the limit in /proc/sys/user/max_net_namespaces is reached",
        ),
        _ => explain(error, "new network namespace"),
    })
}

/// Moves the process into a new user namespace in which its user is root: with all capabilities
/// over namespaces that it creates from now on, and none over those that existed before.
///
/// A process must do this before it starts its first thread. It also clears a signal requested by
/// [`die_with_parent`](crate::process::die_with_parent), so call that later.
///
/// # Errors
/// If the process has several threads, or the kernel forbids it; the message then names the
/// setting to change.
pub fn enter_user_namespace() -> io::Result<()> {
    require_single_thread("new user namespace")?;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER).map_err(forbidden)?;
    // Without CAP_SETGID in the parent namespace, gid_map may be written only after setgroups(2)
    // has been given up.
    for (file, content) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {uid} 1")),
        ("/proc/self/gid_map", format!("0 {gid} 1")),
    ] {
        fs::write(file, content).map_err(|error| forbidden(explain(error, file)))?;
    }
    Ok(())
}

/// Moves the calling thread into the network namespace of another process, and before that into its
/// user namespace if that differs.
///
/// # Errors
/// If there is no such process, if entering is not permitted, or if the user namespace must change
/// and the calling process has several threads.
pub fn enter(pid: u32) -> io::Result<()> {
    let what = format!("enter the namespaces of process {pid}");
    let mut kinds = ThreadNameSpaceType::NETWORK;
    let user_of = |process: &str| namespace_id(&format!("/proc/{process}/ns/user"));
    if user_of(&pid.to_string()).map_err(|error| explain(error, &what))? != user_of("self")? {
        require_single_thread(&what)?;
        kinds |= ThreadNameSpaceType::USER;
    }
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| explain(Errno::SRCH, &what))?;
    // Through a pidfd, so that both namespaces belong to one process even if its number is reused.
    let entered = pidfd_open(process, PidfdFlags::empty())
        .and_then(|pidfd| move_into_thread_name_spaces(pidfd.as_fd(), kinds));
    let entered = match entered {
        // Linux before 5.8 takes no pidfd, and before 5.3 it has none.
        Err(Errno::NOSYS | Errno::INVAL) => enter_one_by_one(pid, kinds),
        entered => entered,
    };
    entered.map_err(|error| explain(error, what))
}

/// As [`enter`], through a file for each namespace. The caller has to find out whether the process
/// still exists.
fn enter_one_by_one(pid: u32, kinds: ThreadNameSpaceType) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let namespace = |name: &str| open(format!("/proc/{pid}/ns/{name}"), flags, Mode::empty());
    if kinds.contains(ThreadNameSpaceType::USER) {
        let user = namespace("user")?;
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
    }
    let network = namespace("net")?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
}

/// A network namespace, by its file, which `ip netns` or a container engine has made. It exists at
/// least as long as this.
#[derive(Debug)]
pub struct NetworkNamespace(OwnedFd);

impl NetworkNamespace {
    /// Opens the file of a namespace.
    ///
    /// # Errors
    /// What open(2) reports.
    pub fn open(path: &Path) -> io::Result<NetworkNamespace> {
        // Another kind of file may be there, and its opening must not wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = open(path, flags, Mode::empty());
        file.map(NetworkNamespace).map_err(|error| explain(error, path.display()))
    }

    /// That of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn current() -> io::Result<NetworkNamespace> {
        NetworkNamespace::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Whether both are one.
    ///
    /// # Errors
    /// What fstat(2) reports.
    pub fn is_same(&self, other: &NetworkNamespace) -> io::Result<bool> {
        let id = |file: &OwnedFd| fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
        Ok(id(&self.0)? == id(&other.0)?)
    }

    /// Moves the calling thread into it. Sockets and TAP devices that are open stay where they are.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN here and in the user namespace that it belongs to;
    /// `InvalidInput` if the file is not that of a network namespace.
    pub fn enter(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), kind)?)
    }
}

/// Gives the calling thread its own mount namespace, whose /sys shows the thread's network
/// namespace instead of the one in which it was mounted.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_ADMIN, or where parts of /sys are covered (in a container)
/// and a fresh one would uncover them.
pub fn remount_sysfs() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS).map_err(|error| explain(error, "new mount namespace"))?;
    // Otherwise the next mount would propagate to the original namespace.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)
        .map_err(|error| explain(error, "make all mounts private"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("sysfs", "/sys", "sysfs", flags, None)
        .map_err(|error| explain(error, "mount a fresh /sys"))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: the function is unsafe for CLONE_FILES only, as descriptors of one thread would then
    // mean other files in another. No caller passes it, and no flag we pass implies it.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

fn namespace_id(link: &str) -> io::Result<u64> {
    fs::metadata(link).map(|link| link.ino()).map_err(|error| explain(error, link))
}

fn require_single_thread(what: &str) -> io::Result<()> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads > 1 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{what}: must be done before the first thread is started, there are {threads}"),
        ));
    }
    Ok(())
}

/// Names the settings that forbid user namespaces.
fn forbidden(error: impl Into<io::Error>) -> io::Error {
    let settings = [
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    let is_set = |&(file, bad): &(&str, &str)| {
        fs::read_to_string(file).is_ok_and(|value| value.trim() == bad)
    };
    let blocking: Vec<_> = settings
        .iter()
        .filter(|setting| is_set(setting))
        .map(|(file, bad)| format!("{file} is {bad}"))
        .collect();
    let reason = if blocking.is_empty() {
        "the kernel, a container or a limit (/proc/sys/user/max_user_namespaces) forbids it".into()
    } else {
        blocking.join(", ")
    };
    explain(error, format_args!("new user namespace: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    #[test]
    fn entering_a_user_namespace_with_threads_fails_with_the_reason() {
        let error = thread::spawn(enter_user_namespace).join().expect("no panic");
        let error = error.expect_err("the test runner is a second thread");
        assert!(error.to_string().contains("before the first thread"), "{error}");
    }

    #[test]
    fn the_namespace_of_a_missing_process_cannot_be_entered() {
        let error = enter(u32::MAX).expect_err("no such process");
        assert!(error.to_string().contains("4294967295"), "{error}");
    }

    fn current_netns_id() -> io::Result<u64> {
        // Not /proc/self, which refers to the first thread of the process.
        namespace_id("/proc/thread-self/ns/net")
    }

    #[test]
    fn a_thread_enters_a_network_namespace_by_its_file_and_returns() {
        let tried = thread::spawn(|| {
            unshare_network()?;
            let home = NetworkNamespace::current()?;
            unshare_network()?;
            let other = NetworkNamespace::current()?;
            assert!(!home.is_same(&other)? && home.is_same(&home)?);
            home.enter()?;
            assert!(home.is_same(&NetworkNamespace::current()?)?);
            let file = NetworkNamespace::open(Path::new("/proc/self/status"))?;
            let error = file.enter().expect_err("it is another file").kind();
            assert_eq!(error, io::ErrorKind::InvalidInput);
            Ok::<_, io::Error>(())
        });
        match tried.join().expect("no panic") {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: {error}");
            }
            tried => tried.expect("entered"),
        }
        let error = NetworkNamespace::open(Path::new("/run/netns/no-such")).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_thread_joins_the_network_namespace_of_another_process() {
        let outside = current_netns_id().expect("/proc is mounted");
        let child = thread::spawn(|| {
            unshare_network()?;
            // It runs until its standard input is closed.
            let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
            Ok::<_, io::Error>((child, current_netns_id()?))
        });
        let (mut child, inside) = match child.join().expect("no panic") {
            Ok(started) => started,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_ne!(outside, inside);

        let pid = child.id();
        let joined = thread::spawn(move || enter(pid).and_then(|()| current_netns_id()));
        assert_eq!(joined.join().expect("no panic").expect("entered"), inside);
        assert_eq!(current_netns_id().expect("/proc is mounted"), outside);

        drop(child.stdin.take());
        child.wait().expect("cat ends with its input");
    }
}
