//! Open vSwitch in the place of a Linux bridge: a private one, with a database of its own, for as
//! long as it is needed.
//!
//! It forwards in the kernel where the module is loaded, else in its own process, with segmentation
//! left to the other side there, too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringway_net::LinkSetting;
use tempfile::TempDir;

use ringway_rig::child::{Child, PartError};
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::configure;

/// Debian's package.
pub(crate) const PACKAGE: &str = "openvswitch-switch";
/// What it is made of.
pub(crate) const PROGRAMS: [&str; 4] = ["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-vswitchd"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const MODULE: &str = "/sys/module/openvswitch";
const BRIDGE: &str = "ovs0";
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two attempts to reach it.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// One that runs.
#[derive(Debug)]
pub struct OpenVswitch {
    switch: Child,
    _database: Child,
    _dir: TempDir,
    /// Where it forwards, for people.
    pub datapath: &'static str,
}

impl OpenVswitch {
    /// Takes the ports of a Linux bridge in the namespace of `pid` over.
    ///
    /// # Errors
    /// What stands in the way, in the words of its programs.
    pub fn in_place_of(
        launcher: &Launcher,
        pid: u32,
        bridge: &str,
    ) -> Result<OpenVswitch, PartError> {
        let dir = launcher.dir()?;
        let place = Place { launcher, pid, dir: dir.path() };
        place.run("ovsdb-tool", &["create", &place.file("conf.db"), SCHEMA])?;
        let remote = format!("--remote=punix:{}", place.file("db.sock"));
        let control = format!("--unixctl={}", place.file("ovsdb.ctl"));
        let words = [&place.file("conf.db"), &remote, &control];
        let database = place.start("ovsdb-server", &words)?;
        place.wait_for("db.sock")?;
        let settings = ["set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true"];
        place.configure(&[&["--no-wait", "init", "--"][..], &settings].concat())?;
        let (kind, datapath) = match Path::new(MODULE).exists() {
            true => ("system", "in the kernel"),
            false => ("netdev", "in its own process"),
        };
        let socket = format!("unix:{}", place.file("db.sock"));
        let control = format!("--unixctl={}", place.file("vswitchd.ctl"));
        let mut words = vec![socket.as_str(), control.as_str()];
        words.extend((kind == "netdev").then_some("--disable-system"));
        let switch = place.start("ovs-vswitchd", &words)?;
        let kind = format!("datapath_type={kind}");
        place.configure(&["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, &kind])?;
        for port in take_ports(pid, bridge)? {
            place.configure(&["add-port", BRIDGE, &port])?;
        }
        Ok(OpenVswitch { switch, _database: database, _dir: dir, datapath })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.switch.pid()
    }
}

/// Where an Open vSwitch is, and how its programs are started.
struct Place<'a> {
    launcher: &'a Launcher,
    pid: u32,
    dir: &'a Path,
}

impl Place<'_> {
    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn command(&self, name: &str, words: &[impl AsRef<str>]) -> Command {
        let mut command = self.launcher.command_in(self.pid, name);
        command.args(["-vsyslog:off", "-vconsole:err"]);
        command.args(words.iter().map(AsRef::as_ref));
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir);
        }
        command
    }

    fn start(&self, name: &str, words: &[impl AsRef<str>]) -> Result<Child, PartError> {
        self.launcher.start(name, self.command(name, words))
    }

    fn run(&self, name: &str, words: &[&str]) -> Result<(), PartError> {
        self.start(name, words)?.output(PATIENCE).map(drop)
    }

    fn configure(&self, words: &[&str]) -> Result<(), PartError> {
        let database = format!("--db=unix:{}", self.file("db.sock"));
        self.run("ovs-vsctl", &[&["--timeout=20", &database][..], words].concat())
    }

    fn wait_for(&self, name: &str) -> Result<(), PartError> {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !self.dir.join(name).exists() {
            if std::time::Instant::now() > deadline || self.launcher.stop().is_due() {
                return Err(PartError::Failed("the database of Open vSwitch is not there".into()));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        Ok(())
    }
}

/// Frees the ports of a bridge, and gives their names.
fn take_ports(pid: u32, bridge: &str) -> Result<Vec<String>, PartError> {
    configure(pid, |net| {
        let index = net.link(bridge)?.index;
        let links = net.links()?.into_iter().filter(|link| link.master == Some(index));
        let names: Vec<String> = links.map(|link| link.name).collect();
        for name in &names {
            net.set(name, &[LinkSetting::NoMaster])?;
        }
        Ok(names)
    })
}
