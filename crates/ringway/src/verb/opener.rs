//! `ringway opener`: the process that opens the sockets of virtio vifs for a backend, which may
//! open none itself, and has another one make the devices of network namespaces.
//!
//! It serves no guest. The command line sends requests to add and remove vifs to it and not to the
//! backend, so that a compromised backend cannot make it connect anywhere.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use ringway_confine::{Confinement, Role};
use ringway_control::{
    Call, ControlServer, ControlSocket, Link, OpenerRequest, Reply, RunDir, listed,
};
use ringway_sys::poll::{readable, wait};
use ringway_terminal::stop::Stop;
use ringway_vhost_shell::{Opener as Sockets, Outcome, Reloaded, Turn, VifNamespace, VifSocket};
use serde::Deserialize as _;
use serde_json::Value;
use tracing::level_filters::LevelFilter;

use crate::confine::confine;
use crate::description::{self, Host, Origin, Place, VHOSTS_MAX, Vhost};
use crate::host::{Accepted, Process, log_kept, log_refusal, read_description};
use crate::socket_group;
use crate::verb::attacher;
use crate::vhosts;

/// Bytes of a request: a description, with what JSON adds to it.
const REQUEST_LEN_MAX: usize = 16 << 20;

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
    Process::start_beside("opener", LevelFilter::current(), arguments, Stdio::from(theirs))?;
    Ok(link)
}

