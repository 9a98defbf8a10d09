//! Network devices of the host outlive the processes that serve them, with all that an
//! administrator has set on them.

use std::process::{Command, Stdio};

use ringway_e2e::host::{Host, Running, SOON, describe, pair, ringway, send, start_time};
use ringway_e2e::shared_turn;
use ringway_e2e::virtio_guest::{Maker, guest_of, kill_backend};
use rustix::process::Signal;

/// What runs a tool in the network namespace of a process.
pub(crate) fn beside(pid: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--net"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command
}

/// A tool in the network namespace of a process; `None` if it fails.
pub(crate) fn tool(pid: u32, line: &str) -> Option<String> {
    let output = beside(pid).args(line.split(' ')).output().expect("util-linux");
    let text = String::from_utf8(output.stdout).expect("text");
    output.status.success().then_some(text)
}

/// Runs a tool in the network namespace of a process, which must succeed.
pub(crate) fn tool_ok(pid: u32, line: &str) -> String {
    tool(pid, line).unwrap_or_else(|| panic!("{line}"))
}

/// All that the tools of an administrator show of an interface.
fn shown(pid: u32, name: &str) -> String {
    let lines = ["ip -d -o link show dev", "ip -o addr show dev", "ip route show dev"];
    let lines = lines.into_iter().chain(["ip -6 route show dev", "tc qdisc show dev"]);
    let text: String =
        lines.map(|line| tool(pid, &format!("{line} {name}")).unwrap_or_default()).collect();
    // What the kernel itself changes: timers of the bridge, what it knows about the carrier, and
    // whether it has seen that an address is no duplicate.
    let mut words: Vec<&str> =
        text.split_whitespace().filter(|word| *word != "tentative").collect();
    for index in 1..words.len() {
        if words[index - 1].ends_with("_timer") || words[index] == "UNKNOWN" {
            words[index] = "UP";
        }
    }
    words.join(" ")
}

/// The kernel's number of an interface.
pub(crate) fn index(pid: u32, name: &str) -> String {
    let text = tool_ok(pid, &format!("ip -o link show dev {name}"));
    text.split(':').next().expect("a number").to_owned()
}

/// The Ethernet address of an interface; `None` if it does not exist.
fn mac(pid: u32, name: &str) -> Option<String> {
    let text = tool(pid, &format!("ip -o link show dev {name}"))?;
    let mac = text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
    mac.map(str::to_owned)
}

/// Waits until an interface is shown as before: between two processes it has no carrier.
fn wait_as_before(host: &Host, name: &str, before: &str) {
    let pid = host.pid_of("ringway run");
    let mut last = String::new();
    for _ in 0..3000 {
        last = shown(pid, name);
        if last == before {
            return;
        }
        // waits: the kernel reports the carrier of an interface some time after its queues exist.
        std::thread::park_timeout(SOON / 3000);
    }
    panic!("before:\n{before}\nafter:\n{last}\n{}", host.log());
}

fn uplink() -> String {
    "[uplink]\nname = 'up0'\naddresses = ['10.77.0.254/24']\n".to_owned()
}

