//! Guests behind vhost-user sockets: stock QEMU with Debian's kernel.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;

use crate::host::{Host, SOON, describe, send};
use crate::machine::{ADDRESS, EchoConnection, Image, Machine, QEMU, wait_for_file};

/// A guest `a` with vif `vif1.0`, and a directory for a virtual machine.
fn description(dir: &Path, mode: &str) -> String {
    description_with(dir, mode, "", "")
}

/// The same, with further keys for the vif of `a` and for that of the machine.
fn description_with(dir: &Path, mode: &str, of_a: &str, of_machine: &str) -> String {
    let socket = dir.join("net");
    let vhost = format!(
        "[[vhost]]\nname = \"vm1\"\nsocket = \"{}\"\nqueues = 4\nmode = \"{mode}\"\n{of_machine}\n",
        socket.display()
    );
    describe("max-queues = 4", &[("a", "", &format!("queues = 4\n{of_a}"))]) + &vhost
}

pub(crate) fn wait_for_queues(host: &Host, count: usize) {
    host.wait(&format!("{count} queues"), SOON, |host| {
        (host.vif("vm1")?.queues.len() == count).then_some(())
    });
}

pub(crate) fn kill_backend(host: &Host) {
    let before = host.pid_of("backend");
    send(before, Signal::KILL);
    host.wait("another backend", SOON, |host| {
        host.members().iter().any(|it| it.name == "backend" && it.pid != before).then_some(())
    });
}

#[test]
fn a_virtual_machine_changes_its_queues_and_keeps_its_connections_when_the_backend_is_killed() {
    let Some(_turn) = crate::turn(&[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&description(place.path(), "client"));
    let waiting = host.vif("vm1").expect("it is listed");
    assert_eq!((waiting.kind.as_str(), waiting.state.as_str()), ("virtio", "Waiting"));
    let reason = waiting.error.expect("there is no socket");
    assert!(reason.contains("the front-end must create it"), "{reason}");
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let mut machine = Machine::start(&image, place.path(), &chardev);
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "two queues");
    let shown = host.text(&["vif", "show", "vm1"]);
    assert!(shown.contains("version_1") && shown.contains("mrg_rxbuf"), "{shown}");
    let channels = machine.run("ethtool -l eth0");
    assert_eq!(channels.matches("Combined:\t4").count(), 1, "{channels}");
    for count in [1, 2, 4] {
        machine.run(&format!("ethtool -L eth0 combined {count}"));
        wait_for_queues(&host, count);
        echo.expect_progress(&host, &format!("{count} queues"));
    }
    kill_backend(&host);
    echo.expect_progress(&host, "after the backend was killed");
    wait_for_queues(&host, 4);
    machine.run("ethtool -L eth0 combined 2");
    wait_for_queues(&host, 2);
    echo.expect_progress(&host, "two queues of another backend");
    machine.kill();
    let gone = host.wait("the machine to be gone", SOON, |host| {
        host.vif("vm1").filter(|vif| vif.state == "Waiting" && vif.queues.is_empty())
    });
    assert!(gone.error.is_some(), "{gone:?}");
}

/// A process' open descriptors, and its mappings of machines' memory.
fn held(pid: u32) -> (usize, usize) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    (files, maps.lines().filter(|line| line.contains("memory-backend-memfd")).count())
}

#[test]
fn a_virtual_machine_that_is_reset_loses_its_socket_and_is_killed_leaves_nothing_behind() {
    let Some(_turn) = crate::turn(&[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, "client"));
    let backend = host.pid_of("backend");
    let before = held(backend);
    assert_eq!(before.1, 0);
    let chardev = format!("socket,id=c,path={}/net,server=on", dir.display());
    let monitor = format!("unix:{},server=on,wait=off", dir.join("monitor").display());
    let more = ["-action", "reboot=reset", "-monitor", &monitor];
    let mut machine = Machine::start_with(&image, dir, &chardev, &more);
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "before a reset");
    assert!(held(backend).1 > 0);
    drop(echo);

    let mut monitor = UnixStream::connect(dir.join("monitor")).expect("QEMU has made it");
    writeln!(monitor, "system_reset").expect("QEMU runs");
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "after a reset");
    // The path no longer works, but the connection stays.
    std::fs::remove_file(dir.join("net")).expect("it was there");
    echo.expect_progress(&host, "without its socket");

    machine.kill();
    let gone = host.wait("the machine to be gone", SOON, |host| {
        let vif = host.vif("vm1").filter(|vif| vif.state == "Waiting" && vif.queues.is_empty())?;
        // The opener notices a moment later that there is no socket.
        vif.error.filter(|reason| reason.contains("the front-end must create it"))
    });
    println!("{gone}");
    host.wait("all of it to be released", SOON, |_| (held(backend) == before).then_some(()));
}

#[test]
fn a_virtual_machine_that_starts_first_retries_the_socket_of_the_backend() {
    let Some(_turn) = crate::turn(&[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let chardev = format!("socket,id=c,path={}/net,reconnect=1", place.path().display());
    let mut machine = Machine::start(&image, place.path(), &chardev);
    let host = Host::start(&description(place.path(), "server"));
    wait_for_file(&place.path().join("net"));
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "two queues");
    kill_backend(&host);
    echo.expect_progress(&host, "after the backend was killed");
}

#[test]
fn linux_exchanges_tagged_frames_with_an_access_port() {
    let Some(_turn) = crate::turn(&[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let description = description_with(place.path(), "client", "vlan = 5", "trunk = [5]");
    let host = Host::start(&description);
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let mut machine = Machine::start(&image, place.path(), &chardev);
    machine.booted();
    let (own, other) = (vlan(5, &format!("{ADDRESS}/24")), vlan(6, "10.78.0.9/24"));
    machine.run(&format!("ip address flush dev eth0; {own} && {other}"));
    // TCP segments that the kernel does not cut have a tag before their headers.
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "with tags at one end");
    let refused = |host: &Host| host.vif("vm1")?.refused.get("vlan").copied();
    let before = refused(&host).unwrap_or(0);
    machine.run("ping -c 3 -W 1 10.78.0.1 || true");
    host.wait("a frame of another VLAN to be refused", SOON, |host| {
        refused(host).filter(|count| *count > before)
    });
    echo.expect_progress(&host, "beside another VLAN");
}

/// Commands that create a VLAN interface on `eth0`.
fn vlan(id: u16, address: &str) -> String {
    let name = format!("eth0.{id}");
    format!(
        "ip link add link eth0 name {name} type vlan id {id} && \
         ip address add {address} dev {name} && ip link set {name} up"
    )
}
