//! A virtual machine that moves from one QEMU to another while it exchanges data.
//!
//! Both are front-ends of one host here, each with a vif and a socket of its own. Whatever our
//! device writes into the guest's memory while QEMU copies it must be in the dirty log of both.
//! Otherwise the guest's connection, whose bytes are compared, would read stale pages after the
//! move.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use crate::host::{Host, Running, SOON, describe, wait_for};
use crate::machine::{ADDRESS, EchoConnection, Image, Machine, QEMU, wait_for_file};

/// The number of pings, and the time between them: QEMU takes some seconds to move an emulated
/// machine.
const PINGS: &str = "1500";
const PING_INTERVAL: &str = "0.01";

fn description(dir: &Path, features: &str) -> String {
    let mut text = describe("max-queues = 4", &[("a", "", "queues = 4")]);
    for name in ["vm1", "vm2"] {
        text += &format!(
            "[[vhost]]\nname = \"{name}\"\nsocket = \"{}\"\nqueues = 4\nfeatures = [{features}]\n",
            dir.join(name).display()
        );
    }
    text
}

/// The end of the socket that the machine creates.
fn chardev(dir: &Path, name: &str) -> String {
    format!("socket,id=c,path={},server=on", dir.join(name).display())
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
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, features));
    let monitor = format!("unix:{},server=on,wait=off", dir.join("monitor").display());
    let source = dir.join("source");
    std::fs::create_dir(&source).expect("it is new");
    let more = ["-monitor", &monitor];
    let mut machine = Machine::start_with(image, &source, &chardev(dir, "vm1"), &more);
    machine.booted();
    let channel = format!("unix:{}", dir.join("channel").display());
    let postcopy = dir.join("target-monitor");
    let target_monitor = format!("unix:{},server=on,wait=off", postcopy.display());
    let more = ["-incoming", &channel, "-monitor", &target_monitor];
    let mut target = Machine::start_with(image, dir, &chardev(dir, "vm2"), &more);
    wait_for_file(&dir.join("channel"));
    // Loading memory after the guest has started, which QEMU requests of the back-end.
    let mut target_monitor = UnixStream::connect(&postcopy).expect("QEMU has made it");
    target_monitor.set_read_timeout(Some(SOON)).expect("our own socket");
    let refused = ask(&mut target_monitor, "migrate_set_capability postcopy-ram on");
    assert!(refused.contains("vhost-user backend not capable of postcopy"), "{refused}");
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "before it moves");
    let mut ping =
        host.in_guest("a", &["ping", "-n", "-q", "-i", PING_INTERVAL, "-c", PINGS, ADDRESS]);
    let mut ping = Running::start(ping.stdout(Stdio::piped()));

    let mut monitor = UnixStream::connect(dir.join("monitor")).expect("QEMU has made it");
    monitor.set_read_timeout(Some(SOON)).expect("our own socket");
    ask(&mut monitor, &format!("migrate -d {channel}"));
    wait_for("the machine to have moved", 12 * SOON, || {
        let status = ask(&mut monitor, "info migrate");
        assert!(!status.contains("Migration status: failed"), "{status}\n{}", host.log());
        status.contains("Migration status: completed").then_some(())
    });
    host.wait("the machine at its new place", 3 * SOON, |host| {
        let count = |name| host.vif(name).map_or(0, |vif| vif.queues.len());
        (count("vm1") == 0 && count("vm2") > 0).then_some(())
    });
    machine.kill();
    echo.expect_progress(&host, "after it has moved");
    target.run("ethtool -L eth0 combined 4");
    echo.expect_progress(&host, "with queues that it has changed");
    ping.wait("the pings", 12 * SOON);
    let mut said = String::new();
    let stdout = ping.0.stdout.as_mut().expect("it was piped");
    stdout.read_to_string(&mut said).expect("text");
    let received = || said.split_once(" received")?.0.rsplit_once(' ')?.1.parse::<u32>().ok();
    PINGS.parse::<u32>().expect("a number") - received().expect(&said)
}

#[test]
fn a_migrated_machine_keeps_its_connections_with_or_without_an_announcement() {
    // Two boots of an emulated machine for each of two guests take minutes.
    if std::env::var_os("RINGWAY_TEST_MIGRATION").is_none() {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: migration takes minutes: make virtio-migrate");
        return;
    }
    let Some(_turn) = crate::turn(&[QEMU, "socat", "ping"]) else { return };
    let Some(image) = Image::make() else { return };
    for (what, features) in [("announces itself", ""), ("is announced", "\"-guest_announce\"")] {
        let lost = move_machine(&image, features);
        println!("a guest that {what}: {lost} of {PINGS} pings lost, one each {PING_INTERVAL} s");
    }
}