#[test]
fn an_uplink_is_what_the_administrator_made_of_it_after_a_kill_of_its_process() {
    let programs = ["nsenter", "ip", "tc", "bridge", "ping"];
    let Some(_turn) = shared_turn(&programs) else { return };
    for isolate in ["", "isolate = true\n"] {
        let host = Host::start(
            &(pair().replacen("[host]\n", &format!("[host]\n{isolate}"), 1) + &uplink()),
        );
        let pid = host.pid_of("ringway run");
        let ok = |line: &str| tool_ok(pid, line);
        host.ping("a", "10.77.0.254");
        let address = mac(pid, "up0");
        // As docs/xen.md says.
        ok("ip link add br0 type bridge");
        ok("ip link set up0 master br0");
        ok("ip addr del 10.77.0.254/24 dev up0");
        ok("ip addr add 10.77.0.254/24 dev br0");
        ok("ip link set br0 up");
        ok("bridge link set dev up0 isolated on hairpin on");
        ok("ip addr add 10.78.0.1/24 dev up0");
        ok("ip route add 10.79.0.0/24 via 10.78.0.2 dev up0");
        ok("ip link set up0 mtu 1480");
        ok("tc qdisc replace dev up0 root handle 7: pfifo limit 77");
        host.ping("a", "10.77.0.254");
        let before = shown(pid, "up0");
        for part in ["isolated on", "10.78.0.1/24", "10.79.0.0/24", "limit 77p", "master br0"] {
            assert!(before.contains(part), "{part}: {before}");
        }
        let name = if isolate.is_empty() { "backend" } else { "switch" };
        for _ in 0..2 {
            let killed = host.pid_of(name);
            send(killed, Signal::KILL);
            host.wait("another process", SOON, |host| {
                let now = host.members().into_iter().find(|member| member.name == name)?;
                (now.pid != killed && start_time(killed).is_none()).then_some(())
            });
            wait_as_before(&host, "up0", &before);
            host.ping("a", "10.77.0.254");
        }
        assert_eq!(mac(pid, "up0"), address);

        // Deleted by an administrator: the same process makes it again as it was.
        down_and_up(&host, "up0");
        let process = host.pid_of(name);
        ok("ip link del up0");
        let port = host.wait("the uplink on its bridge", SOON, |_| {
            tool(pid, "bridge -d link show dev up0").filter(|port| port.contains("isolated on"))
        });
        assert!(port.contains("master br0") && port.contains("hairpin on"), "{port}");
        assert_eq!(mac(pid, "up0"), address);
        let shown = host.wait("its address", SOON, |_| {
            Some(shown(pid, "up0")).filter(|shown| shown.contains("10.78.0.1/24"))
        });
        assert!(shown.contains("mtu 1480") && !shown.contains("10.77.0.254"), "{shown}");
        host.ping("a", "10.77.0.254");
        assert_eq!(host.pid_of(name), process);
        assert!(host.log().contains("was deleted: it is made again as it was"), "{}", host.log());
    }
}

/// Kills the backend, and waits until the one in its place replies.
fn replace_backend(host: &Host) {
    kill_backend(host);
    host.wait("the backend to reply", SOON, Host::backend);
}

/// A guest of Xen and vifs of virtio on a bridge.
fn on_bridge(place: &tempfile::TempDir, vhosts: &[&str]) -> String {
    let mut text = describe("max-queues = 2", &[("a", "", "bridge = 'br7'")])
        + "[[bridge]]\nname = 'br7'\naddresses = ['10.77.0.254/24']\n";
    for name in vhosts {
        let socket = place.path().join(name).display().to_string();
        text += &format!(
            "[[vhost]]\nname = '{name}'\nsocket = '{socket}'\nmode = 'server'\nbridge = 'br7'\n"
        );
    }
    text
}

