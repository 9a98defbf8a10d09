//! The peer: DPDK's `testpmd`, virtio-user against vhost, split rings.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::work::Work;
use super::{Direction, RingCase};
use crate::child::{Child, program};
use crate::options::{Options, Spans};
use crate::pages::Pages;

/// The program, from Debian's package `dpdk-dev`.
pub(crate) const PROGRAM: &str = "dpdk-testpmd";
/// The packages to install for it. The drivers are separate packages.
pub(crate) const PACKAGES: &str =
    "dpdk dpdk-dev librte-net-virtio23 librte-net-vhost23 librte-net-null23 librte-mempool-ring23";

/// Starting takes seconds: without hugepages its memory is allocated page by page.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two checks for a socket.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What a guest that sends does with its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It writes the headers of each.
    Headers,
    /// It copies each, as a frontend does whose frames come from a TAP device: it forwards them
    /// from DPDK's null device, which copies from a buffer of its own.
    ///
    /// A guest that receives cannot copy like this: the null device sends if it copies.
    Copies,
}

/// Whether the driver of the null device is installed, for [`Sending::Copies`].
pub(crate) fn has_null_device() -> bool {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let is_driver = |file: std::fs::DirEntry| {
        file.file_name().to_string_lossy().starts_with("librte_net_null.so.")
    };
    let files = folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten();
    files.flatten().any(is_driver)
}

/// Runs one case once, and returns million frames per second at its receiver.
pub(crate) fn run(
    case: RingCase,
    sending: Sending,
    cpus: [usize; 2],
    options: &Options,
) -> Result<f64> {
    let mut pair = Pair::start(case, sending, cpus, options.pages)?;
    let mpps = rate(pair.receiver(case.direction), options.spans)?;
    pair.end()?;
    Ok(mpps)
}

/// Runs one case once in which the host receives, and returns what its work costs.
pub(crate) fn cost(case: RingCase, cpus: [usize; 2], options: &Options) -> Result<Cost> {
    let spans = options.spans;
    let mut pair = Pair::start(case, Sending::Headers, cpus, options.pages)?;
    pair.host.say("set record-core-cycles on")?;
    thread::sleep(spans.warm_up);
    pair.host.say("clear fwd stats all")?;
    let start = Instant::now();
    thread::sleep(spans.window);
    pair.host.say("show fwd stats all")?;
    let cost = pair.host.wait_for(PATIENCE, |line| Cost::parse(line, start.elapsed()))?;
    pair.end()?;
    Ok(cost)
}

/// What a device that receives spends on its work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Nanoseconds for a frame, in rounds that find frames.
    pub(crate) frame_ns: f64,
    /// The share of the time that other rounds take.
    pub(crate) idle: f64,
}

impl Cost {
    /// Reads `testpmd`'s line about a span: the cycles of rounds that found packets.
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "few digits count")]
    fn parse(line: &str, span: Duration) -> Option<Cost> {
        let rest = line.trim().strip_prefix("CPU cycles/packet=")?;
        let number = |key: &str| -> Option<u64> {
            let (_, rest) = rest.split_once(key)?;
            rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
        };
        let (cycles, packets) = (number("total cycles=")?, number("packets=")?);
        let seconds = cycles as f64 / (number(" at ")? as f64 * 1e6);
        Some(Cost::new(packets, seconds, span.as_secs_f64()))
    }

    /// Frames in a number of seconds, of which some were busy.
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "few digits count")]
    pub(crate) fn new(frames: u64, busy_seconds: f64, seconds: f64) -> Cost {
        Cost { frame_ns: busy_seconds * 1e9 / frames as f64, idle: 1.0 - busy_seconds / seconds }
    }
}

/// Both programs, while they forward frames.
struct Pair {
    host: Child,
    guest: Child,
}

