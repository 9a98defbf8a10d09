//! Open vSwitch in the network namespace of a process, with its own database. It does not touch an
//! Open vSwitch of the host.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::child::{Child, PartError};
use crate::launcher::Launcher;

/// The programs that it needs, besides the switch itself.
pub const TOOLS: [&str; 4] = ["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-appctl"];

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const PATIENCE: Duration = Duration::from_secs(60);
/// The tool's own timeout, shorter than ours, so that its error is the one reported.
const TIMEOUT: &str = "--timeout=50";
/// Pause between two attempts to reach it.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Where a switch forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datapath {
    /// In the kernel, by its module.
    Kernel,
    /// In its own process.
    Process,
}

/// The place of a switch, and how to start its programs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Starts its programs.
    pub launcher: &'a Launcher,
    /// A process in the network namespace for the switch.
    pub pid: u32,
    /// The directory for its files and sockets.
    pub dir: &'a Path,
}

/// A running switch. It ends with this value, its database last.
#[derive(Debug)]
pub struct OpenVswitch {
    switch: Child,
    _database: Child,
}

impl OpenVswitch {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.switch.pid()
    }
}

impl Place<'_> {
    /// The path of one of its files or sockets.
    pub fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Starts `program`, an `ovs-vswitchd`, with a bridge. `settings` are columns of the table
    /// `Open_vSwitch`, such as `other_config:dpdk-init=true`.
    ///
    /// # Errors
    /// What its programs report.
    pub fn start(
        &self,
        program: &Path,
        datapath: Datapath,
        settings: &[&str],
        bridge: &str,
    ) -> Result<OpenVswitch, PartError> {
        self.run("ovsdb-tool", &["create", &self.file("conf.db"), SCHEMA])?;
        let remote = format!("--remote=punix:{}", self.file("db.sock"));
        let control = format!("--unixctl={}", self.file("ovsdb.ctl"));
        let words = [self.file("conf.db"), remote, control];
        let database = self.launch("ovsdb-server".as_ref(), &words)?;
        self.wait_for_database()?;
        self.set(&["--no-wait", "init", "--", "set", "Open_vSwitch", "."], settings)?;
        let control = format!("--unixctl={}", self.file("vswitchd.ctl"));
        let mut words = vec![self.database(), control];
        if datapath == Datapath::Process {
            words.push("--disable-system".to_owned());
        }
        let switch = self.launch(program, &words)?;
        let kind = match datapath {
            Datapath::Kernel => "datapath_type=system",
            Datapath::Process => "datapath_type=netdev",
        };
        self.set(&["add-br", bridge, "--", "set", "bridge", bridge], &[kind])?;
        Ok(OpenVswitch { switch, _database: database })
    }

    /// Changes the database with `ovs-vsctl`, and waits until the switch has applied the change.
    ///
    /// # Errors
    /// What the program reports.
    pub fn set(&self, words: &[&str], columns: &[&str]) -> Result<(), PartError> {
        let database = format!("--db={}", self.database());
        self.run("ovs-vsctl", &[&[TIMEOUT, &database], words, columns].concat())
    }

    /// Has the switch perform a command of `ovs-appctl`, and returns its output.
    ///
    /// # Errors
    /// What the program reports.
    pub fn ask(&self, words: &[&str]) -> Result<String, PartError> {
        let target = format!("--target={}", self.file("vswitchd.ctl"));
        let child = self.launch("ovs-appctl".as_ref(), &[&[target.as_str()], words].concat())?;
        child.output(PATIENCE)
    }

    fn database(&self) -> String {
        format!("unix:{}", self.file("db.sock"))
    }

    fn launch(&self, program: &Path, words: &[impl AsRef<str>]) -> Result<Child, PartError> {
        let mut command = self.launcher.command_in(self.pid, program);
        command.args(["-vsyslog:off", "-vconsole:err"]);
        command.args(words.iter().map(AsRef::as_ref));
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir);
        }
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        self.launcher.start(&name, command)
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<(), PartError> {
        self.launch(program.as_ref(), words)?.output(PATIENCE).map(drop)
    }

    fn wait_for_database(&self) -> Result<(), PartError> {
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(self.dir.join("db.sock")).is_err() {
            if Instant::now() > deadline || self.launcher.stop().is_due() {
                return Err(PartError::Failed("the database of Open vSwitch is not there".into()));
            }
            // waits: it connects again until the database listens.
            std::thread::sleep(POLL_PAUSE);
        }
        Ok(())
    }
}
