//! What the backend process reports to its service manager, passed on by the process that the
//! service manager has started: it takes no other's word.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ringway_control::{ProcessReport, Recipient, RunDir};

/// Bytes of a message: several times the longest.
const MESSAGE_LEN_MAX: usize = 4096;
/// Messages that are passed on in one turn.
const MESSAGES_MAX: usize = 64; // not a limit: a batch, the rest follows

/// A service manager for the backend process, which passes messages on to ours.
pub(super) struct Notices {
    socket: UnixDatagram,
    path: PathBuf,
    recipient: Recipient,
    is_ready: bool,
}

impl Notices {
    /// Opens the socket in the run directory.
    ///
    /// # Errors
    /// What the system reports.
    pub(super) fn open(dir: &RunDir) -> Result<Notices> {
        let path = dir.notices();
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .with_context(|| format!("socket {}", path.display()))?;
        Ok(Notices { socket, path, recipient: Recipient::from_env(), is_ready: false })
    }

    /// The variable that tells a process where to report.
    pub(super) fn variable(&self) -> (&'static str, &std::ffi::OsStr) {
        ("NOTIFY_SOCKET", self.path.as_os_str())
    }

    /// Passes on what has come. The end of a process is not that of the service. `at_first` runs
    /// before the backend is first reported to be ready.
    pub(super) fn pass_on(&mut self, mut at_first: impl FnMut()) -> io::Result<()> {
        let mut message = [0; MESSAGE_LEN_MAX];
        for _ in 0..MESSAGES_MAX {
            let len = match self.socket.recv(&mut message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => received?,
            };
            for line in message.get(..len).unwrap_or_default().split_inclusive(|it| *it == b'\n') {
                match line.trim_ascii_end() {
                    b"STOPPING=1" => {}
                    b"READY=1" if self.is_ready => {}
                    line => {
                        if line == b"READY=1" {
                            at_first();
                            self.is_ready = true;
                        }
                        self.recipient.pass_on(line);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the backend has ever served.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Reports that the description is read again.
    pub(super) fn reloading(&self) {
        self.recipient.reloading();
    }

    /// Reports that the description was read again, whatever became of it.
    pub(super) fn reloaded(&self) {
        self.recipient.report(&ProcessReport::Ready);
    }

    /// Reports that an orderly stop has begun.
    pub(super) fn stopping(&self) {
        self.recipient.stopping();
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
