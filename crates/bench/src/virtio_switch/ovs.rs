//! Open vSwitch with DPDK, without huge pages or a card, in a network namespace of its own.
//!
//! It appends `--in-memory` to what it tells DPDK, which goes with `--no-huge` only where there is
//! `--legacy-mem`; and a pool of its usual size does not fit, so each port has a pool.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ringway_rig::child::Child;
use ringway_rig::launcher::{self, Launcher};
use ringway_rig::namespace::Namespace;

/// Debian's package has it where no path leads.
const SWITCHES: [&str; 2] =
    ["ovs-vswitchd-dpdk", "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"];
const OTHERS: [&str; 3] = ["ovsdb-tool", "ovsdb-server", "ovs-vsctl"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const PACKAGES: &str = "openvswitch-switch openvswitch-switch-dpdk librte-net-vhost23";
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks for a socket.
const LOOK: Duration = Duration::from_millis(20);

/// Its programs.
pub(super) struct Programs {
    switch: PathBuf,
}

impl Programs {
    /// Finds them, or says what is missing.
    pub(super) fn find() -> Result<Programs, String> {
        let missing = || format!("apt-get install {PACKAGES}");
        if OTHERS.iter().any(|name| launcher::find(name).is_none()) {
            return Err(missing());
        }
        let switch = SWITCHES.into_iter().find_map(launcher::find).ok_or_else(missing)?;
        Ok(Programs { switch })
    }
}

/// A running switch. It ends with this value, its database last.
pub(super) struct Switch {
    _switch: Child,
    _database: Child,
    _namespace: Namespace,
}

impl Switch {
    /// Starts it with two ports that dial sockets in a directory, and one polling core.
    pub(super) fn start(
        programs: &Programs,
        dir: &Path,
        sockets: [&str; 2],
        cpu: usize,
    ) -> Result<Switch> {
        let launcher = crate::child::launcher()?;
        let namespace = Namespace::new(&launcher)?;
        let place = Place { launcher: &launcher, pid: namespace.pid(), dir };
        place.run("ovsdb-tool", &["create", &place.file("conf.db"), SCHEMA])?;
        let remote = format!("--remote=punix:{}", place.file("db.sock"));
        let control = format!("--unixctl={}", place.file("ovsdb.ctl"));
        let database =
            place.start("ovsdb-server".as_ref(), &[&place.file("conf.db"), &remote, &control])?;
        place.wait_for("db.sock")?;
        let mask = format!("0x{:x}", 1_u64 << cpu);
        let (pollers, control) = (
            format!("other_config:pmd-cpu-mask={mask}"),
            format!("other_config:dpdk-lcore-mask={mask}"),
        );
        place.set(
            &["--no-wait", "init", "--", "set", "Open_vSwitch", "."],
            &[
                "other_config:dpdk-init=true",
                "other_config:dpdk-extra=\"--no-huge --legacy-mem --no-pci -m 3072\"",
                "other_config:per-port-memory=true",
                &pollers,
                &control,
            ],
        )?;
        let socket = format!("unix:{}", place.file("db.sock"));
        let control = format!("--unixctl={}", place.file("vswitchd.ctl"));
        let switch = place.start(&programs.switch, &[&socket, "--disable-system", &control])?;
        place.set(&["add-br", "br0", "--", "set", "bridge", "br0"], &["datapath_type=netdev"])?;
        for (number, socket) in sockets.into_iter().enumerate() {
            let port = format!("vm{number}");
            let path = format!("options:vhost-server-path={}", place.file(socket));
            let words = ["add-port", "br0", &port, "--", "set", "interface", &port];
            place.set(&words, &["type=dpdkvhostuserclient", &path])?;
        }
        Ok(Switch { _switch: switch, _database: database, _namespace: namespace })
    }
}

/// Where it is, and how its programs are started.
struct Place<'a> {
    launcher: &'a Launcher,
    pid: u32,
    dir: &'a Path,
}

impl Place<'_> {
    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn start(&self, program: &Path, words: &[&str]) -> Result<Child> {
        let mut command = self.launcher.command_in(self.pid, program);
        command.args(["-vsyslog:off", "-vconsole:err"]).args(words);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.dir);
        }
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(self.launcher.start(&name, command)?)
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<()> {
        self.start(program.as_ref(), words)?.output(PATIENCE)?;
        Ok(())
    }

    /// Changes the database, and waits until that is done.
    fn set(&self, words: &[&str], columns: &[&str]) -> Result<()> {
        let database = format!("--db=unix:{}", self.file("db.sock"));
        let all = [&["--timeout=50", &database][..], words, columns].concat();
        self.run("ovs-vsctl", &all)
    }

    fn wait_for(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.dir.join(name).exists() {
            if Instant::now() > deadline {
                bail!("the database of Open vSwitch is not there");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
