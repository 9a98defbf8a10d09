//! Network namespaces as ports of the switch: `[[namespace]]`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ringway_e2e::host::{Host, Running, SOON, describe, send, text_of, wait_for};
use ringway_e2e::machine::ADDRESS;
use ringway_e2e::stream::{self, Stream};
use ringway_e2e::virtio_guest::kill_backend;
use ringway_e2e::{Turn, quiet, say, shared_turn};
use rustix::process::Signal;

use crate::reload::reload;

/// A network namespace with a name for `ip netns`.
struct Netns(String);

impl Netns {
    /// One whose name no other process's has.
    fn new(name: &str) -> Netns {
        let netns = Netns(format!("ringway-e2e-{}-{name}", std::process::id()));
        netns.make();
        netns
    }

    fn make(&self) {
        text_of(ip(&["netns", "add", &self.0]).output().expect("iproute2"), "ip netns add");
    }

    fn delete(&self) -> bool {
        quiet(&mut ip(&["netns", "del", &self.0])).is_ok_and(|status| status.success())
    }

    /// A command in it.
    fn command(&self, line: &str) -> Command {
        let mut command = ip(&["netns", "exec", &self.0]);
        command.args(line.split(' '));
        command
    }

    /// The output of a command in it, which must succeed.
    fn text(&self, line: &str) -> String {
        text_of(self.command(line).output().expect("iproute2"), line)
    }

    fn ping(&self, address: &str) {
        self.text(&format!("ping -n -c 2 -i 0.05 -w 30 {address}"));
    }

    /// The kernel's number of a device; `None` if it is not there.
    fn index(&self, device: &str) -> Option<String> {
        let output = self.command(&format!("ip -o link show dev {device}")).output();
        let output = output.expect("iproute2");
        let text = String::from_utf8(output.stdout).expect("text");
        output.status.success().then(|| text.split(':').next().expect("a number").to_owned())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.delete();
    }
}

fn ip(arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The turn of a test with these programs, if it may make namespaces with names.
fn turn(programs: &[&str]) -> Option<Turn<'static>> {
    let turn = shared_turn(&[&["ip", "ping"][..], programs].concat())?;
    if !rustix::process::geteuid().is_root() {
        say("SKIPPED: only root enters network namespaces that have names");
        return None;
    }
    Some(turn)
}

/// A section for a namespace, with further keys.
fn section(name: &str, netns: &str, more: &str) -> String {
    format!("[[namespace]]\nname = '{name}'\nnetns = '{netns}'\n{more}\n")
}

fn wait_for_state(host: &Host, vif: &str, state: &str) {
    let is_so = |host: &Host| host.vif(vif).filter(|vif| vif.state == state).map(drop);
    host.wait(&format!("{vif} to be {state}"), SOON, is_so);
}

fn sink(netns: &Netns, file: &Path) -> Running {
    let mut command = ip(&["netns", "exec", &netns.0, "sh", "-c"]);
    // It stays in the foreground, so that it ends with its test.
    let script = stream::sink(file).trim_end_matches('&').to_owned();
    Running::start(command.arg(script))
}

#[test]
fn namespaces_and_guests_are_stations_of_one_switch_also_over_a_kill_of_the_backend() {
    let Some(_turn) = turn(&stream::TOOLS) else { return };
    let (web, node) = (Netns::new("web"), Netns::new("node"));
    let place = tempfile::tempdir().expect("a directory");
    let received = place.path().join("received");
    let by_path = format!("/run/netns/{}", node.0);
    let text = describe("max-queues = 2", &[("a", "", "")])
        + &section("web", &web.0, &format!("addresses = ['{ADDRESS}/24']\nqueues = 2"))
        + &section(
            "node",
            &by_path,
            "device = 'port0'\naddresses = ['10.77.0.200/24']\nmac = '02:00:00:00:00:c8'",
        );
    let host = Host::start(&text);
    for vif in ["web", "node"] {
        wait_for_state(&host, vif, "Connected");
    }
    let shown = host.vif("web").expect("it is served");
    assert_eq!((shown.kind.as_str(), shown.queues.len()), ("namespace", 2));
    let shown = host.text(&["vif", "show", "node"]);
    for part in [&*by_path, "device            port0\n"] {
        assert!(shown.contains(part), "{shown}");
    }
    host.ping("a", ADDRESS);
    web.ping("10.77.0.200");
    node.ping("10.77.0.1");

    let _sink = sink(&web, &received);
    let stream = Stream::start(&host, "a");
    stream.expect_progress(&host, "it is served");
    let before = [web.index("eth0"), node.index("port0")];
    assert!(before.iter().all(Option::is_some));
    // An administrator's change stays.
    node.text("ip addr add 10.78.0.1/24 dev port0");
    for _ in 0..2 {
        kill_backend(&host);
        stream.expect_progress(&host, "after a kill");
        wait_for_state(&host, "node", "Connected");
    }
    assert_eq!([web.index("eth0"), node.index("port0")], before, "the devices are as they were");
    assert!(node.text("ip -o addr show dev port0").contains("10.78.0.1/24"));
    stream.expect_all_received(&host, &received);
    web.ping("10.77.0.200");

    // Rules are those of other vifs: another address than its own is refused.
    node.text("ip link set dev port0 address 02:00:00:00:00:c9");
    // waits: the replies that do not come are no proof; the counter is.
    host.wait("refused frames", SOON, |host| {
        // waits: as above
        let _ = quiet(&mut node.command("ping -n -c 1 -w 1 10.77.0.1"));
        let refused = host.vif("node")?.refused;
        (!refused.is_empty()).then_some(())
    });
}

