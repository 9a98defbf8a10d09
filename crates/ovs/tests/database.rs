//! Ports in a real database of Open vSwitch, by the real `ovs-vsctl`. There is no switch behind it.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use ringway_ovs::{Datapath, Facts, Ids, OpenVswitch, PortWanted, Table, Version};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

const NO_TABLE: &Table = &Table::EMPTY;

/// A database, which ends with this.
struct Database {
    dir: tempfile::TempDir,
    server: Child,
}

impl Database {
    /// With bridges `br-int` and `br-ext`; `None` where Open vSwitch is not installed.
    fn start() -> Option<Database> {
        if !std::fs::exists(SCHEMA).unwrap_or_default() {
            println!("SKIPPED: Open vSwitch is not installed: scripts/install-packages check");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("conf.db");
        let made = Command::new("ovsdb-tool").arg("create").arg(&file).arg(SCHEMA).status();
        assert!(made.expect("it is installed").success(), "no database could be made");
        let socket = dir.path().join("db.sock");
        let mut server = Command::new("ovsdb-server");
        server.args(["-vsyslog:off", "-vconsole:err", "--no-chdir"]).arg(&file);
        server.arg(format!("--remote=punix:{}", socket.display()));
        server.arg(format!("--unixctl={}", dir.path().join("ctl").display()));
        let server = server.stdin(Stdio::null()).spawn().expect("it is installed");
        let mut database = Database { dir, server };
        while UnixStream::connect(&socket).is_err() {
            assert!(database.server.try_wait().expect("ours").is_none(), "it has ended");
            // waits: until another program listens
            sleep(Duration::from_millis(5));
        }
        database.ask("init");
        database.ask("add-br br-int -- add-br br-ext");
        Some(database)
    }

    /// The arguments that lead `ovs-vsctl` here. Without a switch it must not wait for one.
    fn first(&self) -> Vec<String> {
        let socket = self.dir.path().join("db.sock");
        vec![format!("--db=unix:{}", socket.display()), "--no-wait".to_owned()]
    }

    fn ask(&self, words: &str) -> String {
        let mut command = Command::new("ovs-vsctl");
        let output = command.args(self.first()).args(words.split(' ')).output().expect("it runs");
        assert!(output.status.success(), "{words}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    }

    fn switch(&self, owner: &str) -> OpenVswitch<impl Fn(&[String]) -> Result<String, String>> {
        let first = self.first();
        let run = move |arguments: &[String]| {
            let mut command = Command::new("ovs-vsctl");
            let output = command.args(&first).args(arguments).output().expect("it runs");
            let [out, error] =
                [output.stdout, output.stderr].map(|it| String::from_utf8(it).expect("UTF-8"));
            if output.status.success() { Ok(out) } else { Err(error.trim().to_owned()) }
        };
        OpenVswitch { owner: owner.to_owned(), run }
    }

    fn id(&self, port: &str, key: &str) -> String {
        self.ask(&format!("--if-exists get Interface {port} external_ids:{key}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Both are harmless if it has ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn wanted(device: &str, bridge: &str, iface_id: Option<&str>) -> PortWanted {
    let facts = Facts {
        iface_id: iface_id.map(str::to_owned),
        mac: Some("00:16:3e:00:00:01".to_owned()),
        vm_uuid: Some("cc-dd".to_owned()),
        ..Facts::default()
    };
    let bridge = bridge.parse().expect("good");
    PortWanted { device: device.to_owned(), index: 7, bridge, facts }
}

#[test]
fn a_port_has_its_vlans_and_ids_and_keeps_those_of_others() {
    let Some(database) = Database::start() else { return };
    let switch = database.switch("/run/a b");
    let vif = "/local/domain/0/backend/vif/1/0";
    let ids = switch.join(vif, &wanted("vif1.0", "br-int.7:8:9", Some("lsp1")), NO_TABLE);
    let expected = Ids {
        iface_id: Some("lsp1".to_owned()),
        attached_mac: Some("00:16:3e:00:00:01".to_owned()),
        vm_uuid: Some("cc-dd".to_owned()),
    };
    assert_eq!(ids, Ok(expected));
    assert_eq!(database.ask("port-to-br vif1.0"), "br-int");
    assert_eq!(database.ask("get Port vif1.0 tag trunks"), "7\n[8, 9]");
    for (key, value) in [
        ("iface-id", "lsp1"),
        ("attached-mac", "\"00:16:3e:00:00:01\""),
        ("vm-uuid", "cc-dd"),
        ("iface-status", "active"),
    ] {
        assert_eq!(database.id("vif1.0", key), value);
    }
    let port = database.ask("get Port vif1.0 _uuid");
    database.ask("set Interface vif1.0 external_ids:ovn-installed=true");

    // Another backend finds it, and changes what differs.
    let next = wanted("vif1.0", "br-int", None);
    let ids = switch.join(vif, &next, NO_TABLE).expect("it is its own");
    assert_eq!(ids.iface_id.as_deref(), Some("cc-dd.0"));
    assert_eq!(database.ask("get Port vif1.0 _uuid"), port, "it is the same port");
    assert_eq!(database.ask("get Port vif1.0 tag trunks"), "[]\n[]");
    assert_eq!(database.id("vif1.0", "iface-id"), "cc-dd.0");
    assert_eq!(database.id("vif1.0", "ovn-installed"), "\"true\"");

    // A device that was made again is another port, as is one on another bridge.
    let again = PortWanted { index: 8, ..next };
    switch.join(vif, &again, NO_TABLE).expect("it is its own");
    assert_ne!(database.ask("get Port vif1.0 _uuid"), port);
    switch.join(vif, &wanted("vif1.0", "br-ext", None), NO_TABLE).expect("it is its own");
    assert_eq!(database.ask("port-to-br vif1.0"), "br-ext");
    switch.leave(vif).expect("it is its own");
    assert_eq!(database.ask("list-ports br-ext"), "");
    switch.leave(vif).expect("there is nothing to do");
}

#[test]
fn ports_of_others_are_neither_changed_nor_removed() {
    let Some(database) = Database::start() else { return };
    let (here, there) = (database.switch("/run/a"), database.switch("/run/b"));
    database
        .ask("add-port br-int theirs -- set Interface theirs external_ids:ringway-vif=virtio/x");
    there
        .join("virtio/x", &wanted("vm1", "br-int", Some("b")), NO_TABLE)
        .expect("the name is free");
    database.ask("add-port br-ext elsewhere");
    for name in ["theirs", "vm1", "elsewhere"] {
        let refusal = here.join("virtio/x", &wanted(name, "br-int", Some("a")), NO_TABLE);
        let refusal = refusal.expect_err("it is not ours");
        assert!(refusal.contains(&format!("ovs-vsctl del-port {name}")), "{refusal}");
    }
    here.join("virtio/y", &wanted("vm2", "br-int", None), NO_TABLE).expect("the name is free");
    here.join("virtio/x", &wanted("vm2", "br-int", None), NO_TABLE)
        .expect_err("another vif has it");
    assert_eq!(here.vifs().expect("listed"), ["virtio/y"]);
    assert_eq!(there.vifs().expect("listed"), ["virtio/x"]);
    here.leave("virtio/x").expect("there is nothing to do");
    here.leave("virtio/y").expect("it is ours");
    assert_eq!(database.ask("list-ports br-int"), "theirs\nvm1");
    assert_eq!(database.ask("list-ports br-ext"), "elsewhere");
    assert_eq!(database.id("vm1", "iface-id"), "b");
}

#[test]
fn what_cannot_be_done_is_said_and_nothing_is_half_made() {
    let Some(database) = Database::start() else { return };
    let switch = database.switch("/run/a");
    let refusal =
        |wanted: &PortWanted| switch.join("virtio/x", wanted, NO_TABLE).expect_err("refused");
    let missing = refusal(&wanted("vm1", "br-none", None));
    assert!(missing.contains("no bridge named br-none: make it"), "{missing}");
    let id = refusal(&wanted("vm1", "br-int", Some("a b")));
    assert!(id.starts_with("iface-id is \"a b\""), "{id}");
    let option = refusal(&wanted("--db=x", "br-int", None));
    assert!(option.contains("cannot have the name"), "{option}");
    assert_eq!(database.ask("list-ports br-int"), "");
    let table = "[[port]]\nmac = '00:16:3e:00:00:01'\niface-id = 'listed'\n";
    let table = Table::parse(table).expect("good");
    let ids = switch.join("virtio/x", &wanted("vm1", "br-int", None), &table);
    assert_eq!(ids.expect("joined").iface_id.as_deref(), Some("listed"));
}

#[test]
fn a_datapath_is_read_as_it_runs_and_not_as_it_is_set() {
    let Some(database) = Database::start() else { return };
    let switch = database.switch("/run/a");
    let bridge = "br-int.7".parse().expect("good");
    let datapath = || switch.datapath(&bridge, || Some("3.5.0".to_owned()));
    let version = Some(Version { major: 3, minor: 5 });
    assert_eq!(datapath(), Ok(Datapath::Kernel));
    for (words, expected) in [
        ("set Bridge br-int datapath_type=netdev", Datapath::Userspace),
        (
            "set Open_vSwitch . other_config:userspace-tso-enable=true",
            Datapath::UserspaceTsoSet(version),
        ),
        // As the switch writes it, before and after it is started again.
        (
            "set Interface br-int status:tx_tcp_seg_offload=false",
            Datapath::UserspaceTsoSet(version),
        ),
        ("set Interface br-int status:tx_tcp_seg_offload=true", Datapath::UserspaceTso(version)),
        ("clear Open_vSwitch . other_config", Datapath::UserspaceTso(version)),
        ("clear Interface br-int status", Datapath::Userspace),
    ] {
        database.ask(words);
        assert_eq!(datapath(), Ok(expected), "{words}");
    }
    database.ask("del-br br-int");
    assert!(datapath().is_err_and(|reason| reason.contains("br-int")));
}

#[test]
fn a_name_of_others_stays_the_value_of_one_id() {
    let Some(database) = Database::start() else { return };
    let switch = database.switch("/run/a b");
    let vif = "virtio/x\", \"iface-id\"=\"theirs\" -- del-br br-ext; $(id) `id` '{}[]#\\";
    switch.join(vif, &wanted("vm1", "br-int", Some("own")), NO_TABLE).expect("it is a text");
    assert_eq!(switch.vifs(), Ok(vec![vif.to_owned()]));
    assert_eq!(database.id("vm1", "iface-id"), "own");
    assert_eq!(database.ask("list-br"), "br-ext\nbr-int");
    switch.leave("virtio/x").expect("there is nothing to do");
    assert_eq!(database.ask("list-ports br-int"), "vm1");
    switch.leave(vif).expect("it is its own");
    assert_eq!(database.ask("list-ports br-int"), "");
}
