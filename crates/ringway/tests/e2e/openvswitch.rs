//! Vifs of both kinds on a bridge of a real Open vSwitch, whose datapath is its own process.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ringway_e2e::host::{
    Host, Running, SOON, describe, names_in, ringway, send, start_time, text_of, wait_for,
};
use ringway_e2e::machine::wait_for_file;
use ringway_e2e::shared_turn;
use ringway_e2e::virtio_guest::{Maker, guest_of, keeping_neighbor, kill_backend};
use rustix::process::Signal;
use tempfile::TempDir;

use ringway_control::VifStatus;

use crate::devices::{beside, network, ringway_in, tool, tool_ok};
use crate::hostile::Hostile;
use crate::vhost::{OPTIONS, Pings};

pub(crate) const PROGRAMS: [&str; 8] = [
    "ovs-vswitchd",
    "ovsdb-server",
    "ovsdb-tool",
    "ovs-vsctl",
    "ovs-ofctl",
    "unshare",
    "socat",
    "ping",
];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Pings a guest until it replies.
const REACH: &str = "ping -n -c 1 -i 0.2 -w 30 10.78.0.5";

/// An Open vSwitch of a network, which has a bridge `br-int`.
pub(crate) struct Switch {
    /// A process of the network.
    pid: u32,
    dir: PathBuf,
    process: Running,
    pub(crate) database: Running,
}

impl Switch {
    fn start(pid: u32, dir: PathBuf) -> Switch {
        let file = |name: &str| dir.join(name).display().to_string();
        let program = |name: &str, words: &[String]| program((pid, &dir), name, words);
        let create = ["create".to_owned(), file("conf.db"), SCHEMA.to_owned()];
        let made = program("ovsdb-tool", &create).status();
        assert!(made.expect("it is installed").success());
        let remote = format!("--remote=punix:{}", file("db.sock"));
        let control = format!("--unixctl={}", file("ovsdb.ctl"));
        let words = [file("conf.db"), remote, control];
        let database = Running::start(&mut program("ovsdb-server", &words));
        wait_for("the database", SOON, || UnixStream::connect(dir.join("db.sock")).ok());
        let database_at = format!("unix:{}", file("db.sock"));
        // `ovs-appctl` finds it by the file of its process id.
        let words = [database_at, "--disable-system".to_owned(), "--pidfile".to_owned()];
        text_of(vsctl((pid, &dir), "--no-wait init"), "init");
        let process = Running::start(&mut program("ovs-vswitchd", &words));
        let switch = Switch { pid, dir, process, database };
        switch.ask("add-br br-int -- set Bridge br-int datapath_type=netdev");
        switch
    }

    /// What `ovs-vsctl` says, which must succeed.
    fn ask(&self, words: &str) -> String {
        text_of(vsctl((self.pid, &self.dir), words), words).trim().to_owned()
    }
}

/// A host with its own Open vSwitch.
pub(crate) struct Place {
    pub(crate) host: Host,
    pub(crate) switch: Switch,
}

impl Place {
    pub(crate) fn start() -> Place {
        let place = tempfile::tempdir().expect("a directory");
        let dir = dir_in(&place);
        let host = Host::start_with(place, &describe("", &[]), &[("OVS_RUNDIR", dir.as_os_str())]);
        let switch = Switch::start(host.pid_of("ringway run"), dir);
        Place { host, switch }
    }

    /// An interface of the bridge for a test's own programs, with other words for its port.
    fn add_probe(&self, more: &str) {
        let add = format!("add-port br-int probe {more}-- set Interface probe type=internal");
        self.ask(&add);
        let whole = self.host.pid_of("ringway run");
        for line in ["ip addr add 10.78.0.254/24 dev probe", "ip link set probe up"] {
            tool_ok(whole, line);
        }
    }

    /// Adds a port of this host's vif that is gone, and one of another program.
    fn add_strangers(&self) {
        let owner = self.id("vm1", "ringway-owner");
        self.ask(&format!(
            "add-port br-int gone -- set Interface gone type=internal \
             external_ids:ringway-owner=\"{owner}\" external_ids:ringway-vif=\"virtio/gone\""
        ));
        self.ask("--may-exist add-port br-int theirs -- set Interface theirs type=internal");
    }

