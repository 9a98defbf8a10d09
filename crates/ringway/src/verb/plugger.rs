//! `ringway plugger`: the process that adds and removes ports of Open vSwitch for a backend, which
//! may run no program and reach no database.
//!
//! It serves no guest. It knows by itself which ports are this host's: a compromised backend can
//! have ports of vifs added and removed, and those of others stay as they are.
//!
//! There are two such processes, because a confined backend could not start another one. The second
//! waits until the first has ended, and then takes its place.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use ringway_confine::Unlisted;
use ringway_control::{Link, PluggerEvent, PluggerOrder, PluggerRequest, Received, RunDir};
use ringway_ovs::{Ids, OpenVswitch, PortWanted, Table};
use ringway_sys::poll::{PollFlags, readable, wait};
use ringway_terminal::stop::Stop;
use tracing::level_filters::LevelFilter;

use crate::host::{Process, owner};
use crate::vsctl::{has_vsctl, switch_version, vsctl, wait_for_lock};

/// The table of `iface-id`s for vifs whose toolstack has no place for one.
const TABLE: &str = "/etc/ringway/ovs.toml";
/// Bytes of it: tens of thousands of ports.
const TABLE_LEN_MAX: u64 = 1 << 20;
/// Vifs in one message: their names together are shorter than a message may be.
const FOUND_CHUNK: usize = 64;
/// The least time between two starts of a successor.
const SUCCESSOR_PAUSE: Duration = Duration::from_secs(1); // not a limit: a pause of our own

/// Adds and removes ports of Open vSwitch for the backend that starts it.
#[derive(Debug, Args)]
pub(crate) struct Plugger {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Starts the plugger for this process, if this machine has Open vSwitch, and returns the link to
/// it. It ends with this process.
pub(crate) fn start(dir: &RunDir) -> Result<Option<Link>> {
    if !has_vsctl() {
        return Ok(None);
    }
    let lock = dir.plugging();
    // An earlier plugger may have it.
    let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
    made.with_context(|| lock.display().to_string())?;
    let (link, theirs) = Link::pair().context("a pair of sockets")?;
    let (level, arguments) = (LevelFilter::current(), arguments(dir.path()));
    Process::start_beside("plugger", level, arguments, Stdio::from(theirs))?;
    Ok(Some(link))
}

fn arguments(dir: &Path) -> [&OsStr; 3] {
    ["plugger".as_ref(), "--dir".as_ref(), dir.as_os_str()]
}

pub(crate) fn run(args: &Plugger) -> Result<()> {
    // Signals are ignored: the backend gets them, too, and may need the plugger until it ends.
    let _signals = Stop::on_signals()?;
    ringway_confine::give_up_privileges(Unlisted::Plugger)?;
    let link = rustix::stdio::stdin().try_clone_to_owned().context("standard input")?;
    let lock = RunDir::new(&args.dir).plugging();
    // This process has it until it ends, and so have its programs.
    let turn = match wait_for_lock(&lock) {
        // The host has ended.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        turn => turn.with_context(|| lock.display().to_string())?,
    };
    let run = |arguments: &[String]| vsctl(arguments, &turn);
    let switch = OpenVswitch { owner: owner(&args.dir), run };
    let ask_version = || switch_version(&turn).ok();
    let mut plugger = Plugging { link: Link::new(link), switch, ask_version, is_reported: false };
    if !plugger.forget_orders()? {
        return Ok(());
    }
    let mut successor = Successor { dir: &args.dir, process: None, due: Instant::now() };
    successor.keep();
    plugger.send(&PluggerEvent::Begun)?;
    // If Open vSwitch does not run yet, there may be ports of an earlier process nevertheless.
    plugger.report_found()?;
    loop {
        match plugger.link.receive()? {
            Received::Message(PluggerRequest::Order(order), _) => plugger.carry_out(order)?,
            Received::Message(PluggerRequest::Datapath { bridge }, _) => {
                let found = plugger.switch.datapath(&bridge, plugger.ask_version);
                plugger.send(&PluggerEvent::Datapath { found })?;
            }
            Received::Nothing => {}
            Received::End => return Ok(()),
        }
        successor.keep();
        let process = successor.process.iter().map(|process| readable((), process));
        let sources: Vec<_> = process.chain([readable((), &plugger.link)]).collect();
        wait(&sources, successor.pause())?;
    }
}

/// The process that waits for its turn.
struct Successor<'a> {
    dir: &'a Path,
    process: Option<Process>,
    /// When it may be started again.
    due: Instant,
}

