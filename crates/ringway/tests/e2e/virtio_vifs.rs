//! What users see of a virtio vif, and can set: the same as for a Xen vif.

use std::fs;
use std::process::{Command, Stdio};

use ringway_e2e::host::{Host, Member, Running, SOON, describe, ringway, send, text_of, wait_for};
use ringway_e2e::machine::{ADDRESS, EchoConnection};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::Carried;
use ringway_e2e::virtio_guest::{
    Maker, description, guest_at, guest_of, guest_with, kill_backend, wait_for_queues,
};
use rustix::process::Signal;

use crate::devices::tool;
use crate::virtio::wait_for_error;

#[test]
fn every_view_of_vifs_shows_both_kinds() {
    let Some(_turn) = shared_turn(&["socat", "unshare", "tshark", "ping"]) else {
        return;
    };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &[("vm1", "server")]));
    let _guest = guest_with(dir, "vm1", Maker::Backend, "");
    wait_for_queues(&host, 4);
    EchoConnection::start(&host, "a").expect_progress(&host, "it is served");
    for view in [&["vif", "list"][..], &["vif", "stats"], &["top", "--once"]] {
        let shown = host.text(view);
        let is_kind = |vif: &str, kind: &str| {
            let words = shown.lines().map(str::split_ascii_whitespace);
            let mut starts = words.map(|mut words| [words.next(), words.next()]);
            starts.any(|start| start == [Some(vif), Some(kind)])
        };
        assert!(is_kind("vif1.0", "xen") && is_kind("vm1", "virtio"), "{view:?}: {shown}");
    }
    let file = dir.join("vm1.pcapng");
    let mut command = ringway();
    command.env("RINGWAY_DIR", host.dir()).args(["capture", "vm1", "-w"]).arg(&file);
    let mut capture = Running::start(&mut command);
    host.wait("the capture to begin", SOON, |_| std::fs::metadata(&file).ok());
    host.ping("a", ADDRESS);
    send(capture.0.id(), Signal::INT);
    assert!(capture.wait("the capture to end", SOON).success());
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-Y", "icmp", "-T", "fields", "-e", "icmp.type"]);
    let types = text_of(tshark.output().expect("it can be started"), "tshark");
    // On a busy machine, `ping` sends more than it was asked for.
    for (kind, number) in [("requests", "8"), ("replies", "0")] {
        let count = types.lines().filter(|it| *it == number).count();
        assert!(count >= 2, "{count} {kind}: {types:?}");
    }
    assert!(types.lines().all(|it| ["0", "8"].contains(&it)), "requests and replies: {types:?}");
}

#[test]
fn what_is_set_applies_to_both_kinds_and_outlives_a_killed_backend() {
    let Some(_turn) = shared_turn(&["socat", "unshare", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &[("vm1", "server")]));
    let _guest = guest_with(dir, "vm1", Maker::Backend, "");
    wait_for_queues(&host, 4);
    host.ping("a", ADDRESS);
    let both = ["vif1.0", "vm1"];
    let set_both = |settings: &[(&str, &str)]| {
        for vif in both {
            for (name, value) in settings {
                host.text(&["vif", "set", vif, name, value]);
            }
        }
    };
    // What `vif show` prints is what `vif set` has got.
    let expect = |settings: &[(&str, &str)]| {
        for vif in both {
            host.wait(&format!("{vif} as it was set"), SOON, |host| {
                let shown = host.verb(&["vif", "show", vif]).stdout;
                let shown = String::from_utf8_lossy(&shown).into_owned();
                let line = |(name, value): &(&str, &str)| format!("\n{name:17} {value}\n");
                settings.iter().all(|it| shown.contains(&line(it))).then_some(())
            });
        }
    };
    let vlan = [("vlan", "7")];
    set_both(&vlan);
    expect(&vlan);
    host.ping("a", ADDRESS);
    let all = [
        ("vlan", "7"),
        ("locking-mode", "unlocked"),
        ("addresses-per-vif", "9"),
        ("rate", "2.5Gb/s"),
        ("flood-rate", "77"),
        ("flood-mbit", "20Mb/s"),
        ("broadcast-rate", "none"),
    ];
    set_both(&all);
    expect(&all);
    kill_backend(&host);
    wait_for_queues(&host, 4);
    expect(&all);
    host.ping("a", ADDRESS);
    let fdb = host.backend().expect("it responds").fdb;
    for vif in both {
        let vlans: Vec<Option<u16>> =
            fdb.iter().filter(|entry| entry.port == vif).map(|entry| entry.vlan).collect();
        assert!(!vlans.is_empty() && vlans.iter().all(|vlan| *vlan == Some(7)), "{fdb:?}");
    }
    let isolated = [("private", "true"), ("vlan", "none")];
    set_both(&isolated);
    expect(&isolated);
}