    pub(crate) fn ask(&self, words: &str) -> String {
        self.switch.ask(words)
    }

    /// Has reverse ARP requests counted from now on, and forwarded as before.
    fn count_announcements(&self) {
        self.ask_flows(&["add-flow", "br-int", "priority=9,rarp,actions=NORMAL"]);
    }

    /// How many there were.
    fn announcements(&self) -> u32 {
        self.packets("rarp")
    }

    /// How many frames a flow of `br-int` has had.
    pub(crate) fn packets(&self, flow: &str) -> u32 {
        let flows = self.ask_flows(&["dump-flows", "br-int", flow]);
        let count = flows.split_once("n_packets=").and_then(|(_, rest)| rest.split_once(','));
        count.and_then(|(count, _)| count.parse().ok()).expect("a flow with its count")
    }

    pub(crate) fn ask_flows(&self, words: &[&str]) -> String {
        let output = program((self.switch.pid, &self.switch.dir), "ovs-ofctl", words).output();
        text_of(output.expect("it is installed"), "ovs-ofctl")
    }

    /// An id of an interface.
    pub(crate) fn id(&self, port: &str, key: &str) -> String {
        let words = format!("--if-exists get Interface {port} external_ids:{key}");
        self.ask(&words).trim_matches('"').to_owned()
    }

    pub(crate) fn wait_for_ports(&self, ports: &str) {
        self.host.wait("ports", SOON, |_| (self.ask("list-ports br-int") == ports).then_some(()));
    }

    /// The number of a port, once the switch has given it one.
    fn number(&self, port: &str) -> String {
        let words = format!("get Interface {port} ofport");
        self.host.wait("its number", SOON, |_| Some(self.ask(&words)).filter(|it| it != "[]"))
    }

    /// Adds the vif `vm1`, whose socket is made by the backend.
    fn add_vm1(&self, dir: &Path, bridge: &str) -> Output {
        let socket = dir.join("vm1").display().to_string();
        let add = ["vif", "add", "vm1", "--vhost", &socket, "--mode", "server"];
        let more = ["--bridge", bridge, "--set", "iface-id='lsp1'"];
        self.host.verb(&[&add[..], &more].concat())
    }
}

/// A directory for the files of an Open vSwitch.
fn dir_in(place: &TempDir) -> PathBuf {
    let dir = place.path().join("ovs");
    std::fs::create_dir(&dir).expect("made");
    dir
}

/// One of its programs, in the network of a process.
fn program((pid, dir): (u32, &Path), name: &str, words: &[impl AsRef<OsStr>]) -> Command {
    let mut command = beside(pid);
    command.args([name, "-vsyslog:off", "-vconsole:err"]).args(words).stdin(Stdio::null());
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, dir);
    }
    command
}

fn vsctl(place: (u32, &Path), words: &str) -> Output {
    let words: Vec<&str> = ["--timeout=30"].into_iter().chain(words.split(' ')).collect();
    program(place, "ovs-vsctl", &words).output().expect("it is installed")
}

