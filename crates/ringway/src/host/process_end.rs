//! A descriptor that is readable once a process has ended.
//!
//! The kernel has such descriptors since Linux 5.3 (`pidfd_open(2)`). Before that, a thread waits
//! for the end, so a process that will be confined keeps none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use ringway_sys::poll::wait_readable;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};

/// How often a thread finds out whether another's child still runs.
const PAUSE: Duration = Duration::from_millis(20);

/// It is readable once a process has ended.
#[derive(Debug)]
pub(crate) struct ProcessEnd {
    pid: Pid,
    end: End,
}

#[derive(Debug)]
enum End {
    Pidfd(OwnedFd),
    /// The thread closes the other end.
    Thread(UnixStream),
}

impl ProcessEnd {
    /// The end of a child that was not waited for.
    pub(crate) fn of_child(pid: Pid) -> io::Result<ProcessEnd> {
        ProcessEnd::of(pid, move |_| {
            // Without taking its status.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), options));
        })
    }

    /// The end of a process that another one may have started. `is_alive` says whether it runs.
    pub(crate) fn of_any(
        pid: Pid,
        is_alive: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<ProcessEnd> {
        ProcessEnd::of(pid, move |asked| {
            // Until the descriptor is closed.
            while is_alive() && matches!(wait_readable(asked, Some(PAUSE)), Ok(false)) {}
        })
    }

    fn of(pid: Pid, wait: impl FnOnce(&UnixStream) + Send + 'static) -> io::Result<ProcessEnd> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(ProcessEnd { pid, end: End::Pidfd(pidfd) }),
            Err(Errno::NOSYS) => {
                let (ours, theirs) = UnixStream::pair()?;
                let thread = thread::Builder::new().name("end".to_owned());
                thread.spawn(move || wait(&theirs))?;
                Ok(ProcessEnd { pid, end: End::Thread(ours) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal to the process. Without a descriptor of the kernel's, it goes to another one
    /// that was given its number meanwhile.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.end {
            End::Pidfd(pidfd) => pidfd_send_signal(pidfd, signal)?,
            End::Thread(_) => kill_process(self.pid, signal)?,
        }
        Ok(())
    }
}

impl AsFd for ProcessEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.end {
            End::Pidfd(pidfd) => pidfd.as_fd(),
            End::Thread(stream) => stream.as_fd(),
        }
    }
}
