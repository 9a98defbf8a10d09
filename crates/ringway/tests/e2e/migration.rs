//! A virtual machine that moves from one QEMU to another while it exchanges data.
//!
//! Each is a front-end of a host of its own, and a wire connects the uplinks of both hosts.
//! Whatever the first backend writes into the guest's memory while QEMU copies it must be in the
//! dirty log. Otherwise the guest's connection, whose bytes are compared, would read stale pages
//! after the move. And both hosts' switches must learn where the guest is now.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ringway_e2e::host::{Host, Running, SOON, describe, send, wait_for};
use ringway_e2e::machine::{ADDRESS, EchoConnection, Image, Machine, QEMU, wait_for_file};
use ringway_e2e::pair::ok;
use rustix::process::Signal;

/// The number of pings, and the time between them: QEMU takes some seconds to move an emulated
/// machine.
const PINGS: &str = "1500";
const PING_INTERVAL: &str = "0.01";
/// Those of half a second: docs/virtio.md states 3 and 4.
const MOST_LOST: u32 = 50;

/// A limit for each word of QEMU's monitor.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host for the machine, with an uplink and these Xen guests.
fn description(dir: &Path, features: &str, guests: &[(&str, &str, &str)]) -> String {
    format!(
        "{}[uplink]\nname = \"{UPLINK}\"\n\
         [[vhost]]\nname = \"vm\"\nsocket = \"{}\"\nqueues = 4\nmac = \"{MAC}\"\n\
         features = [{features}]\n",
        describe("max-queues = 4", guests),
        dir.join("net").display()
    )
}

/// The address that QEMU gives a machine's first network card.
const MAC: &str = "52:54:00:12:34:56";
const UPLINK: &str = "ringway0";
/// The network device that leads to the other host.
const WIRE: &str = "wire";

/// A command in the network namespace of a host.
fn in_host(host: &Host, command: &str) -> Command {
    let mut nsenter = Command::new("nsenter");
    let net = format!("--net=/proc/{}/ns/net", host.pid_of("backend"));
    nsenter.arg(net).args(command.split_ascii_whitespace());
    nsenter
}

/// Connects the uplinks of two hosts by a bridge at each and a wire between them.
fn connect(hosts: [&Host; 2]) {
    let [one, two] = hosts;
    let other = two.pid_of("backend");
    let line = format!("ip link add {WIRE} type veth peer name {WIRE} netns {other}");
    ok(&mut in_host(one, &line));
    for host in hosts {
        ok(&mut in_host(host, "ip link add bridge type bridge"));
        for device in [UPLINK, WIRE] {
            ok(&mut in_host(host, &format!("ip link set {device} master bridge up")));
        }
        ok(&mut in_host(host, "ip link set bridge up"));
    }
}

/// The end of the socket that the machine creates.
fn chardev(dir: &Path) -> String {
    format!("socket,id=c,path={},server=on", dir.join("net").display())
}

