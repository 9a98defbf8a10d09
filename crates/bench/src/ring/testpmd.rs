//! The peer: DPDK's `testpmd`, virtio-user against vhost, split rings, no hugepages.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::work::Work;
use super::{Direction, RingCase};
use crate::child::{Child, program};
use crate::options::Spans;

/// The program, from Debian's package `dpdk-dev`.
pub(crate) const PROGRAM: &str = "dpdk-testpmd";
/// The packages to install for it. The drivers are separate packages.
pub(crate) const PACKAGES: &str =
    "dpdk dpdk-dev librte-net-virtio23 librte-net-vhost23 librte-mempool-ring23";

/// Starting takes seconds: without hugepages its memory is allocated page by page.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two checks for a socket.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs one case once, and returns million frames per second at its receiver.
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
    let mut guest = Client::start(&socket, cpus[1], queues)?.process;

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
    let mpps = rate(receiver, spans)?;
    for child in [&mut guest, &mut host] {
        forward(child, &["stop", "quit"])?;
        child.wait_for(PATIENCE, |line| line.starts_with("Bye").then_some(()))?;
    }
    Ok(mpps)
}

/// The driver half alone, virtio-user, with a device behind a socket.
pub(crate) struct Client {
    process: Child,
}

impl Client {
    /// Starts it, and waits until it is ready.
    pub(crate) fn start(socket: &Path, cpu: usize, queues: usize) -> Result<Client> {
        let path = socket.display();
        let user = format!("net_virtio_user0,path={path},queues={queues},queue_size=256");
        let prefix = format!("bench-guest-{}", std::process::id());
        let mut process = start("testpmd (virtio-user)", cpu, &prefix, &user, queues)?;
        ready(&mut process)?;
        Ok(Client { process })
    }

    /// Starts its work. For bouncing, the other side sends the first frames.
    pub(crate) fn works(&mut self, work: Work, frame_len: usize) -> Result<()> {
        let forwarding = match work {
            Work::Send => "set fwd txonly",
            Work::Receive => "set fwd rxonly",
            Work::Bounce => "set fwd io",
        };
        forward(&mut self.process, &[forwarding, &format!("set txpkts {frame_len}"), "start"])
    }

    /// Million frames per second that it receives.
    pub(crate) fn rate(&mut self, spans: Spans) -> Result<f64> {
        rate(&mut self.process, spans)
    }
}

fn start(name: &str, cpu: usize, prefix: &str, device: &str, queues: usize) -> Result<Child> {
    // Into a pipe it would print in blocks of 4 KiB, which would hold back its replies.
    let mut command: Command = program("stdbuf")?;
    command.args(["-oL", PROGRAM]);
    // One core per side: the first lcore only reads commands.
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--no-huge", "-m", "1024", "--no-pci"]);
    command.args([&format!("--file-prefix={prefix}"), "--vdev", device, "--", "-i"]);
    command.args(["--nb-cores=1", &format!("--rxq={queues}"), &format!("--txq={queues}")]);
    command.args(["--rxd=256", "--txd=256", "--total-num-mbufs=65536", "--no-flush-rx"]);
    crate::child::start(name, command)
}

/// The prompt does not end its line, so a command is sent whose output does.
fn ready(child: &mut Child) -> Result<()> {
    wait_until_ready(child, 1)
}

/// The same for a number of ports.
pub(crate) fn wait_until_ready(child: &mut Child, ports: usize) -> Result<()> {
    child.say("show port summary all")?;
    let wanted = format!("Number of available ports: {ports}");
    let is_there = |line: &str| line.starts_with(&wanted).then_some(());
    Ok(child.wait_for(PATIENCE, is_there)?)
}

pub(crate) fn forward(child: &mut Child, commands: &[&str]) -> Result<()> {
    Ok(commands.iter().try_for_each(|command| child.say(command))?)
}

/// Million frames per second that its first port receives.
fn rate(child: &mut Child, spans: Spans) -> Result<f64> {
    thread::sleep(spans.warm_up);
    received(child, 0)?;
    thread::sleep(spans.window);
    Ok(received(child, 0)? / 1e6)
}

/// Frames per second that a port has received since the last query.
pub(crate) fn received(child: &mut Child, port: usize) -> Result<f64> {
    child.say(&format!("show port stats {port}"))?;
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
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
