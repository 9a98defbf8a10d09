//! The peer: DPDK's `testpmd`, virtio-user against vhost, split rings, no hugepages.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Direction, RingCase};
use crate::child::{Child, program};
use crate::options::Spans;

/// The program, which Debian has in the package `dpdk-dev`.
pub(crate) const PROGRAM: &str = "dpdk-testpmd";
/// What to install for it. The drivers are packages of their own.
pub(crate) const PACKAGES: &str =
    "dpdk dpdk-dev librte-net-virtio23 librte-net-vhost23 librte-mempool-ring23";

/// Starting takes seconds: without hugepages its memory is made page by page.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks for a socket.
const LOOK: Duration = Duration::from_millis(50);

/// Runs one case once, and returns million frames a second at its receiver.
pub(crate) fn run(case: RingCase, cpus: [usize; 2], spans: Spans) -> Result<f64> {
    let dir = crate::scratch::dir()?;
    let socket = dir.path().join("vhost.sock");
    let path = socket.display();
    let queues = case.queues;
    let tag = std::process::id();

    let vhost = format!("net_vhost0,iface={path},queues={queues}");
    let mut host = start("testpmd (vhost)", cpus[0], &format!("bench-host-{tag}"), &vhost, queues)?;
    wait_for_file(&socket)?;
    ready(&mut host)?;
    let user = format!("net_virtio_user0,path={path},queues={queues},queue_size=256");
    let prefix = format!("bench-guest-{tag}");
    let mut guest = start("testpmd (virtio-user)", cpus[1], &prefix, &user, queues)?;
    ready(&mut guest)?;

    let len = format!("set txpkts {}", case.frame_len);
    let receiver = match case.direction {
        Direction::GuestToHost => {
            forward(&mut host, &["set fwd rxonly", "start"])?;
            forward(&mut guest, &["set fwd txonly", &len, "start"])?;
            &mut host
        }
        Direction::HostToGuest => {
            forward(&mut guest, &["set fwd rxonly", "start"])?;
            forward(&mut host, &["set fwd txonly", &len, "start"])?;
            &mut guest
        }
        Direction::Loop => {
            forward(&mut guest, &["set fwd io", "start"])?;
            forward(&mut host, &["set fwd io", &len, "start tx_first 8"])?;
            &mut host
        }
    };
    thread::sleep(spans.warm_up);
    rate(receiver)?;
    thread::sleep(spans.window);
    let frames_per_second = rate(receiver)?;
    for child in [&mut guest, &mut host] {
        forward(child, &["stop", "quit"])?;
        child.wait_for(PATIENCE, |line| line.starts_with("Bye").then_some(()))?;
    }
    Ok(frames_per_second / 1e6)
}

fn start(name: &str, cpu: usize, prefix: &str, device: &str, queues: usize) -> Result<Child> {
    // Into a pipe it would print in blocks of 4 KiB, so its replies would not come.
    let mut command: Command = program("stdbuf")?;
    command.args(["-oL", PROGRAM]);
    // One core a side: the first lcore only reads commands.
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--no-huge", "-m", "1024", "--no-pci"]);
    command.args([&format!("--file-prefix={prefix}"), "--vdev", device, "--", "-i"]);
    command.args(["--nb-cores=1", &format!("--rxq={queues}"), &format!("--txq={queues}")]);
    command.args(["--rxd=256", "--txd=256", "--total-num-mbufs=65536", "--no-flush-rx"]);
    crate::child::start(name, command)
}

/// The prompt has no line of its own, so a command is sent whose output has one.
fn ready(child: &mut Child) -> Result<()> {
    child.say("show port summary all")?;
    let is_there = |line: &str| line.starts_with("Number of available ports: 1").then_some(());
    Ok(child.wait_for(PATIENCE, is_there)?)
}

fn forward(child: &mut Child, commands: &[&str]) -> Result<()> {
    Ok(commands.iter().try_for_each(|command| child.say(command))?)
}

/// Frames a second since the last question.
fn rate(child: &mut Child) -> Result<f64> {
    child.say("show port stats 0")?;
    let rate = child.wait_for(PATIENCE, |line| {
        line.trim().strip_prefix("Rx-pps:")?.split_whitespace().next()?.parse().ok()
    })?;
    Ok(rate)
}

fn wait_for_file(file: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        let is_late = Instant::now() > deadline;
        (!is_late).then_some(()).with_context(|| format!("{} did not appear", file.display()))?;
        thread::sleep(LOOK);
    }
    Ok(())
}
