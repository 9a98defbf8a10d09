//! The host that a command is about, and its processes.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use ringway_control::{
    BackendRequest, BackendStatus, GuestRequest, GuestStatus, OpenerRequest, ReplyLimits, RunDir,
    is_gone, listed, open_with_limits, send_request,
};
use serde::de::DeserializeOwned;

use crate::host::{ProcessRecord, default_dir, read_description, read_state};

/// How long the addition or removal of a virtio vif may take: it may need another process.
const OPENER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the next backend may take to start, if the host runs.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before it is asked again.
const RETRY: Duration = Duration::from_millis(5);
/// Bytes of the reply: a reason.
const OPENER_REPLY_LEN_MAX: usize = 1 << 20; // not a limit: a process of this host

/// Which host is meant.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// Run directory of the host; the default is /run/ringway/default for root
    #[arg(long, value_name = "DIR", env = "RINGWAY_DIR")]
    dir: Option<PathBuf>,
}

// What `list` of any kind takes; a comment for users would be its help.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Target {
    /// Its directory.
    pub(crate) fn dir(&self) -> RunDir {
        RunDir::new(self.dir.clone().unwrap_or_else(default_dir))
    }

    /// Asks the backend. If it is killed, its successor is asked, perhaps for the same again.
    pub(crate) fn ask_backend<T: DeserializeOwned>(&self, request: &BackendRequest) -> Result<T> {
        let socket = self.dir().backend();
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let is_early = Instant::now() < deadline;
            match send_request(&socket, request) {
                Err(error) if is_early && is_gone(&error) && self.has_host() => {
                    thread::sleep(RETRY);
                }
                reply => return reply.map_err(|error| self.explain(error)),
            }
        }
    }

    /// Asks the process that opens sockets for the backend, or the supervisor of tenants, which
    /// asks that of the tenant.
    pub(crate) fn ask_opener(&self, request: &OpenerRequest) -> Result<()> {
        let dir = self.dir();
        let limits = ReplyLimits { time: OPENER_TIMEOUT, bytes: OPENER_REPLY_LEN_MAX };
        let asked = open_with_limits(&dir.opener(), request, limits);
        asked.map(|((), _)| ()).map_err(|error| self.explain(error))
    }

    /// The backend's state.
    pub(crate) fn backend(&self) -> Result<BackendStatus> {
        self.ask_backend(&BackendRequest::Status)
    }

    /// What an administrator should know of the host, if there is something.
    pub(crate) fn notice(&self) -> Option<String> {
        read_description(&self.dir()).ok()?.notice()
    }

    /// The control socket of the process that serves a vif: the backend's, or that of the vif's
    /// tenant where tenants have processes of their own.
    pub(crate) fn serving(&self, vif: &str) -> Result<PathBuf> {
        let status = self.backend()?;
        let found = status.vifs.into_iter().find(|found| found.name == vif);
        let dir = self.dir();
        Ok(match found.and_then(|found| found.tenant) {
            Some(tenant) => dir.tenant(&tenant).backend(),
            None => dir.backend(),
        })
    }

    /// Asks a guest.
    pub(crate) fn ask_guest<T: DeserializeOwned>(
        &self,
        name: &str,
        request: &GuestRequest,
    ) -> Result<T> {
        let dir = self.dir();
        send_request(&dir.guest(name), request).map_err(|error| {
            if !is_absence(&error) {
                return anyhow!("guest {name}: {error}");
            }
            match self.guest_names() {
                Ok(names) if !names.iter().any(|known| known == name) => {
                    anyhow!("there is no guest {name:?}; there is {}", listed(&names))
                }
                Ok(_) => anyhow!("guest {name} is not running"),
                Err(error) => error,
            }
        })
    }

    /// A guest's state.
    pub(crate) fn guest(&self, name: &str) -> Result<GuestStatus> {
        self.ask_guest(name, &GuestRequest::Status)
    }

    /// The names of all guests, those that do not run included.
    pub(crate) fn guest_names(&self) -> Result<Vec<String>> {
        let dir = self.dir();
        // The description is removed last, so without one there is no host.
        let host = match read_description(&dir) {
            Err(_) if !dir.state().exists() => bail!(self.no_host()),
            read => read?,
        };
        Ok(host.guests.into_iter().map(|guest| guest.name.0).collect())
    }

    /// The error of a process of the host, or the reason why that process is missing.
    pub(crate) fn explain(&self, error: io::Error) -> anyhow::Error {
        match is_absence(&error) {
            true if self.has_host() => anyhow!("the host runs, and this process does not: {error}"),
            true => anyhow!(self.no_host()),
            false => anyhow!(error),
        }
    }

    /// Whether a host runs there, whatever its processes do.
    fn has_host(&self) -> bool {
        read_state(&self.dir()).processes.first().is_some_and(ProcessRecord::is_alive)
    }

    fn no_host(&self) -> String {
        format!(
            "no host runs in {}: start one with `ringway run`, or name another with --dir",
            self.dir().path().display()
        )
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_successor_of_a_killed_backend_is_asked() {
        let place = tempfile::tempdir().expect("a directory");
        let target = Target { dir: Some(place.path().to_owned()) };
        let own = ProcessRecord::of("host", std::process::id()).expect("it runs");
        let state = serde_json::json!({ "processes": [own], "bridges": [] });
        fs::write(target.dir().state(), state.to_string()).expect("a file");
        let listener = UnixListener::bind(target.dir().backend()).expect("a socket");
        let backends = thread::spawn(move || {
            let accept = || listener.accept().expect("a client connects").0;
            let read = |stream: &UnixStream| {
                BufReader::new(stream).read_line(&mut String::new()).expect("a request")
            };
            drop(accept());
            let second = accept();
            read(&second);
            drop(second);
            let mut last = accept();
            read(&last);
            last.write_all(b"{\"ok\":null}\n").expect("a client waits");
        });
        let request = BackendRequest::Release { vif: "vm1".to_owned() };
        target.ask_backend::<()>(&request).expect("the third replies");
        backends.join().expect("it ends");
    }
}