/// Sends a command to QEMU's monitor; returns what it prints within some time.
fn ask(monitor: &mut UnixStream, command: &str) -> String {
    writeln!(monitor, "{command}").expect("QEMU runs");
    let mut text = Vec::new();
    let mut some = [0; 4096];
    while let Ok(count @ 1..) = monitor.read(&mut some) {
        text.extend_from_slice(&some[..count]);
        let text = String::from_utf8_lossy(&text);
        if text.contains(command) && text.ends_with("(qemu) ") {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Moves a machine whose guest announces itself, or cannot; returns how many pings were lost.
fn move_machine(image: &Image, features: &str) -> u32 {
    let places = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let [source, dir] = [0, 1].map(|index| places[index].path());
    let host = Host::start(&description(source, features, &[("a", "", "queues = 4")]));
    let second = Host::start(&description(dir, features, &[]));
    connect([&host, &second]);
    let monitor = format!("unix:{},server=on,wait=off", source.join("monitor").display());
    let more = ["-monitor", &monitor];
    let mut machine = Machine::start_with(image, source, &chardev(source), &more);
    machine.booted();
    let channel = format!("unix:{}", dir.join("channel").display());
    let postcopy = dir.join("target-monitor");
    let target_monitor = format!("unix:{},server=on,wait=off", postcopy.display());
    let more = ["-incoming", &channel, "-monitor", &target_monitor];
    let mut target = Machine::start_with(image, dir, &chardev(dir), &more);
    wait_for_file(&dir.join("channel"));
    // Loading memory after the guest has started, which QEMU requests of the back-end.
    let mut target_monitor = UnixStream::connect(&postcopy).expect("QEMU has made it");
    target_monitor.set_read_timeout(Some(PATIENCE)).expect("our own socket");
    let refused = ask(&mut target_monitor, "migrate_set_capability postcopy-ram on");
    assert!(refused.contains("vhost-user backend not capable of postcopy"), "{refused}");
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "before it moves");
    let mut ping =
        host.in_guest("a", &["ping", "-n", "-q", "-i", PING_INTERVAL, "-c", PINGS, ADDRESS]);
    let mut ping = Running::start(ping.stdout(Stdio::piped()));
    let announcements = Announcements::record(&second);

    let mut monitor = UnixStream::connect(source.join("monitor")).expect("QEMU has made it");
    monitor.set_read_timeout(Some(PATIENCE)).expect("our own socket");
    ask(&mut monitor, &format!("migrate -d {channel}"));
    wait_for("the machine to have moved", 12 * SOON, || {
        let status = ask(&mut monitor, "info migrate");
        let logs = || host.log() + &second.log();
        assert!(!status.contains("Migration status: failed"), "{status}\n{}", logs());
        status.contains("Migration status: completed").then_some(())
    });
    let count = |host: &Host| host.vif("vm").map_or(0, |vif| vif.queues.len());
    host.wait("the machine at its new place", 3 * SOON, |host| {
        (count(host) == 0 && count(&second) > 0).then_some(())
    });
    machine.kill();
    echo.expect_progress(&host, "after it has moved");
    target.run("ethtool -L eth0 combined 4");
    echo.expect_progress(&host, "with queues that it has changed");
    ping.wait("the pings", 12 * SOON);
    assert!(announcements.end() > 0, "whether it announces itself or not");
    let mut said = String::new();
    let stdout = ping.0.stdout.as_mut().expect("it was piped");
    stdout.read_to_string(&mut said).expect("text");
    let received = || said.split_once(" received")?.0.rsplit_once(' ')?.1.parse::<u32>().ok();
    PINGS.parse::<u32>().expect("a number") - received().expect(&said)
}

/// Records the reverse ARP requests that leave a host.
struct Announcements(Running);

impl Announcements {
    fn record(host: &Host) -> Announcements {
        let line = format!("tshark -l -i {WIRE} -f rarp -T fields -e eth.src");
        let mut tshark = in_host(host, &line);
        let mut tshark = Running::start(tshark.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let stderr = tshark.0.stderr.take().expect("it was piped");
        let begun = BufReader::new(stderr).lines().map_while(Result::ok);
        assert!(begun.into_iter().any(|line| line.starts_with("Capturing on")), "tshark records");
        Announcements(tshark)
    }

    /// How many there were.
    fn end(mut self) -> usize {
        send(self.0.0.id(), Signal::INT);
        self.0.wait("tshark to end", SOON);
        let stdout = self.0.0.stdout.take().expect("it was piped");
        BufReader::new(stdout).lines().count()
    }
}

#[test]
fn a_migrated_machine_keeps_its_connections_with_or_without_an_announcement() {
    let programs = [QEMU, "socat", "ping", "nsenter", "ip", "tshark"];
    let why = "it boots two machines for each of two guests";
    if ringway_e2e::nightly_turn(why, &[]).is_none() {
        return;
    }
    let Some(turn) = ringway_e2e::measured_turn(&programs) else { return };
    let Some(image) = Image::make() else { return };
    for (what, features) in [("announces itself", ""), ("is announced", "\"-guest_announce\"")] {
        let lost = move_machine(&image, features);
        println!("a guest that {what}: {lost} of {PINGS} pings lost, one each {PING_INTERVAL} s");
        assert!(lost <= MOST_LOST || !turn.is_quiet, "a guest that {what}: {lost} pings lost");
    }
}