#[test]
fn a_virtio_guest_is_on_open_vswitch_while_it_is_connected() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let sockets = tempfile::tempdir().expect("a directory");
    let dir = sockets.path();
    let place = Place::start();
    let host = &place.host;
    let whole = host.pid_of("ringway run");
    place.add_probe("tag=7 ");
    let refused = place.add_vm1(dir, "br-none");
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("there is no interface br-none: make that bridge"), "{complaint}");
    text_of(place.add_vm1(dir, "br-int.7"), "vif add");
    place.wait_for_ports("probe");
    place.count_announcements();

    let guest = guest_of(1, "10.78.0.5", dir, "vm1", Maker::Backend, "");
    place.wait_for_ports("probe\nvm1");
    assert_eq!(place.ask("get Port vm1 tag"), "7");
    for (key, value) in
        [("iface-id", "lsp1"), ("iface-status", "active"), ("ringway-vif", "virtio/vm1")]
    {
        assert_eq!(place.id("vm1", key), value);
    }
    host.wait("the reply", SOON, |host| host.vif("vm1").and_then(|vif| vif.ovs));
    let shown = host.text(&["vif", "show", "vm1"]);
    assert!(shown.contains("iface-id") && shown.contains("lsp1"), "{shown}");
    host.text(&["vif", "wait", "vm1"]);
    let installed = |timeout: &str| {
        let mut command = ringway();
        command.env("RINGWAY_DIR", host.dir()).env("OVS_RUNDIR", host.file("ovs"));
        command.args(["vif", "wait", "vm1", "--installed", "--timeout", timeout]);
        command.output().expect("the program can be started")
    };
    let late = installed("1");
    let complaint = String::from_utf8_lossy(&late.stderr);
    assert!(complaint.contains("OVN has not installed its port vm1"), "{complaint}");
    // As OVN does.
    place.ask("set Interface vm1 external_ids:ovn-installed=true");
    text_of(installed("60"), "vif wait");
    let ping = || tool(whole, REACH).is_some();
    assert!(ping(), "{}", host.log());
    // Its address is not in the description, so its first frames have shown it.
    host.wait("its announcement", SOON, |_| (place.announcements() > 0).then_some(()));

    // The next process finds the port as it is, and removes that of a vif that is gone.
    let number = place.number("vm1");
    place.add_strangers();
    kill_backend(host);
    place.wait_for_ports("probe\ntheirs\nvm1");
    host.wait("its port to be known again", SOON, |host| host.vif("vm1").and_then(|vif| vif.ovs));
    assert_eq!(place.number("vm1"), number);
    assert!(ping(), "{}", host.log());

    // A device that was deleted is a new port.
    let port = place.ask("get Port vm1 _uuid");
    tool(whole, "ip link del vm1").expect("iproute2");
    host.wait("another port", SOON, |_| {
        let now = place.ask("--if-exists get Port vm1 _uuid");
        (!now.is_empty() && now != port).then_some(())
    });
    assert!(ping(), "{}", host.log());

    drop(guest);
    place.wait_for_ports("probe\ntheirs");
    let _guest = guest_of(1, "10.78.0.5", dir, "vm1", Maker::Backend, "");
    place.wait_for_ports("probe\ntheirs\nvm1");
    host.text(&["vif", "remove", "vm1"]);
    place.wait_for_ports("probe\ntheirs");
}

/// Sends some segments to the echo server of a guest, and expects them back.
fn expect_echo(host: &Host) {
    let file = |name: &str| host.file(name).display().to_string();
    let script = format!(
        "seq 50000 > {0}; socat -t600 - TCP:10.78.0.5:7,retry=300,interval=0.1 < {0} > {1}; \
         cmp {0} {1}",
        file("sent"),
        file("back")
    );
    let output = beside(host.pid_of("ringway run")).args(["sh", "-c", &script]).output();
    text_of(output.expect("it can be started"), "TCP");
}

