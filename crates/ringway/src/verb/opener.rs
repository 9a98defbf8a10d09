//! `ringway opener`: the process that opens the sockets of virtio's vifs for a backend, which may
//! open none.
//!
//! It serves no guest. The command line asks it, and not the backend, for vifs that are added and
//! removed while the host runs: a backend that has been taken over cannot have it connect anywhere.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use ringway_control::{Call, ControlServer, ControlSocket, Link, OpenerRequest, Reply, RunDir};
use ringway_vhost_shell::{Mode, Opener as Sockets, Turn, Wanted};
use rustix::event::{EventfdFlags, eventfd};
use tracing::level_filters::LevelFilter;

use crate::confine::confine;
use crate::description::{self, SocketMode, VHOSTS_MAX, Vhost};
use crate::host::{Process, read_description};
use crate::stop::{Stop, wait_readable};

/// Opens sockets for the backend that starts it.
#[derive(Debug, Args)]
pub(crate) struct Opener {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Starts it for this process, with which it ends; the way to it.
pub(crate) fn start(dir: &RunDir) -> Result<Link> {
    let (link, theirs) = Link::pair().context("a pair of sockets")?;
    let arguments = ["opener".as_ref(), "--dir".as_ref(), dir.path().as_os_str()];
    let files = [Stdio::from(theirs), Stdio::null()];
    Process::start_with("opener", LevelFilter::current(), arguments, files)?.leave();
    Ok(link)
}

pub(crate) fn run(args: &Opener) -> Result<()> {
    // It ends with the backend, which is asked to end as well and may need it until then.
    let _signals = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let host = read_description(&dir)?;
    let link = Link::new(rustix::stdio::stdin().try_clone_to_owned().context("standard input")?);
    let control = ControlSocket::bind(&dir.opener())?;
    confine(dir.path(), &[], ringway_confine::Role::Opener)?;
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let caller = Arc::clone(&wake);
    let (server, calls) = ControlServer::start(control, move || {
        // The counter cannot overflow between two turns of the loop.
        let _ = rustix::io::write(&caller, &1_u64.to_ne_bytes());
    })?;
    let mut opener = Opening::new(&dir, &host.vhosts, link)?;
    loop {
        let _ = rustix::io::read(&wake, &mut [0; 8]);
        while let Ok(call) = calls.try_recv() {
            opener.take(call);
        }
        if opener.turn()? == Next::End {
            // The socket is the next one's by now.
            std::mem::forget(server);
            return Ok(());
        }
        let mut fds = opener.sockets.wakers();
        fds.push(wake.as_fd());
        let due = opener.sockets.due().map(|due| due.saturating_duration_since(Instant::now()));
        wait_readable(&fds, due)?;
    }
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
enum Next {
    Turn,
    End,
}

/// Vifs of virtio, and who waits for one of them to come or go.
struct Opening {
    sockets: Sockets,
    /// Those of the description.
    described: Vec<String>,
    /// Those that were added since, by their names.
    added: BTreeMap<String, Vhost>,
    /// Where the latter are kept for the next of these processes.
    file: PathBuf,
    waiting: HashMap<String, Waiting>,
}

enum Waiting {
    Added(Box<Vhost>, Call<OpenerRequest>),
    Removed(Call<OpenerRequest>),
}

impl Opening {
    fn new(dir: &RunDir, vhosts: &[Vhost], link: Link) -> Result<Opening> {
        let file = dir.vhosts();
        let mut sockets = Sockets::new(link);
        let now = Instant::now();
        let described: Vec<String> = vhosts.iter().map(|vhost| vhost.name.0.clone()).collect();
        let mut added = BTreeMap::new();
        for vhost in vhosts {
            sockets.add(wanted(vhost, false)?, now);
        }
        for vhost in read(&file) {
            if sockets.has(&vhost.name.0, Path::new(&vhost.socket.0)) {
                tracing::warn!("{}: the description has the same vif", vhost.name);
                continue;
            }
            sockets.add(wanted(&vhost, true)?, now);
            added.insert(vhost.name.0.clone(), vhost);
        }
        // What stands in the way of each is known before all is said to be there.
        sockets.turn(now)?;
        sockets.ready();
        Ok(Opening { sockets, described, added, file, waiting: HashMap::new() })
    }

    fn take(&mut self, call: Call<OpenerRequest>) {
        let refusal = match &call.request {
            OpenerRequest::Add { section } => match self.add(section) {
                Ok(vhost) => {
                    let name = vhost.name.0.clone();
                    self.waiting.insert(name, Waiting::Added(Box::new(vhost), call));
                    return;
                }
                Err(refusal) => refusal,
            },
            OpenerRequest::Remove { name } => match self.remove(name) {
                Ok(()) => {
                    self.waiting.insert(name.clone(), Waiting::Removed(call));
                    return;
                }
                Err(refusal) => refusal,
            },
        };
        call.reply(Reply::error(&refusal));
    }

    fn add(&mut self, section: &str) -> Result<Vhost, String> {
        let parsed = description::parse("the vif", section).map_err(|error| error.to_string())?;
        let [vhost] = <[Vhost; 1]>::try_from(parsed.vhosts)
            .map_err(|_| "expected one [[vhost]]".to_owned())?;
        if self.described.len() + self.added.len() >= usize::from(VHOSTS_MAX) {
            return Err(format!("there are {VHOSTS_MAX} vifs of virtio, and can be no more"));
        }
        let name = &vhost.name.0;
        if self.waiting.contains_key(name) {
            return Err(format!("{name} is being added or removed: try again"));
        }
        if self.sockets.has(name, Path::new(&vhost.socket.0)) {
            return Err(format!("there is a vif {name}, or one with the socket {}", vhost.socket));
        }
        let wanted = wanted(&vhost, true).map_err(|error| error.to_string())?;
        self.sockets.add_now(wanted, Instant::now()).map_err(|error| error.to_string())?;
        Ok(vhost)
    }

    fn remove(&mut self, name: &str) -> Result<(), String> {
        if self.described.iter().any(|known| known == name) {
            return Err(format!(
                "{name} is in the description: remove its [[vhost]] there, and start again"
            ));
        }
        if self.waiting.contains_key(name) {
            return Err(format!("{name} is being added or removed: try again"));
        }
        if !self.added.contains_key(name) {
            let known: Vec<&str> = self.added.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(format!("there is no vif {name:?} that was added; there is {known}"));
        }
        self.sockets.remove(name);
        Ok(())
    }

    fn turn(&mut self) -> io::Result<Next> {
        let Turn::Outcomes(outcomes) = self.sockets.turn(Instant::now())? else {
            return Ok(Next::End);
        };
        for (name, outcome) in outcomes {
            let (call, outcome) = match (self.waiting.remove(&name), outcome) {
                (None, _) => continue,
                (Some(Waiting::Added(vhost, call)), Ok(())) => {
                    self.added.insert(name, *vhost);
                    (call, self.keep())
                }
                (Some(Waiting::Added(_, call)), Err(reason)) => {
                    self.sockets.forget(&name);
                    (call, Err(reason))
                }
                (Some(Waiting::Removed(call)), outcome) => {
                    self.added.remove(&name);
                    (call, outcome.and_then(|()| self.keep()))
                }
            };
            call.reply(match outcome {
                Ok(()) => Reply::ok(&()),
                Err(reason) => Reply::error(&reason),
            });
        }
        Ok(Next::Turn)
    }

    /// Writes down what was added, for a backend that is started again.
    fn keep(&self) -> Result<(), String> {
        let vhosts: Vec<&Vhost> = self.added.values().collect();
        let text = serde_json::to_vec_pretty(&vhosts).map_err(|error| error.to_string())?;
        let new = self.file.with_extension("new");
        // A reader finds the old content or the new one.
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &self.file))
            .map_err(|error| format!("done, but not kept for a backend that starts again: {error}"))
    }
}

/// Who makes the socket of a vif.
pub(crate) fn mode(vhost: &Vhost) -> Mode {
    match vhost.mode {
        SocketMode::Client => Mode::Client,
        SocketMode::Server => Mode::Server,
    }
}

/// What an earlier process has kept.
fn read(file: &Path) -> Vec<Vhost> {
    let read = || -> Result<Vec<Vhost>> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    if !file.exists() {
        return Vec::new();
    }
    read().unwrap_or_else(|error| {
        tracing::warn!("{}: {error:#}", file.display());
        Vec::new()
    })
}

fn wanted(vhost: &Vhost, at_run_time: bool) -> serde_json::Result<Wanted> {
    Ok(Wanted {
        name: vhost.name.0.clone(),
        path: PathBuf::from(&vhost.socket.0),
        mode: mode(vhost),
        vhost: serde_json::to_value(vhost)?,
        at_run_time,
    })
}