impl Successor<'_> {
    /// Starts it, unless it runs, or has just been started.
    fn keep(&mut self) {
        let runs = |process: &mut Process| matches!(process.ended(), Ok(None));
        if self.process.as_mut().is_some_and(|process| !runs(process)) {
            self.process = None;
        }
        let now = Instant::now();
        if self.process.is_some() || now < self.due {
            return;
        }
        self.due = now + SUCCESSOR_PAUSE;
        match self.start() {
            Ok(process) => self.process = Some(process),
            Err(error) => tracing::warn!("without a successor: {error:#}"),
        }
    }

    fn start(&self) -> Result<Process> {
        let link = rustix::stdio::stdin().try_clone_to_owned().context("standard input")?;
        let arguments = arguments(self.dir);
        Process::start_successor("plugger", LevelFilter::current(), arguments, link.into())
    }

    /// How long to wait for its next start.
    fn pause(&self) -> Option<Duration> {
        match self.process {
            Some(_) => None,
            None => Some(self.due.saturating_duration_since(Instant::now())),
        }
    }
}

struct Plugging<R, V> {
    link: Link,
    switch: OpenVswitch<R>,
    /// Asks the switch for its version.
    ask_version: V,
    /// Whether the backend knows which vifs have had ports before.
    is_reported: bool,
}

impl<R: Fn(&[String]) -> Result<String, String>, V> Plugging<R, V> {
    /// Takes what the plugger before was ordered: the backend gives it again. Returns false if the
    /// backend has ended.
    fn forget_orders(&self) -> io::Result<bool> {
        loop {
            match self.link.receive::<PluggerRequest>()? {
                Received::Message(..) => {}
                Received::Nothing => return Ok(true),
                Received::End => return Ok(false),
            }
        }
    }

    fn carry_out(&mut self, order: PluggerOrder) -> io::Result<()> {
        let PluggerOrder { number, vif, wanted } = order;
        let outcome = self.change(&vif, wanted.as_ref());
        if outcome.is_ok() {
            self.report_found()?;
        }
        self.send(&PluggerEvent::Done { number, outcome })
    }

    fn change(&self, vif: &str, wanted: Option<&PortWanted>) -> Result<Ids, String> {
        match wanted {
            // Each time, because it may change.
            Some(wanted) => self.switch.join(vif, wanted, &read_table(Path::new(TABLE))?),
            None => self.switch.leave(vif).map(|()| Ids::default()),
        }
    }

    /// Reports once the vifs that have ports, as soon as Open vSwitch says which.
    fn report_found(&mut self) -> io::Result<()> {
        if self.is_reported {
            return Ok(());
        }
        match self.switch.vifs() {
            Ok(vifs) => {
                for vifs in vifs.chunks(FOUND_CHUNK) {
                    self.send(&PluggerEvent::Found { vifs: vifs.to_vec() })?;
                }
                self.is_reported = true;
            }
            Err(reason) => {
                tracing::debug!("ports of vifs that are gone stay for now: {reason}");
            }
        }
        Ok(())
    }

    /// Sends a message, and waits until there is room for it.
    fn send(&self, event: &PluggerEvent) -> io::Result<()> {
        loop {
            match self.link.send(event, &[]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let room = ((), self.link.as_fd(), PollFlags::OUT);
                    wait(&[room], None)?;
                }
                // The backend has ended.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                sent => return sent,
            }
        }
    }
}

/// Reads a table; an empty one if there is no file.
fn read_table(file: &Path) -> Result<Table, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|it| it.take(TABLE_LEN_MAX + 1).read_to_string(&mut text));
    let table = match read {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Table::EMPTY),
        Err(error) => Err(error.to_string()),
        Ok(len) if u64::try_from(len).is_ok_and(|len| len > TABLE_LEN_MAX) => {
            Err(format!("it is longer than {TABLE_LEN_MAX} bytes"))
        }
        Ok(_) => Table::parse(&text),
    };
    table.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_an_empty_table_and_a_bad_one_an_error_with_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ovs.toml");
        read_table(&file).expect("it may be missing");
        std::fs::write(&file, "[[port]]\nvm = 'a'\niface-id = 'a'\n").expect("written");
        read_table(&file).expect("it is good");
        for bad in ["[[port]]\n".to_owned(), "#".repeat(2 << 20)] {
            std::fs::write(&file, bad).expect("written");
            let refusal = read_table(&file).expect_err("it is bad");
            assert!(refusal.starts_with(&format!("{}: ", file.display())), "{refusal}");
        }
    }
}