#[test]
fn no_checksum_is_left_to_a_datapath_that_forwards_it_blank() {
    let Some(_turn) = shared_turn(&[&PROGRAMS[..], &["cmp", "seq"]].concat()) else { return };
    let sockets = tempfile::tempdir().expect("a directory");
    let dir = sockets.path();
    let place = Place::start();
    let host = &place.host;
    let whole = host.pid_of("ringway run");
    place.add_probe("");
    text_of(place.add_vm1(dir, "br-int"), "vif add");
    let because = |text: &str| {
        host.wait(text, SOON, |host| {
            host.vif("vm1").filter(|vif| vif.offloads_because.contains(text))
        })
    };
    let has_checksums =
        |vif: &VifStatus| vif.offloads.iter().any(|offload| offload.starts_with("csum"));
    let set = |value: &str| {
        host.text(&["vif", "set", "vm1", "offloads", value]);
        host.vif("vm1").expect("it is there")
    };
    because("a userspace datapath without userspace-tso-enable");
    set("all");
    let guest = guest_of(1, "10.78.0.5", dir, "vm1", Maker::Backend, "");
    place.wait_for_ports("probe\nvm1");
    assert!(tool(whole, REACH).is_some(), "{}", host.log());
    let number = place.number("vm1");
    assert!(has_checksums(&host.vif("vm1").expect("it is there")));
    // It goes on to use what it was offered.
    for value in ["none", "auto"] {
        let vif = set(value);
        assert!(!has_checksums(&vif), "{vif:?}");
        expect_echo(host);
    }
    assert_eq!(place.number("vm1"), number);

    drop(guest);
    place.wait_for_ports("probe");
    // The next guest has another Ethernet address.
    tool_ok(whole, "ip neigh flush dev probe");
    let _guest = guest_of(1, "10.78.0.5", dir, "vm1", Maker::Backend, "");
    place.wait_for_ports("probe\nvm1");
    assert!(tool(whole, REACH).is_some(), "{}", host.log());
    expect_echo(host);
    let virtio = host.vif("vm1").and_then(|vif| vif.virtio).expect("it is there");
    assert!(!virtio.not_offered.iter().any(|name| name == "csum"), "{virtio:?}");
    let shown = host.text(&["vif", "show", "vm1"]);
    assert!(shown.contains("without userspace-tso-enable"), "{shown}");

    // A port that joins asks again. It is set, and not in force: the switch was started without it.
    place.ask("set Open_vSwitch . other_config:userspace-tso-enable=true ovs_version=9.9.0");
    kill_backend(host);
    let vif = host.wait("what is set", SOON, |host| {
        let reasons = ["and 3.5 is the first", "start ovs-vswitchd again"];
        let is_one = |vif: &VifStatus| reasons.iter().any(|it| vif.offloads_because.contains(it));
        host.vif("vm1").filter(is_one)
    });
    // No port that the switch has opened before passes frames any more, also no other: it takes up
    // half of what is set while it runs.
    assert!(!has_checksums(&vif), "{vif:?}");
}

/// The processes of which this holds for the process id and the words of its command line.
fn processes(is_wanted: impl Fn(u32, &str) -> bool) -> Vec<u32> {
    let pids = names_in(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let is_it = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_wanted(*pid, &line.replace('\0', " "))
    };
    pids.filter(is_it).collect()
}

/// The process that asks `ovs-vsctl`, and its successor.
fn pluggers(host: &Host) -> [u32; 2] {
    let words = format!("plugger --dir {} ", host.dir().display());
    host.wait("two processes", SOON, |_| {
        let mut found = processes(|pid, line| line.contains(&words) && has_executed(pid));
        found.sort_by_key(|pid| start_time(*pid));
        found.try_into().ok()
    })
}

/// A number of a process, by its field in proc_pid_stat(5), of those behind the name.
fn number_of(pid: u32, field: usize) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(field - 3)?.parse().ok()
}

/// Whether a process runs a program of its own. One that is about to has the command line of its
/// parent until then (`PF_FORKNOEXEC`).
fn has_executed(pid: u32) -> bool {
    number_of(pid, 9).is_some_and(|flags| flags & 0x40 == 0)
}

fn parent(pid: u32) -> Option<u32> {
    number_of(pid, 4)
}

fn kill(host: &Host, pid: u32) {
    send(pid, Signal::KILL);
    host.wait("its end", SOON, |_| start_time(pid).is_none().then_some(()));
}