#[test]
fn tenants_of_virtio_vifs_have_processes_of_their_own() {
    let Some(_turn) = shared_turn(&["socat", "unshare", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let text = description(dir, &[("vm1", "server"), ("vm2", "client")]);
    let text = text.replacen("[host]\n", "[host]\nisolate = true\n", 1);
    let host = Host::start(&(text + "tenant = \"red\"\n"));
    let _first = guest_with(dir, "vm1", Maker::Backend, "");
    let _second = guest_at("10.77.0.10", dir, "vm2", Maker::Guest, "");
    wait_for_queues(&host, 4);
    host.ping("a", ADDRESS);
    host.ping("a", "10.77.0.10");
    let tenant = |vif: &str| host.vif(vif).expect("it is there").tenant;
    assert_eq!(tenant("vm1").as_deref(), Some("vhost-vm1"));
    assert_eq!(tenant("vm2").as_deref(), Some("red"));
    let echo = EchoConnection::start(&host, "a");
    let (first, second) = (host.pid_of("tenant vhost-vm1"), host.pid_of("tenant red"));
    send(first, Signal::KILL);
    host.wait("the successor", SOON, |host| {
        let mut members = host.members().into_iter();
        members.find(|it| it.name == "tenant vhost-vm1" && it.pid != first)
    });
    echo.expect_progress(&host, "after its process was killed");
    assert_eq!(host.pid_of("tenant red"), second);
    host.text(&["vif", "set", "vm2", "rate", "100Mb/s"]);
}

/// Vifs that cannot be added, with how, and part of the reason.
const REFUSED: [(&str, &[&str], &str); 6] = [
    ("vm1", &[], "a vif vm1, or one with the socket"),
    ("vm2", &[], "a vif vm2, or one with the socket"),
    ("vm5", &["--set", "mirror=['vm4']"], "a mirror of vm4 of tenant blue"),
    ("vm5", &["--bridge", "br9"], "network device vm5 on bridge br9"),
    ("vm5", &["--bridge", "br7", "--set", "mtu=1400"], "mtu is 1400"),
    ("vm5", &["--set", "mirror=['vm9']"], "vm9"),
];

fn process_of(host: &Host, name: &str) -> Option<Member> {
    host.members().into_iter().find(|member| member.name == name)
}

/// Kills a process, and waits for its successor.
fn replace(host: &Host, name: &str) {
    let killed = host.pid_of(name);
    send(killed, Signal::KILL);
    host.wait(name, SOON, |host| process_of(host, name).filter(|it| it.pid != killed));
}

/// Adds a vif, or returns the reason for its refusal.
fn add(host: &Host, socket: &str, name: &str, more: &[&str]) -> Result<(), String> {
    let add = ["vif", "add", name, "--vhost", socket, "--mode", "server"];
    let output = host.verb(&[&add[..], more].concat());
    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(reason) }
}

/// A vif of the description stays; those that were added go, with the processes of their tenants.
fn remove_all(host: &Host, whole: u32) {
    let refused = host.verb(&["vif", "remove", "vm1"]);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(reason.contains("vm1 is in the description"), "{reason}");
    for name in ["vm2", "vm3", "vm4", "vm5"] {
        host.text(&["vif", "remove", name]);
        assert!(host.vif(name).is_none(), "{name}");
    }
    assert!(tool(whole, "ip link show vm5").is_none());
    for name in ["vhost-vm2", "vhost-vm5"] {
        host.wait("the end of its process", SOON, |host| {
            let dir = ringway_control::RunDir::new(host.dir()).tenant(name);
            let process = process_of(host, &format!("tenant {name}"));
            (process.is_none() && !dir.path().exists()).then_some(())
        });
    }
}

#[test]
fn a_vif_is_added_to_any_tenant_and_removed_while_the_host_runs() {
    let programs = ["socat", "unshare", "ping", "nsenter", "ip"];
    let Some(_turn) = shared_turn(&programs) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let socket = |name: &str| dir.join(name).display().to_string();
    let text = describe("isolate = true", &[("a", "", "tenant = 'red'"), ("b", "", "")])
        + "[[bridge]]\nname = 'br7'\naddresses = ['10.78.0.254/24']\n"
        + &format!("[[vhost]]\nname = 'vm1'\nsocket = '{}'\ntenant = 'blue'\n", socket("vm1"));
    let host = Host::start(&text);
    let add = |name: &str, more: &[&str]| add(&host, &socket(name), name, more);
    let tenant = |vif: &str| host.vif(vif).and_then(|vif| vif.tenant);
    let is_connected = |vif: &str| {
        host.wait(vif, SOON, |host| host.vif(vif).filter(|vif| vif.state == "Connected"));
    };

    // A tenant of its own, that of a Xen vif, whose process has no opener, and one that has it.
    let [red, blue] = ["tenant red", "tenant blue"].map(|name| host.pid_of(name));
    let own = "vhost-vm2";
    let others = [("vm3", "red", "10.77.0.11"), ("vm4", "blue", "10.77.0.12")];
    add("vm2", &[]).expect("a tenant more");
    for (name, tenant, _) in others {
        add(name, &["--set", &format!("tenant='{tenant}'")]).expect("a vif more");
    }
    let guests =
        [("vm2", own, "10.77.0.10")].into_iter().chain(others).map(|(name, of, address)| {
            assert_eq!(tenant(name).as_deref(), Some(of));
            assert!(host.vif(name).and_then(|vif| vif.virtio).is_some_and(|it| it.at_run_time));
            let guest = guest_of(1, address, dir, name, Maker::Backend, "");
            is_connected(name);
            host.ping("a", address);
            host.ping("b", address);
            guest
        });
    let _guests: Vec<Running> = guests.collect();
    assert_ne!(host.pid_of("tenant red"), red);
    assert_eq!(host.pid_of("tenant blue"), blue);

    for (name, more, part) in REFUSED {
        let reason = add(name, more).expect_err("refused");
        assert!(reason.contains(part), "{reason}");
    }
    host.wait("no tenant without vifs", SOON, |_| {
        process_of(&host, "tenant vhost-vm5").is_none().then_some(())
    });
    let whole = host.pid_of("ringway run");
    assert!(tool(whole, "ip link show vm5").is_none() && host.vif("vm5").is_none());

    add("vm5", &["--bridge", "br7"]).expect("on a bridge");
    let _guest = guest_of(1, "10.78.0.5", dir, "vm5", Maker::Backend, "");
    is_connected("vm5");
    assert_eq!(host.vif("vm5").expect("it is listed").attached_to, "br7");
    assert!(tool(whole, "ping -n -c 1 -w 30 10.78.0.5").is_some(), "{}", host.log());

    // The next process serves them, too.
    for name in ["tenant vhost-vm2", "tenant vhost-vm5", "tenant red"] {
        replace(&host, name);
    }
    host.ping("a", "10.77.0.10");
    host.ping("b", "10.77.0.11");
    is_connected("vm5");
    assert!(tool(whole, "ping -n -c 1 -w 30 10.78.0.5").is_some(), "{}", host.log());

    let red = host.pid_of("tenant red");
    remove_all(&host, whole);
    assert_eq!(host.pid_of("tenant red"), red, "it serves a Xen vif");
    assert_eq!(host.pid_of("tenant blue"), blue);
    host.ping("a", "10.77.0.2");
}

#[test]
fn a_front_end_that_shares_too_much_memory_is_refused_with_both_numbers() {
    let Some(_turn) = shared_turn(&["socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let text = description(dir, &[("vm1", "server"), ("large", "server")]);
    let host = Host::start(&(text + "max-memory = \"1MiB\"\n"));
    let _served = guest_with(dir, "vm1", Maker::Backend, "");
    wait_for_queues(&host, 4);
    let echo = EchoConnection::start(&host, "a");
    let _refused = guest_at("10.77.0.10", dir, "large", Maker::Backend, "");
    wait_for_error(&host, "large", "max-memory is 1 MiB: raise it");
    echo.expect_progress(&host, "beside a refused front-end");
}

#[test]
fn a_rate_limits_what_a_virtio_guest_transmits_and_another_what_it_receives() {
    let Some(turn) = ringway_e2e::measured_turn(&["iperf3", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &[("vm1", "server")]));
    let sent: fn(&Host) -> u64 = |host| host.tx_bytes("vm1");
    let received: fn(&Host) -> u64 = |host| host.rx_bytes("vm1");
    let limits = [("rate", "5201", 16, Some("-R"), sent), ("rate-rx", "5202", 8, None, received)];
    // A server is closed for a moment between two runs, so each client has its own.
    let server = |(limit, port, ..): &(&str, &str, _, _, _)| {
        format!("iperf3 -s -p {port} --forceflush > {} & ", dir.join(limit).display())
    };
    let servers: String = limits.iter().map(server).collect();
    let _guest = guest_with(dir, "vm1", Maker::Backend, &servers);
    wait_for_queues(&host, 4);
    host.ping("a", ADDRESS);
    for (limit, port, megabits, more, bytes) in limits {
        wait_for("iperf3 to listen", SOON, || {
            fs::read_to_string(dir.join(limit)).ok().filter(|text| text.contains("listening"))
        });
        host.text(&["vif", "set", "vm1", limit, &format!("{megabits}Mb/s")]);
        // More than is measured: the limit delays its end as well.
        // What still waits in a socket's buffer is lost when the client ends, so that is small.
        let client = ["iperf3", "-c", ADDRESS, "-p", port, "-n", "4M", "-w", "256K"];
        let client: Vec<&str> = client.into_iter().chain(more).collect();
        let mut command = host.in_guest("a", &client);
        let mut client = Running::start(command.stdout(Stdio::null()));
        let carried = Carried::of(&host, bytes);
        assert!(client.wait("iperf3 to end", 3 * SOON).success(), "{limit}");
        println!("{limit}: {carried:?}");
        let rate = megabits * 1_000_000 / 8;
        assert!(carried.is_within(rate), "{limit}: {carried:?}");
        assert!(!carried.is_within(rate / 4) || !turn.is_quiet, "{limit}: {carried:?}");
        host.text(&["vif", "set", "vm1", limit, "none"]);
    }
}