#[test]
#[expect(clippy::too_many_lines, reason = "one host, and what is done to it step by step")]
fn a_device_on_a_bridge_is_what_the_administrator_made_of_it_after_a_kill() {
    let programs = ["nsenter", "ip", "tc", "bridge", "nft", "ping", "xenstore-read"];
    let Some(_turn) = shared_turn(&programs) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&on_bridge(&place, &["vm1"]));
    let pid = host.pid_of("ringway run");
    let ok = |line: &str| tool_ok(pid, line);
    // Rules by the number and by the name of the interface.
    ok("nft add table bridge t");
    ok("nft add chain bridge t c { type filter hook input priority 0 ; }");
    // In one transaction, so that both count the same frames.
    let rule = |key: &str| format!("add rule bridge t c {key} vif1.0 counter");
    ok(&format!("nft {} ; {}", rule("iif"), rule("iifname")));
    let counted = || -> Vec<u64> {
        let rules = ok("nft list chain bridge t c");
        let packets = rules.split("packets ").skip(1);
        packets.map(|it| it.split(' ').next().expect("a word").parse().expect("a number")).collect()
    };
    let names = ["vif1.0", "vm1"];
    for name in names {
        // A port of a bridge has no address of the host's own IPv6, so guests get none of its
        // frames.
        assert_eq!(ok(&format!("ip -6 -o addr show dev {name}")), "");
        ok(&format!("bridge link set dev {name} isolated on learning off"));
        ok(&format!("tc qdisc replace dev {name} root handle 7: pfifo limit 77"));
        ok(&format!("ip link set {name} txqueuelen 33"));
    }
    host.ping("a", "10.77.0.254");
    let before = names.map(|name| shown(pid, name));
    replace_backend(&host);
    for (name, before) in names.iter().zip(&before) {
        assert!(before.contains("isolated on") && before.contains("learning off"), "{before}");
        wait_as_before(&host, name, before);
    }
    // A frame may pass while the list is read, after one rule and before the other.
    let equal = |_: &Host| Some(counted()).filter(|it| it.len() == 2 && it[0] == it[1]);
    let counts = host.wait("both rules to have counted the same", SOON, equal);
    host.ping("a", "10.77.0.254");
    assert!(counted().iter().zip(counts).all(|(now, before)| *now > before), "{:?}", counted());

    // What is, not what was configured: a quarantine on another bridge, or on none.
    let attached_to = |host: &Host, name: &str| host.vif(name).map(|vif| vif.attached_to);
    ok("ip link add br8 type bridge");
    ok("ip link set vm1 master br8");
    ok("ip link set vif1.0 nomaster");
    for _ in 0..2 {
        assert_eq!(attached_to(&host, "vm1").as_deref(), Some("br8"));
        assert_eq!(attached_to(&host, "vif1.0").as_deref(), Some("vif1.0"));
        replace_backend(&host);
    }
    host.wait("the log", SOON, |host| {
        (host.log_count("is not on bridge br7, and stays where it was put") >= 4).then_some(())
    });

    // A vif that is added and removed at run time, also by another process.
    let socket = place.path().join("vm2").display().to_string();
    let add = ["vif", "add", "vm2", "--vhost", &socket, "--mode", "server", "--bridge", "br7"];
    ok("ip link set br7 mtu 2000");
    let refused = host.verb(&[&add[..], &["--set", "mtu=1500"]].concat());
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{reason}");
    assert!(reason.contains("mtu is 1500") && reason.contains("2000 of bridge br7"), "{reason}");
    assert!(tool(pid, "ip link show vm2").is_none() && host.vif("vm2").is_none());
    host.text(&add);
    assert!(ok("ip link show vm2").contains("mtu 2000"));
    replace_backend(&host);
    ok("ip link show vm2");
    host.text(&["vif", "remove", "vm2"]);
    assert!(tool(pid, "ip link show vm2").is_none());
    for name in names {
        ok(&format!("ip link show {name}"));
    }
}

/// Sets an interface down and up, and waits until the backend has seen both.
fn down_and_up(host: &Host, name: &str) {
    let pid = host.pid_of("ringway run");
    for (state, text) in [("down", "was set down, and stays so"), ("up", "is up again")] {
        let before = host.log_count(text);
        tool_ok(pid, &format!("ip link set {name} {state}"));
        host.wait(text, SOON, |host| (host.log_count(text) > before).then_some(()));
    }
}