#[test]
fn a_killed_process_that_asks_open_vswitch_is_replaced_and_costs_no_frame() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let sockets = tempfile::tempdir().expect("a directory");
    let place = Place::start();
    let host = &place.host;
    place.add_probe("");
    text_of(place.add_vm1(sockets.path(), "br-int"), "vif add");
    let kept = sockets.path().join("kept");
    let keep = keeping_neighbor("10.78.0.254", &kept);
    let guest = guest_of(1, "10.78.0.5", sockets.path(), "vm1", Maker::Backend, &keep);
    place.wait_for_ports("probe\nvm1");
    let (backend, number) = (host.pid_of("backend"), place.number("vm1"));
    let whole = host.pid_of("ringway run");
    // The first frames may find the guest, or the switch's own port, not ready.
    assert!(tool(whole, REACH).is_some(), "{}", host.log());
    // None asks for the other's address then, which on a busy machine it would give up.
    tool_ok(whole, "ip neigh change 10.78.0.5 dev probe nud permanent");
    wait_for_file(&kept);
    let file = host.file("pings");
    let mut pings = beside(whole);
    pings.args(["ping", OPTIONS, "10.78.0.5"]).stdout(File::create(&file).expect("created"));
    let process = Running::start(&mut pings);
    let pings = Pings::of(host, file);

    let [_, second] = pluggers(host);
    kill(host, second);
    place.add_strangers();
    let [first, next] = pluggers(host);
    kill(host, first);
    place.wait_for_ports("probe\ntheirs\nvm1");
    assert_eq!(pluggers(host)[0], next);
    let (sent, lost) = pings.end();
    drop(process);
    assert_eq!(lost, 0, "of {sent} pings");
    assert_eq!((place.id("vm1", "iface-id"), host.pid_of("backend")), ("lsp1".to_owned(), backend));
    assert_eq!(place.number("vm1"), number);

    // It is killed between an order and its reply.
    let [worker, _] = pluggers(host);
    let switch = place.switch.process.0.id();
    send(switch, Signal::STOP);
    drop(guest);
    let is_child = |pid, line: &str| line.starts_with("ovs-vsctl ") && parent(pid) == Some(worker);
    host.wait("an order", SOON, |_| (processes(is_child).len() == 1).then_some(()));
    kill(host, worker);
    send(switch, Signal::CONT);
    place.wait_for_ports("probe\ntheirs");
    let _guest = guest_of(1, "10.78.0.5", sockets.path(), "vm1", Maker::Backend, "");
    place.wait_for_ports("probe\ntheirs\nvm1");
    assert_eq!(host.pid_of("backend"), backend);
}

#[test]
fn a_xen_guest_is_on_open_vswitch_and_its_vif_says_why_if_not() {
    let Some(_turn) = shared_turn(&[&PROGRAMS[..], &["xenstore-read"]].concat()) else { return };
    let place = Place::start();
    let host = &place.host;
    let mut guest = Hostile::with_keys(
        host,
        &[("script", "vif-ringway-bridge"), ("bridge", "br-int:8:9"), ("iface-id", "a:b")],
    );
    guest.connect();
    let name = guest.name();
    place.wait_for_ports(&name);
    assert_eq!(place.ask(&format!("get Port {name} trunks")), "[8, 9]");
    assert_eq!(place.id(&name, "iface-id"), "a:b");
    assert_eq!(place.id(&name, "attached-mac"), guest.mac().to_string());

    let refused = Hostile::with_keys(host, &[("bridge", "br-int"), ("iface-id", "a b")]);
    let error = |vif: ringway_xenbus::Vif| {
        host.wait("the reason", SOON, |host| host.node(&vif.backend_errors()[0]))
    };
    let reason = error(refused.vif());
    assert!(reason.contains("iface-id is \"a b\""), "{reason}");

    // Another has taken the name while the guest was away.
    guest.disconnect();
    place.wait_for_ports("");
    place.ask(&format!("add-port br-int {name}"));
    guest.connect();
    let reason = error(guest.vif());
    assert!(reason.contains(&format!("ovs-vsctl del-port {name}")), "{reason}");
    assert_eq!(host.vif(&name).and_then(|vif| vif.error), Some(reason));
    assert_eq!(place.id(&name, "iface-id"), "", "it is left alone");
    place.ask(&format!("del-port {name}"));
    host.wait("its port", SOON, |_| (place.id(&name, "iface-id") == "a:b").then_some(()));
    host.wait("no error", SOON, |host| {
        let vif = host.vif(&name).filter(|vif| vif.error.is_none())?;
        host.node(&guest.vif().backend_errors()[0]).is_none().then_some(vif)
    });

    // A switch that hangs: the vif says so, and its guest stays connected.
    let switch = place.switch.process.0.id();
    send(switch, Signal::STOP);
    guest.disconnect();
    let reason = host.wait("the reason", 2 * SOON, |host| host.vif(&name)?.error);
    assert!(reason.contains("does ovs-vswitchd run?"), "{reason}");
    send(switch, Signal::CONT);
    place.wait_for_ports("");
}