impl Pair {
    fn start(case: RingCase, sending: Sending, cpus: [usize; 2], pages: Pages) -> Result<Pair> {
        let dir = crate::scratch::dir()?;
        let socket = dir.path().join("vhost.sock");
        let path = socket.display();
        let queues = case.queues;
        let prefix = format!("bench-host-{}", std::process::id());
        let vhost = format!("net_vhost0,iface={path},queues={queues}");
        let mut host = start("testpmd (vhost)", cpus[0], pages, &prefix, &[vhost], queues)?;
        wait_for_file(&socket)?;
        wait_until_ready(&mut host, 1)?;
        let (null_device, forwarding) = match sending {
            Sending::Headers => (None, "set fwd txonly"),
            Sending::Copies => {
                (Some(format!("net_null0,size={},copy=1", case.frame_len)), "set fwd io")
            }
        };
        let mut guest = Client::start_with(&socket, cpus[1], pages, queues, null_device)?.process;
        let len = format!("set txpkts {}", case.frame_len);
        match case.direction {
            Direction::GuestToHost => {
                forward(&mut host, &["set fwd rxonly", "start"])?;
                forward(&mut guest, &[forwarding, &len, "start"])?;
            }
            Direction::HostToGuest => {
                forward(&mut guest, &["set fwd rxonly", "start"])?;
                forward(&mut host, &["set fwd txonly", &len, "start"])?;
            }
            Direction::Loop => {
                forward(&mut guest, &["set fwd io", "start"])?;
                forward(&mut host, &["set fwd io", &len, "start tx_first 8"])?;
            }
        }
        Ok(Pair { host, guest })
    }

    fn receiver(&mut self, direction: Direction) -> &mut Child {
        match direction {
            Direction::GuestToHost | Direction::Loop => &mut self.host,
            Direction::HostToGuest => &mut self.guest,
        }
    }

    fn end(self) -> Result<()> {
        for mut child in [self.guest, self.host] {
            forward(&mut child, &["stop", "quit"])?;
            child.wait_for(PATIENCE, |line| line.starts_with("Bye").then_some(()))?;
        }
        Ok(())
    }
}

/// The driver half alone, virtio-user, with a device behind a socket.
pub(crate) struct Client {
    process: Child,
}

impl Client {
    /// Starts it, and waits until it is ready.
    pub(crate) fn start(socket: &Path, cpu: usize, pages: Pages, queues: usize) -> Result<Client> {
        Client::start_with(socket, cpu, pages, queues, None)
    }

    /// Starts it with another device, whose frames it may forward, and waits until it is ready.
    fn start_with(
        socket: &Path,
        cpu: usize,
        pages: Pages,
        queues: usize,
        source: Option<String>,
    ) -> Result<Client> {
        let path = socket.display();
        let user = format!("net_virtio_user0,path={path},queues={queues},queue_size=256");
        let prefix = format!("bench-guest-{}", std::process::id());
        let devices: Vec<String> = [user].into_iter().chain(source).collect();
        let mut process = start("testpmd (virtio-user)", cpu, pages, &prefix, &devices, queues)?;
        wait_until_ready(&mut process, devices.len())?;
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

fn start(
    name: &str,
    cpu: usize,
    pages: Pages,
    prefix: &str,
    devices: &[String],
    queues: usize,
) -> Result<Child> {
    // Into a pipe it would print in blocks of 4 KiB, which would hold back its replies.
    let mut command: Command = program("stdbuf")?;
    command.args(["-oL", PROGRAM]);
    // One core per side: the first lcore only reads commands.
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--no-pci"]);
    command.args(pages.arguments(1024));
    command.arg(format!("--file-prefix={prefix}"));
    for device in devices {
        command.args(["--vdev", device]);
    }
    command.args([
        "--",
        "-i",
        "--nb-cores=1",
        &format!("--rxq={queues}"),
        &format!("--txq={queues}"),
    ]);
    command.args(["--rxd=256", "--txd=256", "--total-num-mbufs=65536", "--no-flush-rx"]);
    crate::child::start(name, command)
}

/// Waits until it has a number of ports. The prompt does not end its line, so a command is sent
/// whose output does.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_testpmd_says_of_its_cycles_is_time() {
        let line = "  CPU cycles/packet=50.00 (total cycles=1000000000 / \
                    total RX packets=20000000) at 2000 MHz Clock";
        let cost = Cost::parse(line, Duration::from_secs(1)).expect("as DPDK 22.11 prints it");
        assert_eq!(cost, Cost { frame_ns: 25.0, idle: 0.5 });
        assert_eq!(Cost::parse("  RX-packets: 1", Duration::from_secs(1)), None);
    }
}
