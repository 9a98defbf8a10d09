//! `ringway opener`: the process that opens the sockets of virtio vifs for a backend, which may
//! open none itself.
//!
//! It serves no guest. The command line sends requests to add and remove vifs to it and not to the
//! backend, so that a compromised backend cannot make it connect anywhere.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use ringway_confine::{Confinement, Role};
use ringway_control::{Call, ControlServer, ControlSocket, Link, OpenerRequest, Reply, RunDir};
use ringway_sys::poll::{readable, wait};
use ringway_terminal::stop::Stop;
use ringway_vhost_shell::{Opener as Sockets, Turn, VifSocket};
use tracing::level_filters::LevelFilter;

use crate::confine::confine;
use crate::description::{self, VHOSTS_MAX, Vhost};
use crate::host::{Process, read_description};
use crate::socket_group;
use crate::vhosts;

/// Opens sockets for the backend that starts it.
#[derive(Debug, Args)]
pub(crate) struct Opener {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Whose vifs they are, if tenants have processes of their own
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

/// Starts the opener for this process, and returns the link to it. It ends with this process. That
/// of a tenant opens the sockets of the tenant's vifs.
pub(crate) fn start(dir: &RunDir, tenant: Option<&str>) -> Result<Link> {
    let (link, theirs) = Link::pair().context("a pair of sockets")?;
    let arguments = ["opener".as_ref(), "--dir".as_ref(), dir.path().as_os_str()];
    let of_tenant = tenant.map(|name| ["--tenant".as_ref(), name.as_ref()]);
    let arguments = arguments.into_iter().chain(of_tenant.into_iter().flatten());
    let files = [Stdio::from(theirs), Stdio::null()];
    Process::start_with("opener", LevelFilter::current(), arguments, files)?.leave();
    Ok(link)
}

pub(crate) fn run(args: &Opener) -> Result<()> {
    // Signals are ignored: the backend gets them, too, and may need the opener until it ends.
    let _signals = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let host = read_description(&dir)?;
    let link = Link::new(rustix::stdio::stdin().try_clone_to_owned().context("standard input")?);
    let own = dir.opening();
    // The supervisor of tenants keeps what is added to them.
    let (control, vhosts, added, file) = match &args.tenant {
        None => {
            own.make()?;
            (dir.opener(), host.vhosts, vhosts::read_added(&dir.vhosts()), Some(dir.vhosts()))
        }
        Some(tenant) => {
            let added = vhosts::read_added(&dir.vhosts());
            let of_tenant = |vhosts: &[Vhost]| vhosts::of_tenant(vhosts, tenant);
            (dir.opener_of(tenant), of_tenant(&host.vhosts), of_tenant(&added), None)
        }
    };
    let control = ControlSocket::bind(&control)?;
    let group = host.socket_group.as_ref().map(socket_group::join);
    confine(&Confinement {
        files: file.is_some().then(|| own.path()),
        sockets: None,
        user_of: None,
        devices: &[],
        role: Role::Opener,
    })?;
    let calls = ControlServer::start(control)?;
    let sockets = Sockets::new(link);
    let sockets = match group {
        None => sockets,
        Some(group) => sockets.with_group(group.map_err(|error| {
            tracing::warn!("{error:#}");
            format!("{error:#}")
        })),
    };
    let mut opener = Opening::new(file, &vhosts, added, sockets)?;
    loop {
        while let Some(call) = calls.next_call() {
            opener.take(call);
        }
        if opener.turn()? == Next::End {
            // By now the socket belongs to the next opener.
            std::mem::forget(calls);
            return Ok(());
        }
        let wakers = opener.sockets.wakers();
        let mut sources: Vec<_> = wakers.iter().map(|waker| readable((), waker)).collect();
        sources.push(readable((), &calls));
        let due = opener.sockets.due().map(|due| due.saturating_duration_since(Instant::now()));
        wait(&sources, due)?;
    }
}

/// Whether to continue.
#[derive(PartialEq, Eq)]
enum Next {
    Turn,
    End,
}

/// Vifs of virtio, and the calls that wait for one of them to appear or disappear.
struct Opening {
    sockets: Sockets,
    /// The names of vifs in the description.
    described: Vec<String>,
    /// Vifs added since, by name.
    added: BTreeMap<String, Vhost>,
    /// Where the added vifs are kept for the next opener, if it is this process that keeps them.
    file: Option<PathBuf>,
    waiting: HashMap<String, Waiting>,
}

enum Waiting {
    Added(Box<Vhost>, Call<OpenerRequest>),
    Removed(Call<OpenerRequest>),
}

impl Opening {
    fn new(
        file: Option<PathBuf>,
        vhosts: &[Vhost],
        before: Vec<Vhost>,
        mut sockets: Sockets,
    ) -> Result<Opening> {
        let now = Instant::now();
        let described: Vec<String> = vhosts.iter().map(|vhost| vhost.name.0.clone()).collect();
        let mut added = BTreeMap::new();
        for vhost in vhosts {
            sockets.add(wanted(vhost, false)?, now);
        }
        for vhost in before {
            if sockets.has(&vhost.name.0, Path::new(&vhost.socket.0)) {
                tracing::warn!("{}: the description has the same vif", vhost.name);
                continue;
            }
            sockets.add(wanted(&vhost, true)?, now);
            added.insert(vhost.name.0.clone(), vhost);
        }
        // The problems of each vif are known before all are reported as present.
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
        let vhost = description::parse_vhost(section).map_err(|error| error.to_string())?;
        if self.described.len() + self.added.len() >= usize::from(VHOSTS_MAX) {
            return Err(format!("there are {VHOSTS_MAX} virtio vifs, which is the limit"));
        }
        let name = &vhost.name.0;
        if self.waiting.contains_key(name) {
            return Err(format!("{name} is being added or removed; try again"));
        }
        if self.sockets.has(name, Path::new(&vhost.socket.0)) {
            return Err(format!(
                "a vif {name}, or one with the socket {}, exists already",
                vhost.socket
            ));
        }
        let wanted = wanted(&vhost, true).map_err(|error| error.to_string())?;
        self.sockets.add_now(wanted, Instant::now()).map_err(|error| error.to_string())?;
        Ok(vhost)
    }

    fn remove(&mut self, name: &str) -> Result<(), String> {
        if self.described.iter().any(|known| known == name) {
            return Err(format!(
                "{name} is in the description: remove its [[vhost]] there, and restart the host"
            ));
        }
        if self.waiting.contains_key(name) {
            return Err(format!("{name} is being added or removed; try again"));
        }
        if !self.added.contains_key(name) {
            let known: Vec<&str> = self.added.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(format!("no vif {name:?} was added; there is {known}"));
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
                    self.sockets.remove_unserved(&name);
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

    /// Saves the added vifs, for a backend that restarts.
    fn keep(&self) -> Result<(), String> {
        let file = self.file.as_ref();
        file.map_or(Ok(()), |file| vhosts::save_added(file, self.added.values()))
    }
}

fn wanted(vhost: &Vhost, at_run_time: bool) -> serde_json::Result<VifSocket> {
    Ok(VifSocket {
        name: vhost.name.0.clone(),
        path: PathBuf::from(&vhost.socket.0),
        mode: vhosts::mode(vhost),
        vhost: serde_json::to_value(vhost)?,
        at_run_time,
    })
}