/// Waits until an interface is an isolated port of a bridge.
fn wait_isolated(host: &Host, name: &str, bridge: &str) {
    let pid = host.pid_of("ringway run");
    let (line, master) = (format!("bridge -d link show dev {name}"), format!("master {bridge} "));
    host.wait(&format!("{name} on {bridge}"), SOON, |_| {
        tool(pid, &line).filter(|it| it.contains("isolated on") && it.contains(&master))
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one host, and what is done to it step by step")]
fn a_deleted_device_or_bridge_is_made_good_and_no_guest_is_closed() {
    let programs = ["nsenter", "ip", "bridge", "ping", "socat", "unshare", "xenstore-read"];
    let Some(_turn) = shared_turn(&programs) else { return };
    let place = tempfile::tempdir().expect("a directory");
    for isolate in ["", "isolate = true\n"] {
        let text = on_bridge(&place, &["vm1"]);
        let host = Host::start(&text.replacen("[host]\n", &format!("[host]\n{isolate}"), 1));
        let pid = host.pid_of("ringway run");
        let ok = |line: &str| tool_ok(pid, line);
        let _guest = guest_of(1, "10.77.0.9", place.path(), "vm1", Maker::Backend, "");
        host.wait("the guest", SOON, |host| host.vif("vm1").filter(|vif| vif.state == "Connected"));
        let names = ["vif1.0", "vm1"];
        let reach = |host: &Host| {
            host.ping("a", "10.77.0.254");
            let pings = "ping -n -c 1 -w 30 10.77.0.9";
            assert!(tool(pid, pings).is_some(), "{}", host.log());
        };
        reach(&host);
        for name in &names {
            ok(&format!("bridge link set dev {name} isolated on"));
        }
        let processes: Vec<u32> = host.members().iter().map(|member| member.pid).collect();
        let error = |host: &Host, name: &str| host.vif(name).and_then(|vif| vif.error);
        let attached_to = |host: &Host, name: &str| host.vif(name).map(|vif| vif.attached_to);
        for name in &names {
            // The backend has seen this once it has seen what comes after.
            down_and_up(&host, name);
        }
        reach(&host);
        for _ in 0..2 {
            for name in &names {
                ok(&format!("ip link del {name}"));
                wait_isolated(&host, name, "br7");
                reach(&host);
            }
        }

        ok("ip link del br7");
        for name in &names {
            let error = host.wait("the error", SOON, |host| error(host, name));
            assert_eq!(error, "the bridge br7 was deleted: waiting for one of that name");
            assert_eq!(attached_to(&host, name).as_deref(), Some(*name));
            // Later changes of links say nothing new.
            down_and_up(&host, name);
        }
        assert_eq!(host.log_count("waiting for one of that name"), names.len(), "{}", host.log());
        ok("ip link add br7 type bridge");
        ok("ip addr add 10.77.0.254/24 dev br7");
        ok("ip link set br7 up");
        for name in &names {
            wait_isolated(&host, name, "br7");
            assert_eq!(attached_to(&host, name).as_deref(), Some("br7"));
        }
        reach(&host);
        ok("ip link set br7 name br9");
        for name in &names {
            assert_eq!(attached_to(&host, name).as_deref(), Some("br9"));
        }
        reach(&host);

        // An administrator's will.
        ok("ip link set vif1.0 nomaster");
        host.wait("the log", SOON, |host| {
            host.log().contains("and stays where it was put").then_some(())
        });
        ok("ip link set vif1.0 down");
        host.wait("the log", SOON, |host| {
            host.log()
                .lines()
                .any(|line| line.contains("vif1.0") && line.contains("stays so"))
                .then_some(())
        });
        let vif = host.vif("vif1.0").expect("it is listed");
        assert_eq!((vif.attached_to.as_str(), vif.is_down), ("vif1.0", true));
        assert!(host.text(&["vif", "list"]).contains("vif1.0 (down)"));
        assert_eq!(error(&host, "vif1.0"), None);
        assert_eq!(host.log_count("stays where it was put"), 1, "{}", host.log());
        let now: Vec<u32> = host.members().iter().map(|member| member.pid).collect();
        assert_eq!(now, processes, "no process has ended: {}", host.log());
        assert!(!host.log().contains("disconnected"), "{}", host.log());
    }
}

#[test]
fn a_tenants_vif_waits_for_its_bridge_and_its_device_outlives_the_process() {
    let Some(_turn) = shared_turn(&["nsenter", "ip", "bridge", "ping", "unshare", "socat"]) else {
        return;
    };
    let place = tempfile::tempdir().expect("a directory");
    let text = on_bridge(&place, &["vm1"]).replacen("[host]\n", "[host]\nisolate = true\n", 1);
    let of_vm1 = "mode = 'server'\nbridge = ";
    let host = Host::start(&text.replacen(&format!("{of_vm1}'br7'"), &format!("{of_vm1}'br8'"), 1));
    let pid = host.pid_of("ringway run");
    let ok = |line: &str| tool_ok(pid, line);
    let error = host.vif("vm1").and_then(|vif| vif.error).expect("it has no bridge");
    assert!(error.contains("network device vm1 on bridge br8"), "{error}");
    ok("ip link add br8 type bridge");
    ok("ip addr add 10.78.0.254/24 dev br8");
    ok("ip link set br8 up");
    host.wait("its device", SOON, |host| host.vif("vm1").filter(|vif| vif.attached_to == "br8"));
    let _guest = guest_of(1, "10.78.0.9", place.path(), "vm1", Maker::Backend, "");
    let is_connected = |host: &Host| host.vif("vm1").filter(|vif| vif.state == "Connected");
    host.wait("the guest", SOON, is_connected);
    let reach = |host: &Host| {
        assert!(tool(pid, "ping -n -c 1 -w 30 10.78.0.9").is_some(), "{}", host.log());
    };
    reach(&host);
    ok("bridge link set dev vm1 isolated on learning off");
    host.text(&["vif", "set", "vm1", "rate", "100Mb/s"]);
    let before = shown(pid, "vm1");
    let killed = host.pid_of("tenant vhost-vm1");
    send(killed, Signal::KILL);
    host.wait("another process", SOON, |host| {
        let mut members = host.members().into_iter();
        members.find(|member| member.name == "tenant vhost-vm1" && member.pid != killed)
    });
    host.wait("the guest", SOON, is_connected);
    wait_as_before(&host, "vm1", &before);
    reach(&host);
    assert!(host.vif("vm1").expect("it is listed").limits.rate.is_some());
}

/// A process with a network namespace of its own, which hosts share one after the other.
pub(crate) fn network() -> Option<Running> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can run a host in a network namespace that exists");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let holder = Running::start(&mut command);
    let own = std::fs::read_link("/proc/self/ns/net").expect("ours");
    let its = format!("/proc/{}/ns/net", holder.0.id());
    ringway_e2e::host::wait_for("a network namespace", SOON, || {
        std::fs::read_link(&its).ok().filter(|its| *its != own)
    });
    tool_ok(holder.0.id(), "ip link set lo up");
    Some(holder)
}

#[test]
fn devices_outlive_a_host_until_they_are_not_wanted_or_removed() {
    devices_outlive_a_host("");
}

#[test]
fn devices_of_tenants_outlive_a_host_until_they_are_not_wanted_or_removed() {
    devices_outlive_a_host("isolate = true\n");
}

fn devices_outlive_a_host(isolate: &str) {
    let Some(_turn) = shared_turn(&["nsenter", "unshare", "ip", "bridge"]) else { return };
    let Some(network) = network() else { return };
    let pid = network.0.id();
    let ok = |line: &str| tool_ok(pid, line);
    let place = tempfile::tempdir().expect("a directory");
    let sockets = tempfile::tempdir().expect("a directory");
    let description = |names: &[&str]| {
        on_bridge(&sockets, names).replacen("network = \"private\"", isolate, 1).replace(
            "[[bridge]]\nname = 'br7'\naddresses = ['10.77.0.254/24']\n",
            "[[bridge]]\nname = 'br6'\n",
        ) + &uplink()
    };
    // The administrator's own bridge, for which the guest's is a stand-in.
    let description =
        |names: &[&str]| description(names).replacen("bridge = 'br7'", "bridge = 'br6'", 1);
    ok("ip link add br7 type bridge");
    let host = Host::start_beside(pid, place, &description(&["vm1", "vm2"]), &[]);
    ok("bridge link set dev vm1 isolated on");
    ok("ip addr add 10.78.0.1/24 dev up0");
    let before = ["vm1", "up0"].map(|name| index(pid, name));
    let dir = host.dir().display().to_string();
    let stop = |more: &[&str]| {
        ringway_in(pid).args(["stop", "--dir", &dir]).args(more).output().expect("started")
    };
    assert!(stop(&[]).status.success());
    let (_, place, log) = host.ended();
    for name in ["vm1", "vm2", "up0", "br7"] {
        assert!(tool(pid, &format!("ip link show {name}")).is_some(), "{name}: {log}");
    }
    for name in ["vif1.0", "br6"] {
        assert!(tool(pid, &format!("ip link show {name}")).is_none(), "{name}: {log}");
    }
    let none = stop(&[]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("no host runs in"), "{none:?}");

    let host = Host::start_beside(pid, place, &description(&["vm1"]), &[]);
    assert_eq!(["vm1", "up0"].map(|name| index(pid, name)), before);
    assert!(ok("bridge -d link show dev vm1").contains("isolated on"));
    assert!(ok("ip addr show dev up0").contains("10.78.0.1/24"));
    assert!(tool(pid, "ip link show vm2").is_none(), "the description no longer names it");
    let removed = stop(&["--remove-devices"]);
    assert!(removed.status.success(), "{removed:?}");
    let (_, place, _) = host.ended();
    for name in ["vm1", "up0", "vif1.0"] {
        assert!(tool(pid, &format!("ip link show {name}")).is_none(), "{name}");
    }
    ok("ip link show br7");
    assert!(!place.path().join("run").exists(), "nothing is left");

    // The name of an interface that is not ours.
    ok("ip link add up0 type bridge");
    let config = place.path().join("host.toml");
    let mut refused = ringway_in(pid);
    refused.args(["run", "--dir", &dir, "--config"]).arg(&config);
    let refused = refused.output().expect("started");
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{reason}");
    assert!(reason.contains("[uplink] name: an interface up0 exists already"), "{reason}");
}

/// The program in the network namespace of a process.
pub(crate) fn ringway_in(pid: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--net", "--target", &pid.to_string()]).arg(ringway().get_program());
    command.env_remove("RINGWAY_DIR").env_remove("RINGWAY_LOG").stdin(Stdio::null());
    command
}