pub(crate) fn run(args: &Opener) -> Result<()> {
    // Signals are ignored: the backend gets them, too, and may need the opener until it ends.
    let _signals = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let mut host = read_description(&dir)?;
    let link = Link::new(rustix::stdio::stdin().try_clone_to_owned().context("standard input")?);
    let own = dir.opening();
    // The supervisor of tenants keeps what is added to them.
    let added = vhosts::read_added(&dir.vhosts());
    let (control, added, file) = match &args.tenant {
        None => {
            own.make()?;
            (dir.opener(), added, Some(dir.vhosts()))
        }
        Some(tenant) => {
            host.vhosts = vhosts::of_tenant(&host.vhosts, tenant);
            (dir.opener_of(tenant), vhosts::of_tenant(&added, tenant), None)
        }
    };
    let rereads = host.origin.as_ref().filter(|_| file.is_some()).and_then(|origin| {
        // Elsewhere the supervisor reads it.
        origin.usage.has_toolstack.then(|| Accepted::of(&origin.file, dir.path()))
    });
    let rereads = rereads.transpose()?;
    let control = ControlSocket::bind(&control)?;
    let attacher = attacher::start(&dir, host.vhosts.iter().chain(&added))?;
    let group = host.socket_group.as_ref().map(socket_group::join);
    let described = rereads.as_ref().map_or(&[][..], Accepted::dirs);
    confine(&Confinement {
        files: file.is_some().then(|| own.path()),
        description: described,
        accepted: rereads.as_ref().and_then(Accepted::of_service),
        ..Confinement::of(Role::Opener)
    })?;
    let calls = ControlServer::start_for(control, REQUEST_LEN_MAX)?;
    let sockets = Sockets::new(link).with_attacher(attacher);
    let sockets = match group {
        None => sockets,
        Some(group) => sockets.with_group(group.map_err(|error| {
            tracing::warn!("{error:#}");
            format!("{error:#}")
        })),
    };
    let mut opener = Opening::new((host, rereads), file, added, sockets)?;
    loop {
        while let Some(call) = calls.next_call() {
            opener.take(call);
        }
        if opener.turn()? == Loop::End {
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
enum Loop {
    Turn,
    End,
}

/// Vifs of virtio, and the calls that wait for one of them to appear or disappear.
struct Opening {
    sockets: Sockets,
    /// The description in force.
    host: Host,
    /// Where the description is read from again, and kept, if this process does that.
    rereads: Option<Accepted>,
    /// Vifs added since, by name.
    added: BTreeMap<String, Vhost>,
    /// Where the added vifs are kept for the next opener, if it is this process that keeps them.
    file: Option<PathBuf>,
    waiting: HashMap<String, Waiting>,
    /// A description that the backend is taking over.
    next: Option<Next>,
}

enum Waiting {
    Added(Box<Vhost>, Call<OpenerRequest>),
    Removed(Call<OpenerRequest>),
}

/// A description that was read again.
struct Next {
    host: Host,
    content: String,
    /// From a supervisor, which keeps it.
    call: Option<Call<OpenerRequest>>,
}

impl Opening {
    fn new(
        (host, rereads): (Host, Option<Accepted>),
        file: Option<PathBuf>,
        before: Vec<Vhost>,
        mut sockets: Sockets,
    ) -> Result<Opening> {
        let now = Instant::now();
        let mut added = BTreeMap::new();
        for vhost in &host.vhosts {
            add(&mut sockets, vhost, false, now)?;
        }
        for vhost in before {
            if host.vhosts.iter().any(|it| vhosts::is_same(it, &vhost)) {
                tracing::warn!("{}: the description has the same vif", vhost.name);
                continue;
            }
            add(&mut sockets, &vhost, true, now)?;
            added.insert(vhost.name.0.clone(), vhost);
        }
        // The problems of each vif are known before all are reported as present.
        sockets.turn(now)?;
        sockets.ready();
        let (waiting, next) = (HashMap::new(), None);
        Ok(Opening { sockets, host, rereads, added, file, waiting, next })
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
            OpenerRequest::Reload { text } => {
                let read = self.parse(text);
                return self.reload(read, Some(call));
            }
            OpenerRequest::Describe { vhosts } => {
                let read = self.described(vhosts);
                return self.reload(read, Some(call));
            }
        };
        call.reply(Reply::error(&refusal));
    }

    fn add(&mut self, section: &str) -> Result<Vhost, String> {
        let vhost = description::parse_vhost(section).map_err(|error| error.to_string())?;
        if self.host.vhosts.len() + self.added.len() >= usize::from(VHOSTS_MAX) {
            return Err(format!("there are {VHOSTS_MAX} virtio vifs, which is the limit"));
        }
        let name = &vhost.name.0;
        if self.waiting.contains_key(name) {
            return Err(format!("{name} is being added or removed; try again"));
        }
        let place = &vhost.place;
        let socket = place.socket().map(|socket| Path::new(&socket.0));
        let mut others = self.host.vhosts.iter().chain(self.added.values());
        if self.sockets.has(name, socket) || others.any(|it| vhosts::is_same(it, &vhost)) {
            return Err(format!("a vif {name}, or one with {place}, exists already"));
        }
        add_now(&mut self.sockets, &vhost).map_err(|error| error.to_string())?;
        Ok(vhost)
    }

    fn remove(&mut self, name: &str) -> Result<(), String> {
        if self.host.vhosts.iter().any(|known| known.name.0 == name) {
            return Err(format!(
                "{name} is in the description: remove its section there, and have the host read \
                 it again"
            ));
        }
        if self.waiting.contains_key(name) {
            return Err(format!("{name} is being added or removed; try again"));
        }
        if !self.added.contains_key(name) {
            let known = listed(self.added.keys());
            return Err(format!("no vif {name:?} was added; there is {known}"));
        }
        self.sockets.remove(name);
        Ok(())
    }

    fn turn(&mut self) -> io::Result<Loop> {
        let Turn::Outcomes(outcomes) = self.sockets.turn(Instant::now())? else {
            return Ok(Loop::End);
        };
        for outcome in outcomes {
            match outcome {
                Outcome::Vif(name, outcome) => self.finish(name, outcome),
                Outcome::ReloadWanted => self.read_again(),
                Outcome::Described(outcome) => self.finish_reload(outcome)?,
            }
        }
        Ok(Loop::Turn)
    }

    fn finish(&mut self, name: String, outcome: Result<(), String>) {
        let (call, outcome) = match (self.waiting.remove(&name), outcome) {
            (None, _) => return,
            (Some(Waiting::Added(vhost, call)), Ok(())) => {
                self.added.insert(name, *vhost);
                (call, self.keep())
            }
            (Some(Waiting::Added(_, call)), Err(reason)) => {
                self.sockets.remove_unserved(&name, Instant::now());
                (call, Err(reason))
            }
            (Some(Waiting::Removed(call)), outcome) => {
                self.added.remove(&name);
                (call, outcome.and_then(|()| self.keep()))
            }
        };
        reply(call, outcome);
    }

    fn parse(&self, text: &str) -> Result<(String, Host), String> {
        let Origin { file, usage } = self.origin()?;
        let host = description::parse(&file.display().to_string(), text, *usage);
        host.map(|host| (text.to_owned(), host)).map_err(|error| error.to_string())
    }

    /// The description in force, but with these vifs, which a supervisor has read.
    fn described(&self, vhosts: &[Value]) -> Result<(String, Host), String> {
        let vhosts = vhosts.iter().map(Vhost::deserialize).collect::<Result<_, _>>();
        let vhosts = vhosts.map_err(|error| error.to_string())?;
        Ok((String::new(), Host { vhosts, ..self.host.clone() }))
    }

    fn origin(&self) -> Result<&Origin, String> {
        let origin = self.host.origin.as_ref().filter(|_| self.file.is_some());
        origin.ok_or_else(|| "this process serves no description of a file".to_owned())
    }

    /// Reads the description again from its file.
    fn read_again(&mut self) {
        let read = self.origin().and_then(|Origin { file, usage }| {
            description::read_again(file, *usage)
                .map_err(|error| format!("{error}{}", self.out_of_reach(file).unwrap_or_default()))
        });
        self.reload(read, None);
    }

    /// What to add if this process may not read the file, which it could read at its start: its
    /// confinement cannot be widened.
    fn out_of_reach(&self, file: &Path) -> Option<String> {
        let dir = self.rereads.as_ref()?.dir_beyond()?;
        let error = File::open(file).err().filter(|it| it.kind() == ErrorKind::PermissionDenied);
        error.map(|_| {
            let dir = dir.display();
            format!(": it is a link into {dir}, which it was not at the start: restart the host")
        })
    }

    /// Has the backend take over a description, if nothing is wrong with it.
    fn reload(&mut self, read: Result<(String, Host), String>, call: Option<Call<OpenerRequest>>) {
        let checked = read.and_then(|(content, host)| {
            self.refuse_description(&host).map_or(Ok(()), Err)?;
            let vhosts = host.vhosts.iter().map(serde_json::to_value).collect::<Result<_, _>>();
            let next = self.host.taking_over(&host);
            let passed = vhosts.and_then(|vhosts| Ok((vhosts, common(&next)?)));
            let (vhosts, common) = passed.map_err(|error| error.to_string())?;
            let changed = description::differences(&self.host, &next);
            Ok((vhosts, (common, changed), content, host))
        });
        match checked {
            Ok((vhosts, common, content, host)) => {
                self.sockets.describe(vhosts, common, Instant::now());
                self.next = Some(Next { host, content, call });
            }
            Err(reason) => {
                self.sockets.refuse(Instant::now());
                refuse_reload(call, reason);
            }
        }
    }

    /// Why the vifs of a description cannot be served beside those that were added, if so.
    fn refuse_description(&self, next: &Host) -> Option<String> {
        if self.next.is_some() || !self.waiting.is_empty() {
            return Some("a vif or another description is being taken over: try again".to_owned());
        }
        vhosts::refuse_described(&self.host.vhosts, &next.vhosts, &self.added)
    }

    fn finish_reload(&mut self, outcome: Result<Reloaded, String>) -> io::Result<()> {
        let Some(Next { host, content, call }) = self.next.take() else { return Ok(()) };
        let Reloaded { added, removed } = match outcome {
            Ok(reloaded) => reloaded,
            Err(reason) => {
                refuse_reload(call, reason);
                return Ok(());
            }
        };
        removed.iter().for_each(|name| self.sockets.remove_unserved(name, Instant::now()));
        for vhost in host.vhosts.iter().filter(|vhost| added.contains(&vhost.name.0)) {
            // It may be described since the start, and was not served then.
            self.sockets.remove_unserved(&vhost.name.0, Instant::now());
            add(&mut self.sockets, vhost, false, Instant::now())?;
        }
        let next = self.host.taking_over(&host);
        log_kept(&next, &host);
        let vhosts = vhosts::in_force(&self.host.vhosts, host.vhosts);
        self.host = Host { vhosts, ..next };
        match (call, &self.rereads) {
            (Some(call), _) => reply(call, Ok(())),
            (None, Some(kept)) => kept.keep_or_warn(&content),
            (None, None) => {}
        }
        Ok(())
    }

    /// Saves the added vifs, for a backend that restarts.
    fn keep(&self) -> Result<(), String> {
        let file = self.file.as_ref();
        file.map_or(Ok(()), |file| vhosts::save_added(file, self.added.values()))
    }
}

fn reply(call: Call<OpenerRequest>, outcome: Result<(), String>) {
    call.reply(match outcome {
        Ok(()) => Reply::ok(&()),
        Err(reason) => Reply::error(&reason),
    });
}

/// Says why nothing has changed: to a supervisor, or in the log.
fn refuse_reload(call: Option<Call<OpenerRequest>>, reason: String) {
    match call {
        Some(call) => reply(call, Err(reason)),
        None => log_refusal(&reason),
    }
}

/// What is to be opened for a vif.
enum Wanted {
    Socket(VifSocket),
    Namespace(VifNamespace),
}

fn wanted(described: &Vhost, at_run_time: bool) -> serde_json::Result<Wanted> {
    let (name, vhost) = (described.name.0.clone(), serde_json::to_value(described)?);
    Ok(match &described.place {
        Place::Socket { socket, mode } => {
            let (path, mode) = (PathBuf::from(&socket.0), vhosts::mode(*mode));
            Wanted::Socket(VifSocket { name, path, mode, vhost, at_run_time })
        }
        Place::Namespace(place) => {
            let device = vhosts::device(described, place);
            Wanted::Namespace(VifNamespace { name, device, vhost, at_run_time })
        }
    })
}

/// Adds a vif that has existed before, or will as soon as it can.
fn add(
    sockets: &mut Sockets,
    vhost: &Vhost,
    at_run_time: bool,
    now: Instant,
) -> serde_json::Result<()> {
    match wanted(vhost, at_run_time)? {
        Wanted::Socket(wanted) => sockets.add(wanted, now),
        Wanted::Namespace(wanted) => sockets.attach(wanted, now),
    }
    Ok(())
}

/// Adds a vif while the host runs.
fn add_now(sockets: &mut Sockets, vhost: &Vhost) -> io::Result<()> {
    match wanted(vhost, true)? {
        Wanted::Socket(wanted) => sockets.add_now(wanted, Instant::now()),
        Wanted::Namespace(wanted) => {
            sockets.attach(wanted, Instant::now());
            Ok(())
        }
    }
}

/// What a description that was read again says of the switch, the uplink and queues, to be passed
/// on. Its length has a limit, so what cannot change is left out.
fn common(host: &Host) -> serde_json::Result<serde_json::Value> {
    let uplink = host.uplink.clone().map(|it| description::Uplink { addresses: Vec::new(), ..it });
    serde_json::to_value((&host.switch, uplink, host.max_queues))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{Usage, parse};

    /// A host with so many virtio vifs, whose names begin with this.
    fn described(name: &str, count: u16) -> Host {
        let one =
            |number| format!("[[vhost]]\nname = '{name}{number}'\nsocket = '/{name}{number}'\n");
        let text: String = (0..count).map(one).collect();
        parse("test", &text, Usage::default()).expect("good")
    }

    #[test]
    fn a_description_with_more_vifs_than_may_be_beside_added_ones_is_refused() {
        let (link, _theirs) = Link::pair().expect("descriptors");
        let added = described("added", VHOSTS_MAX - 2).vhosts;
        let host = (described("old", 1), None);
        let opening = Opening::new(host, None, added, Sockets::new(link)).expect("it begins");
        assert_eq!(opening.refuse_description(&described("new", 2)), None);
        let refusal = opening.refuse_description(&described("new", 3)).expect("one too many");
        assert!(refusal.contains("3 virtio vifs are described and 126 were added"), "{refusal}");
        assert!(refusal.contains("128 is the limit"), "{refusal}");
    }
}
