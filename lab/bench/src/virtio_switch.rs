//! Frames per second from one virtio guest to another through a learning switch: ringway's compared
//! with Open vSwitch with DPDK and the action `NORMAL`.
//!
//! Both guests are ports of one `testpmd`, which forwards between them, so the same frames
//! circulate in both directions. Switch and guests have one core each. A switch that finds nothing
//! for a part of its time waits for the guests, and a faster one would not raise the rate: so both
//! are asked what they spend on a frame.

mod ovs;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_rig::child::Child;
use ringway_rig::host::RunningHost;

use crate::child::{is_installed, program};
use crate::options::Options;
use crate::pages::Pages;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};
use crate::ring::testpmd::{self, forward, received, wait_until_ready};

const SECTION: &str = "virtio-switch";
/// The sockets of the two guests, which create them.
const SOCKETS: [&str; 2] = ["guest0.sock", "guest1.sock"];
/// Their addresses.
const MACS: [&str; 2] = ["02:00:00:00:01:01", "02:00:00:00:01:02"];
const LENS: [usize; 2] = [64, 1500];

/// One round: every length, both switches.
pub(crate) fn round(options: &Options, report: &mut Report) -> Result<()> {
    let cpus = ringway_sys::process::allowed_cpus()?;
    let [switch_cpu, guest_cpu, ..] = cpus[..] else {
        report.skip(SECTION, "all", "two CPUs are needed: one for the switch, one for guests");
        return Ok(());
    };
    if !is_installed(testpmd::PROGRAM) {
        report.skip(SECTION, "all", &format!("apt-get install {}", testpmd::PACKAGES));
        return Ok(());
    }
    let ovs = ovs::Programs::find();
    if let Err(missing) = &ovs {
        report.skip(SECTION, "ovs-dpdk", missing);
    }
    let ringway = Ringway::find(options.ringway.as_deref());
    if let Err(missing) = &ringway {
        report.skip(SECTION, "ringway", missing);
    }
    for len in LENS {
        let cases = cases(len);
        if !options.wants(&cases[0].name) {
            continue;
        }
        if let Ok(ringway) = &ringway {
            report.measure_all(&cases, "ringway", || {
                let dir = crate::scratch::dir()?;
                let host = ringway.run(&description(dir.path(), switch_cpu))?;
                let start = Instant::now();
                measure(dir.path(), guest_cpu, len, options, || work_of_ringway(&host, start))
            });
        }
        if let Ok(programs) = &ovs {
            report.measure_all(&cases, "ovs-dpdk", || {
                let dir = crate::scratch::dir()?;
                let switch =
                    ovs::Switch::start(programs, dir.path(), SOCKETS, switch_cpu, options.pages)?;
                measure(dir.path(), guest_cpu, len, options, || switch.work())
            });
        }
    }
    Ok(())
}

fn cases(len: usize) -> [Case; 3] {
    let case = |name, unit, better| Case::new(SECTION, name, unit, better);
    [
        case(format!("virtio to virtio, both ways together, {len} B"), "Mpps", Better::More),
        case(format!("time of the switch for a frame, {len} B"), "ns", Better::Less),
        case(format!("time in which the switch finds nothing, {len} B"), "%", Better::More),
    ]
}

/// What a switch has done since its start.
#[derive(Debug, Clone, Copy)]
struct SwitchWork {
    /// Time in rounds that found frames, in any unit.
    busy: f64,
    /// All of its time, in the same unit.
    all: f64,
}

/// Its worker's time, in nanoseconds.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "few digits count")]
fn work_of_ringway(host: &RunningHost, start: Instant) -> Result<SwitchWork> {
    let busy: u64 = host.backend()?.workers.iter().map(|worker| worker.busy_ns).sum();
    Ok(SwitchWork { busy: busy as f64, all: start.elapsed().as_nanos() as f64 })
}

/// Two guests on ringway's switch, which one worker serves.
fn description(dir: &Path, cpu: usize) -> String {
    let guest = |(number, socket): (usize, &str)| {
        let path = dir.join(socket);
        format!("[[vhost]]\nname = \"vm{number}\"\nsocket = \"{}\"\nqueues = 1\n", path.display())
    };
    let guests: String = SOCKETS.into_iter().enumerate().map(guest).collect();
    format!("[host]\nnetwork = \"private\"\nworkers = 1\ncpus = [{cpu}]\n{guests}")
}

/// Million frames per second that reach both guests together, the time of the switch for each in
/// nanoseconds, and the percentage of its time in which it finds none.
fn measure(
    dir: &Path,
    cpu: usize,
    len: usize,
    options: &Options,
    work: impl Fn() -> Result<SwitchWork>,
) -> Result<Vec<f64>> {
    let mut guests = start_guests(dir, cpu, options.pages)?;
    wait_until_ready(&mut guests, SOCKETS.len())?;
    let [to_first, to_second] =
        [0, 1].map(|port: usize| format!("set eth-peer {port} {}", MACS[1 - port]));
    let len = format!("set txpkts {len}");
    // Frames sent before both are connected would be lost, and no others are sent later.
    std::thread::sleep(CONNECTED);
    forward(&mut guests, &[&to_first, &to_second, "set fwd io", &len, "start tx_first 8"])?;
    std::thread::sleep(options.spans.warm_up);
    let before = work()?;
    both(&mut guests)?;
    std::thread::sleep(options.spans.window);
    let rate = both(&mut guests)?;
    let after = work()?;
    let busy = (after.busy - before.busy) / (after.all - before.all);
    Ok(vec![rate / 1e6, 1e9 * busy / rate, 100.0 * (1.0 - busy)])
}

/// Time for a switch to connect to both sockets.
const CONNECTED: Duration = Duration::from_secs(2);

fn both(guests: &mut Child) -> Result<f64> {
    Ok(received(guests, 0)? + received(guests, 1)?)
}

fn start_guests(dir: &Path, cpu: usize, pages: Pages) -> Result<Child> {
    let mut command = program("stdbuf")?;
    command.args(["-oL", testpmd::PROGRAM]);
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--no-pci"]);
    command.args(pages.arguments(1024));
    command.arg(format!("--file-prefix=bench-guests-{}", std::process::id()));
    for (number, (socket, mac)) in SOCKETS.into_iter().zip(MACS).enumerate() {
        let path = dir.join(socket);
        command.arg("--vdev").arg(format!(
            "net_virtio_user{number},path={},server=1,queues=1,queue_size=1024,mac={mac}",
            path.display()
        ));
    }
    command.args(["--", "-i", "--nb-cores=1", "--rxd=1024", "--txd=1024", "--portlist=0,1"]);
    command.args(["--total-num-mbufs=65536", "--no-flush-rx"]);
    crate::child::start("testpmd (guests)", command)
}
