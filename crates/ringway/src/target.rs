//! The host that a command is about, and its processes.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use ringway_control::{
    BackendRequest, BackendStatus, GuestRequest, GuestStatus, NOT_QUARANTINED, OpenerRequest,
    ReplyLimits, RunDir, is_gone, listed, open, open_with_limits, send_request,
};
use ringway_vhost_shell::LISTENED_AT;
use serde::de::DeserializeOwned;

use crate::description::parse_vhost;
use crate::host::{ProcessRecord, default_dir, read_description, read_state};
use crate::vhosts;

/// How long the addition or removal of a virtio vif may take: it may need another process.
const OPENER_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a process of a host that runs may take to start, or to have a place for a request.
const START_TIMEOUT: Duration = Duration::from_secs(10);
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
        self.ask_in_turn(|_| send_request(&socket, request))
    }

    /// Takes a vif out of quarantine.
    pub(crate) fn release(&self, vif: &str) -> Result<()> {
        let (socket, vif) = (self.dir().backend(), vif.to_owned());
        let request = BackendRequest::Release { vif };
        self.ask_in_turn(|turn| as_repeated(turn, send_request(&socket, &request)))
    }

    /// Asks the process that opens sockets for the backend, or the supervisor of tenants, which
    /// asks that of the tenant.
    pub(crate) fn ask_opener(&self, request: &OpenerRequest) -> Result<()> {
        let dir = self.dir();
        let limits = ReplyLimits { time: OPENER_TIMEOUT, bytes: OPENER_REPLY_LEN_MAX };
        let was_so = is_done(&dir, request);
        self.ask_in_turn(|turn| {
            let asked = open_with_limits(&dir.opener(), request, limits).map(|((), _)| ());
            match as_repeated(turn, asked) {
                // An opener has done it before it ended.
                Err(error)
                    if turn == Turn::Again
                        && error.kind() == io::ErrorKind::Other
                        && !was_so
                        && is_done(&dir, request) =>
                {
                    Ok(())
                }
                asked => asked,
            }
        })
    }

    /// The frames of a vif, from the process that serves it.
    pub(crate) fn capture(&self, vif: &str, snap_len: u32) -> Result<BufReader<UnixStream>> {
        let socket = self.serving(vif)?;
        let request = BackendRequest::Capture { vif: vif.to_owned(), snap_len };
        self.ask_in_turn(|_| open(&socket, &request)).map(|((), stream)| stream)
    }

    /// Asks a process of a host that runs. While it has no place for a request, it is asked again;
    /// if it is killed, its successor is.
    fn ask_in_turn<T>(&self, ask: impl FnMut(Turn) -> io::Result<T>) -> Result<T> {
        let may_return = |error: &io::Error| may_be_repeated(error) && self.has_host();
        ask_while(may_return, ask).map_err(|error| self.explain(error))
    }

    /// The backend's state.
    pub(crate) fn backend(&self) -> Result<BackendStatus> {
        self.ask_backend(&BackendRequest::Status)
    }

    /// What an administrator should know of the host, if there is something.
    pub(crate) fn notice(&self) -> Option<String> {
        read_description(&self.dir()).ok()?.notice()
    }

    /// The backend's state, if there is a backend now.
    pub(crate) fn backend_now(&self) -> io::Result<BackendStatus> {
        send_request(&self.dir().backend(), &BackendRequest::Status)
    }

    /// The control socket of the process that serves a vif: the backend's, or that of the vif's
    /// tenant where tenants have processes of their own.
    fn serving(&self, vif: &str) -> Result<PathBuf> {
        let (status, dir) = (self.backend()?, self.dir());
        Ok(match status.tenants.iter().find(|tenant| tenant.serves(vif)) {
            Some(tenant) => dir.tenant(&tenant.name).backend(),
            None => dir.backend(),
        })
    }

    /// Asks a guest.
    pub(crate) fn ask_guest<T: DeserializeOwned>(
        &self,
        name: &str,
        request: &GuestRequest,
    ) -> Result<T> {
        let socket = self.dir().guest(name);
        // One that has ended may never return.
        let may_return = |error: &io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => true,
            _ => is_gone(error) && self.runs(&format!("guest {name}")),
        };
        ask_while(may_return, |_| send_request(&socket, request)).map_err(|error| {
            if !is_gone(&error) {
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
    fn explain(&self, error: io::Error) -> anyhow::Error {
        match is_gone(&error) {
            true if self.has_host() => anyhow!("the host runs, and this process does not: {error}"),
            true => anyhow!(self.no_host()),
            false => anyhow!(error),
        }
    }

    /// Whether the host has a process of this name now.
    fn runs(&self, name: &str) -> bool {
        let processes = read_state(&self.dir()).processes;
        processes.iter().any(|process| process.name == name && process.is_alive())
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

/// Whether a process that has ended may have carried out the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    Again,
}

/// Asks until there is a reply, or an error after which none can come.
pub(crate) fn ask_while<T>(
    may_return: impl Fn(&io::Error) -> bool,
    mut ask: impl FnMut(Turn) -> io::Result<T>,
) -> io::Result<T> {
    let (mut turn, mut deadline) = (Turn::First, None);
    loop {
        let error = match ask(turn) {
            Err(error) if may_return(&error) => error,
            reply => return reply,
        };
        let now = Instant::now();
        if now >= *deadline.get_or_insert(now + START_TIMEOUT) {
            return Err(error);
        }
        if !is_absence(&error) {
            turn = Turn::Again;
        }
        thread::sleep(RETRY);
    }
}

/// Whether a process, or its successor, may do what it has not done now.
pub(crate) fn may_be_repeated(error: &io::Error) -> bool {
    is_gone(error) || error.kind() == io::ErrorKind::WouldBlock
}

/// What has come of an order that an earlier process may have got: what that did before it ended is
/// no fault, and what it still holds is free in a moment.
pub(crate) fn as_repeated(turn: Turn, done: io::Result<()>) -> io::Result<()> {
    match (turn, done) {
        (Turn::Again, Err(error)) if error.to_string().ends_with(NOT_QUARANTINED) => Ok(()),
        (Turn::Again, Err(error)) if error.to_string().ends_with(LISTENED_AT) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, error))
        }
        (_, done) => done,
    }
}