#[test]
fn namespaces_come_and_go_by_themselves_and_with_the_description() {
    let Some(_turn) = turn(&[]) else { return };
    let (first, second) = (Netns::new("first"), Netns::new("second"));
    assert!(second.delete());
    let guest = describe("", &[("a", "", "")]);
    let one = guest.clone() + &section("one", &first.0, "addresses = ['10.77.0.5/24']");
    let two = section("two", &second.0, "addresses = ['10.77.0.6/24']");
    let host = Host::start(&(one.clone() + &two));
    wait_for_state(&host, "one", "Connected");
    host.wait("the reason", SOON, |host| {
        let error = host.vif("two")?.error?;
        error.contains("there is no network namespace /run/netns/").then_some(())
    });
    // A container that starts, ends, and starts again.
    for _ in 0..2 {
        second.make();
        wait_for_state(&host, "two", "Connected");
        host.ping("a", "10.77.0.6");
        assert!(second.delete());
        wait_for_state(&host, "two", "Waiting");
    }
    host.ping("a", "10.77.0.5");

    // The device is deleted by an administrator, and made again.
    let before = first.index("eth0");
    first.text("ip link del eth0");
    host.wait("another device", SOON, |_| {
        let now = first.index("eth0")?;
        (Some(&now) != before.as_ref()).then_some(())
    });
    wait_for_state(&host, "one", "Connected");
    host.ping("a", "10.77.0.5");

    // By the description: what is gone is removed, and what is new is made.
    let backend = host.pid_of("backend");
    let done = reload(&host, &guest);
    assert!(done.contains("one") && done.contains("two"), "{done}");
    assert_eq!(host.vif("one").map(|vif| vif.name), None);
    wait_for("the device to go", SOON, || first.index("eth0").is_none().then_some(()));
    let done = reload(&host, &(one.clone() + "weight = 7\n"));
    assert!(done.contains("one"), "{done}");
    wait_for_state(&host, "one", "Connected");
    host.ping("a", "10.77.0.5");
    reload(&host, &(one.replace("'10.77.0.5/24'", "'10.77.0.7/24'") + "weight = 9\n"));
    host.wait("what stays", SOON, |host| {
        (host.log_count("addresses of one cannot") == 1).then_some(())
    });
    assert_eq!(host.vif("one").map(|vif| vif.limits.weight), Some(9));
    assert_eq!(host.pid_of("backend"), backend);
}

#[test]
fn a_namespace_that_cannot_be_entered_has_the_reason() {
    let Some(_turn) = turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("file");
    fs::write(&file, "").expect("written");
    let taken = Netns::new("taken");
    taken.text("ip link add eth0 type bridge");
    let text = describe("", &[("a", "", "")])
        + &section("file", &file.display().to_string(), "")
        + &section("taken", &taken.0, "");
    let host = Host::start(&text);
    let error_of = |vif: &str, reason: &str| {
        host.wait(reason, SOON, |host| host.vif(vif)?.error?.contains(reason).then_some(()));
    };
    error_of("file", "is not the file of a network namespace");
    error_of("taken", "an interface eth0 exists already: remove it, or choose another name");
    taken.text("ip link del eth0");
    wait_for_state(&host, "taken", "Connected");
}

#[test]
fn the_namespaces_of_tenants_are_served_by_their_own_processes() {
    let Some(_turn) = turn(&[]) else { return };
    let (web, node) = (Netns::new("of-web"), Netns::new("of-node"));
    let text = describe("isolate = true", &[("a", "", "")])
        + &section("web", &web.0, "addresses = ['10.77.0.5/24']\ntenant = 'red'")
        + &section("node", &node.0, "addresses = ['10.77.0.6/24']");
    let host = Host::start(&text);
    for (vif, tenant) in [("web", "red"), ("node", "vhost-node")] {
        wait_for_state(&host, vif, "Connected");
        assert_eq!(host.vif(vif).and_then(|vif| vif.tenant).as_deref(), Some(tenant));
    }
    web.ping("10.77.0.6");
    host.ping("a", "10.77.0.5");
}

/// The child of a process that has this in its command line.
fn child_of(pid: u32, word: &str) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("the kernel lists children");
    let is_it = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(word)
    };
    let children = children.split_whitespace();
    let mut children = children.map(|pid| pid.parse::<u32>().expect("a number"));
    children.find(is_it).unwrap_or_else(|| panic!("{pid} has no {word}"))
}

#[test]
fn the_attacher_keeps_three_rights_and_all_begin_again_when_it_ends() {
    let Some(_turn) = turn(&[]) else { return };
    let web = Netns::new("attached");
    let text =
        describe("", &[("a", "", "")]) + &section("web", &web.0, "addresses = ['10.77.0.5/24']");
    let host = Host::start(&text);
    wait_for_state(&host, "web", "Connected");
    let attacher = child_of(child_of(host.pid_of("backend"), "opener"), "attacher");
    let status = fs::read_to_string(format!("/proc/{attacher}/status")).expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
        number.unwrap_or_else(|| panic!("{name}: {status}"))
    };
    // CAP_DAC_OVERRIDE, CAP_NET_ADMIN and CAP_SYS_ADMIN.
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(field(set) & !0x20_1002, 0, "{set} {status}");
    }
    assert_eq!((field("CapAmb:"), field("NoNewPrivs:")), (0, 1));
    let before = web.index("eth0");
    send(attacher, Signal::KILL);
    host.wait("another backend", SOON, |host| host.event("backend-restarted"));
    wait_for_state(&host, "web", "Connected");
    assert_eq!(web.index("eth0"), before);
    host.ping("a", "10.77.0.5");
}
