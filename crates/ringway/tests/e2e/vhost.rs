//! Guests behind vhost-user sockets: stock QEMU, whose firmware asks for an address by the network.
//! It drives the first pair of queues and sends frames, so no system in the guest is needed.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::host::{Host, Running, SOON, describe, send};

const QEMU: &str = "qemu-system-x86_64";

/// A virtual machine that makes its socket in `dir`.
fn machine(dir: &Path) -> Running {
    let chardev = format!("socket,id=c,path={}/net,server=on", dir.display());
    let mut command = Command::new(QEMU);
    command.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-boot", "n", "-m", "64"]);
    command.args(["-machine", "q35,memory-backend=m"]);
    command.args(["-object", "memory-backend-memfd,id=m,size=64M,share=on"]);
    command.args(["-chardev", &chardev, "-netdev", "vhost-user,id=n,chardev=c,queues=2"]);
    command.args(["-device", "virtio-net-pci,netdev=n,mq=on,vectors=0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running::start(&mut command)
}

fn tx_packets(host: &Host) -> u64 {
    let vif = host.vif("vm1");
    vif.map_or(0, |vif| vif.queues.iter().map(|queue| queue.tx_packets).sum())
}

#[test]
fn a_virtual_machine_sends_frames_and_goes_on_when_the_backend_is_killed() {
    let Some(_turn) = crate::turn(&[QEMU]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let description = describe("", &[("a", "", "")])
        + &format!(
            "[[vhost]]\nname = \"vm1\"\nsocket = \"{}/net\"\nqueues = 2\n",
            place.path().display()
        );
    let host = Host::start(&description);
    let waiting = host.vif("vm1").expect("it is listed");
    assert_eq!((waiting.kind.as_str(), waiting.state.as_str()), ("virtio", "Waiting"));
    let reason = waiting.error.expect("there is no socket");
    assert!(reason.contains("the front-end has to make it"), "{reason}");
    let _machine = machine(place.path());
    let sends = |host: &Host| (tx_packets(host) > 0).then_some(());
    host.wait("frames of the virtual machine", 6 * SOON, sends);
    let shown = host.text(&["vif", "show", "vm1"]);
    assert!(shown.contains("version_1"), "{shown}");
    assert!(host.text(&["vif", "list"]).contains("virtio"));
    let list = host.verb(&["vif", "set", "vm1", "rate", "100Mb/s"]);
    assert!(list.status.success(), "{list:?}");
    let before = host.pid_of("backend");
    send(before, Signal::KILL);
    host.wait("another backend", SOON, |host| {
        host.members().iter().any(|it| it.name == "backend" && it.pid != before).then_some(())
    });
    host.wait("frames after that", 6 * SOON, sends);
}