/// Whether the vifs that were added are as such a request leaves them.
fn is_done(dir: &RunDir, request: &OpenerRequest) -> bool {
    let added = vhosts::read_added(&dir.vhosts());
    match request {
        OpenerRequest::Add { section } => {
            let wanted = parse_vhost(section).ok().and_then(|it| serde_json::to_value(it).ok());
            wanted.is_some() && added.iter().any(|it| serde_json::to_value(it).ok() == wanted)
        }
        OpenerRequest::Remove { name } => !added.iter().any(|it| it.name.0 == *name),
        OpenerRequest::Reload { .. } | OpenerRequest::Describe { .. } => false,
    }
}

/// Whether no process got the request.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, Write};
    use std::os::unix::net::UnixListener;

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

    #[test]
    fn a_socket_of_an_opener_that_is_about_to_end_is_waited_for() {
        let refused = || Err(io::Error::other(format!("/vm1: {LISTENED_AT}")));
        let kind = |turn| as_repeated(turn, refused()).expect_err("it is taken").kind();
        assert_eq!(kind(Turn::First), io::ErrorKind::Other);
        assert_eq!(kind(Turn::Again), io::ErrorKind::WouldBlock);
    }

    /// The reply to an order that a first opener got and ended, and that a second one refuses. What
    /// was added is `before` until the first one has the order.
    fn asked_again(request: &OpenerRequest, [before, after]: [&str; 2]) -> Result<()> {
        let place = tempfile::tempdir().expect("a directory");
        let target = Target { dir: Some(place.path().to_owned()) };
        let dir = target.dir();
        let own = ProcessRecord::of("host", std::process::id()).expect("it runs");
        let state = serde_json::json!({ "processes": [own], "bridges": [] });
        fs::write(dir.state(), state.to_string()).expect("a file");
        dir.opening().make().expect("a directory");
        let added = [before, after].map(|text| parse_vhost(text).ok());
        let file = dir.vhosts();
        vhosts::save_added(&file, added[0].iter()).expect("saved");
        let listener = UnixListener::bind(dir.opener()).expect("a socket");
        let openers = thread::spawn(move || {
            for reply in ["", "{\"error\":\"it refuses\"}\n"] {
                let mut stream = listener.accept().expect("a client connects").0;
                BufReader::new(&stream).read_line(&mut String::new()).expect("a request");
                vhosts::save_added(&file, added[1].iter()).expect("saved");
                stream.write_all(reply.as_bytes()).expect("a client waits");
            }
        });
        let asked = target.ask_opener(request);
        openers.join().expect("it ends");
        asked
    }

    #[test]
    fn what_an_opener_has_done_before_it_ended_is_done() {
        let section = |name| format!("[[vhost]]\nname = '{name}'\nsocket = '/{name}'\n");
        let [one, other] = ["vm1", "vm2"].map(section);
        let add = OpenerRequest::Add { section: one.clone() };
        let remove = OpenerRequest::Remove { name: "vm1".to_owned() };
        asked_again(&add, ["", &one]).expect("it was added");
        asked_again(&remove, [&one, ""]).expect("it was removed");
        for (request, vifs) in [(&add, [&*one, &*one]), (&add, ["", &*other]), (&remove, ["", ""])]
        {
            let refusal = asked_again(request, vifs).expect_err("it was not done by this order");
            assert_eq!(refusal.to_string(), "it refuses", "{request:?} {vifs:?}");
        }
    }
}
