//! Paths from one network namespace to another, built by the lab. Every measurement between
//! namespaces runs on each of them.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

use anyhow::{Result, ensure};
use ringway_lab::study::Subject;
use ringway_lab::topology::{Blueprint, End, More, Topology};
use ringway_lab::word::Layout;
use ringway_rig::child::Child;
use ringway_rig::host::{RunningHost, StartingHost};
use ringway_rig::launcher::Launcher;

use crate::chain;
use crate::child::launcher;
use crate::host::family;
use crate::options::{Options, Setting};
use crate::report::Report;

/// A path that can be built.
pub(crate) struct Path {
    /// Its name in tables.
    pub(crate) name: String,
    blueprint: Blueprint,
}

/// A path that exists until this is dropped.
pub(crate) struct OpenPath {
    topology: Topology,
    launcher: Launcher,
}

/// ringway's program.
pub(crate) struct Ringway(PathBuf);

/// TCP buffer sizes in bytes, in the form of `tcp_rmem` and `tcp_wmem`: minimum, default, maximum.
/// They are the defaults of Linux for a machine with some memory, set so that a host's own values,
/// such as 33 MB, do not affect a figure.
const BUFFERS: [(&str, &str); 2] =
    [("net.ipv4.tcp_rmem", "4096 131072 6291456"), ("net.ipv4.tcp_wmem", "4096 16384 4194304")];

/// The sizes of TCP buffers in words, for the rows of a report.
pub(crate) const BUFFERS_NAME: &str = "buffers to 6 and 4 MiB";

/// All paths that can be built here, ringway first; the report notes why others cannot.
pub(crate) fn all(section: &'static str, options: &Options, report: &mut Report) -> Vec<Path> {
    let mut paths = Vec::new();
    let pair = |subject| Blueprint { settings: settings(), ..Blueprint::pair(subject) };
    let path = |name: &str, blueprint| Path { name: name.to_owned(), blueprint };
    match Ringway::find(options.ringway.as_deref()) {
        Ok(Ringway(program)) => {
            let (program, queues) = (Some(program), ringway_queues());
            let ringway = Blueprint { program, queues, ..pair(Subject::Ringway) };
            let with = |more: &More| Blueprint { more: more.clone(), ..ringway.clone() };
            let staging = More { vifs: "staging = true\n".to_owned(), ..More::default() };
            paths.push(path("ringway", ringway.clone()));
            paths.push(path("ringway (staging)", with(&staging)));
            let one_cpu = Blueprint { layout: Layout::OneCpu, ..ringway.clone() };
            paths.push(path("ringway (1 CPU)", one_cpu));
            for Setting { name, more } in &options.with {
                paths.push(path(&format!("ringway ({name})"), with(more)));
            }
        }
        Err(missing) => report.skip(section, "ringway", &missing),
    }
    let relay = pair(Subject::TapRelay);
    let chain = Blueprint { relay: Some(chain::PART), ..relay.clone() };
    paths.extend([path("tap relay", relay), path("chain (3 processes)", chain)]);
    paths.push(path("veth+bridge", pair(Subject::VethBridge)));
    paths
}

/// TCP buffer sizes for both ends, independent of the host's own settings.
fn settings() -> BTreeMap<String, String> {
    BUFFERS.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The default of `ringway run`: one queue per CPU.
fn ringway_queues() -> u16 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cpus).unwrap_or(u16::MAX)
}

impl Path {
    /// Whether frames pass through processes on the path.
    pub(crate) fn has_processes(&self) -> bool {
        self.blueprint.subject != Subject::VethBridge
    }

    /// Builds the path.
    ///
    /// # Errors
    /// Why it cannot be built.
    pub(crate) fn open(&self) -> Result<OpenPath> {
        let launcher = launcher()?;
        let topology = Topology::build(&launcher, &self.blueprint)?;
        // A figure measured without its settings would be mislabelled.
        ensure!(topology.notes.is_empty(), "{}", topology.notes.join("; "));
        Ok(OpenPath { topology, launcher })
    }
}

impl OpenPath {
    /// One of the two ends.
    pub(crate) fn end(&self, end: usize) -> &End {
        if end == 0 { &self.topology.near[0] } else { &self.topology.far[0] }
    }

    /// The processes that frames pass through on the path.
    ///
    /// # Errors
    /// If ringway's backend does not respond.
    pub(crate) fn processes(&self) -> Result<Vec<u32>> {
        let mut pids = self.topology.switch_pid().map_or(Ok(vec![]), family)?;
        if let Some(host) = &self.topology.host {
            pids.push(host.backend()?.pid);
            pids.extend(host.guests());
        }
        Ok(pids)
    }

    /// Starts a program at an end.
    pub(crate) fn start(&self, end: usize, name: &str, words: &[&str]) -> Result<Child> {
        let mut command = self.launcher.command_in(self.end(end).pid, name);
        command.args(words);
        Ok(self.launcher.start(name, command)?)
    }
}

impl Ringway {
    /// The named program, or the one beside this one.
    ///
    /// # Errors
    /// The path where it is missing, for people.
    pub(crate) fn find(named: Option<&FilePath>) -> Result<Ringway, String> {
        let beside = || std::env::current_exe().ok().map(|own| own.with_file_name("ringway"));
        let program = named.map(FilePath::to_owned).or_else(beside).unwrap_or_default();
        if program.is_file() {
            Ok(Ringway(program))
        } else {
            Err(format!("no program {} (cargo build --release -p ringway)", program.display()))
        }
    }

    /// Starts a host from a description in TOML, and waits until all its guests are connected.
    pub(crate) fn run(&self, description: &str) -> Result<RunningHost> {
        Ok(self.begin(description)?.ready()?)
    }

    /// Starts a host from a description in TOML.
    pub(crate) fn begin(&self, description: &str) -> Result<StartingHost> {
        Ok(StartingHost::begin(&launcher()?, &self.0, description)?)
    }
}
