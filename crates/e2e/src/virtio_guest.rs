//! Guests behind vhost-user sockets: ringway's own, each in namespaces of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;

use crate::host::{Host, Running, SOON, describe, send};
use crate::machine::ADDRESS;
use crate::program;

/// The end that creates the socket `net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// ringway on the host.
    Backend,
    /// The guest.
    Guest,
}

/// Xen guests `a` and `b`, and virtio vifs by name and mode, each with a socket of its name.
pub fn description(dir: &Path, vhosts: &[(&str, &str)]) -> String {
    let mut text = describe("max-queues = 4", &[("a", "", "queues = 4"), ("b", "", "")]);
    for (name, mode) in vhosts {
        let socket = dir.join(name);
        text += &format!(
            "[[vhost]]\nname = \"{name}\"\nsocket = \"{}\"\nqueues = 4\nmode = \"{mode}\"\n",
            socket.display()
        );
    }
    text
}

/// A guest in its own namespaces, with an echo server on TCP port 7 and another program beside it.
pub fn guest_with(dir: &Path, name: &str, maker: Maker, beside: &str) -> Running {
    guest_at(ADDRESS, dir, name, maker, beside)
}

/// A guest as [`guest_with`] makes one, with its own address.
pub fn guest_at(address: &str, dir: &Path, name: &str, maker: Maker, beside: &str) -> Running {
    guest_of(8, address, dir, name, maker, beside)
}

/// A guest as [`guest_at`] makes one, with a number of queues, or fewer if the back-end has fewer.
pub fn guest_of(
    queues: usize,
    address: &str,
    dir: &Path,
    name: &str,
    maker: Maker,
    beside: &str,
) -> Running {
    let mode = if maker == Maker::Guest { "server" } else { "client" };
    let script = format!(
        "ip link set lo up; socat TCP-LISTEN:7,fork,reuseaddr EXEC:cat,nofork & {beside} \
         exec {} guest --vhost {} --mode {mode} --address {address}/24 --queues {queues}",
        program("ringway").display(),
        dir.join(name).display()
    );
    let mut command = Command::new("unshare");
    // Everything in a PID namespace ends with its first process.
    command.args(["--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]);
    let log = File::create(dir.join("guest-log")).expect("created");
    command.args(["sh", "-c", &script]).stdin(Stdio::null()).stderr(log);
    command.env("RINGWAY_CONFINE", "without-landlock");
    Running::start(&mut command)
}

/// Waits until the vif `vm1` has so many queues.
pub fn wait_for_queues(host: &Host, count: usize) {
    host.wait(&format!("{count} queues"), SOON, |host| {
        (host.vif("vm1")?.queues.len() == count).then_some(())
    });
}

/// A program for [`guest_with`] that does as [`Host::keep_neighbor`], and then makes a file.
pub fn keeping_neighbor(address: &str, done: &Path) -> String {
    format!(
        "(until ping -c1 -W1 {address} && ip neigh change {address} dev eth0 nud permanent; \
         do :; done; touch {}) > {0}.log 2>&1 & ",
        done.display()
    )
}

/// Kills the backend, and waits for the one in its place. Returns when it was killed.
pub fn kill_backend(host: &Host) -> Instant {
    let before = host.pid_of("backend");
    send(before, Signal::KILL);
    let killed = Instant::now();
    host.wait("another backend", SOON, |host| {
        host.members().iter().any(|it| it.name == "backend" && it.pid != before).then_some(())
    });
    killed
}