/// A host with one guest on a bridge, in the network where it is started.
fn with_guest(host: &str, bridge: &str) -> String {
    let vif = format!("bridge = '{bridge}'\niface-id = 'lsp1'");
    let text = describe(host, &[("a", "vm-uuid = 'c-d'", &vif)]);
    text.replacen("network = \"private\"\n", "", 1)
}

#[test]
fn a_guest_of_the_description_is_on_open_vswitch_with_its_ids() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let Some(network) = network() else { return };
    let (place, pid) = (tempfile::tempdir().expect("a directory"), network.0.id());
    let dir = dir_in(&place);
    let switch = Switch::start(pid, dir.clone());
    let plugged = "[[guest]]\nname = 'b'\n[[guest.vif]]\nbridge = 'br-int'\nbind = 'plugged'\n";
    let description = with_guest("", "br-int.7") + plugged;
    let host = Host::start_beside(pid, place, &description, &[("OVS_RUNDIR", dir.as_os_str())]);
    let place = Place { host, switch };
    let host = &place.host;
    place.wait_for_ports("vif1.0\nvif2.0");
    place.add_probe("tag=7 ");
    tool_ok(pid, "ip addr add 10.77.0.254/24 dev probe");
    assert_eq!(place.ask("get Port vif1.0 tag"), "7");
    for (key, value) in [
        ("iface-id", "lsp1"),
        ("attached-mac", "00:16:3e:40:01:00"),
        ("vm-uuid", "c-d"),
        ("iface-status", "active"),
    ] {
        assert_eq!(place.id("vif1.0", key), value);
    }
    host.wait("the reply", SOON, |host| host.vif("vif1.0").and_then(|vif| vif.ovs));
    let shown = host.text(&["vif", "show", "vif1.0"]);
    assert!(shown.contains("iface-id") && shown.contains("lsp1"), "{shown}");
    host.ping("a", "10.77.0.254");

    let number = place.number("vif1.0");
    kill_backend(host);
    host.wait("its port to be known again", SOON, |host| {
        host.vif("vif1.0").and_then(|vif| vif.ovs)
    });
    assert_eq!(place.number("vif1.0"), number);
    host.ping("a", "10.77.0.254");

    send(host.pid_of("guest a"), Signal::KILL);
    place.wait_for_ports("probe\nvif2.0");
    let Place { host, switch } = place;
    host.signal(Signal::INT);
    let (status, _place, log) = host.ended();
    assert!(status.success(), "{log}");
    assert_eq!(switch.ask("list-ports br-int"), "probe", "{log}");
}

#[test]
fn a_host_whose_guest_cannot_be_on_its_bridge_is_not_started() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let Some(network) = network() else { return };
    let (place, pid) = (tempfile::tempdir().expect("a directory"), network.0.id());
    let _switch = Switch::start(pid, dir_in(&place));
    let config = place.path().join("host.toml");
    let refusal = |mut run: Command, host: &str, bridge: &str| {
        std::fs::write(&config, with_guest(host, bridge)).expect("written");
        run.env("RINGWAY_CONFINE", "without-landlock");
        run.args(["run", "--dir"]).arg(place.path().join("run")).arg("--config").arg(&config);
        let output = run.output().expect("started");
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (host, bridge, part) in [
        (
            "",
            "br-none",
            "[[guest]] a: bridge br-none: there is no interface br-none: make that bridge",
        ),
        ("", "lo", "[[guest]] a: bridge lo: lo is not a bridge of Linux"),
        ("isolate = true", "br-int", "start the host without --isolate"),
    ] {
        let refused = refusal(ringway_in(pid), host, bridge);
        assert!(refused.contains(part), "{refused}");
    }
    // As for users other than root.
    let mut rootless = Command::new("unshare");
    rootless.args(["--user", "--map-user=1", "--map-group=1"]).arg(ringway().get_program());
    rootless.env_remove("RINGWAY_DIR").stdin(Stdio::null());
    let refused = refusal(rootless, "", "br-int");
    let expected = "[[guest]] a: bridge br-int: not started by root, the host has a network";
    assert!(refused.contains(expected), "{refused}");
}
