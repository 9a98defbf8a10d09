//! Frames per second from one virtio guest to another through a learning switch: ringway's compared
//! with Open vSwitch with DPDK and the action `NORMAL`.
//!
//! Both guests are ports of one `testpmd`, which forwards between them, so the same frames
//! circulate in both directions. Switch and guests have one core each.

mod ovs;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use ringway_rig::child::Child;

use crate::child::{is_installed, program};
use crate::options::{Options, Spans};
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
        let name = format!("virtio to virtio, both ways together, {len} B");
        let case = Case { section: SECTION, name, unit: "Mpps", better: Better::More };
        if !options.wants(&case.name) {
            continue;
        }
        if let Ok(ringway) = &ringway {
            report.measure(&case, "ringway", || {
                let dir = crate::scratch::dir()?;
                let _host = ringway.run(&description(dir.path(), switch_cpu))?;
                measure(dir.path(), guest_cpu, len, options.spans)
            });
        }
        if let Ok(programs) = &ovs {
            report.measure(&case, "ovs-dpdk", || {
                let dir = crate::scratch::dir()?;
                let _ovs = ovs::Switch::start(programs, dir.path(), SOCKETS, switch_cpu)?;
                measure(dir.path(), guest_cpu, len, options.spans)
            });
        }
    }
    Ok(())
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

/// Million frames per second that reach both guests together.
fn measure(dir: &Path, cpu: usize, len: usize, spans: Spans) -> Result<f64> {
    let mut guests = start_guests(dir, cpu)?;
    wait_until_ready(&mut guests, SOCKETS.len())?;
    let [to_first, to_second] =
        [0, 1].map(|port: usize| format!("set eth-peer {port} {}", MACS[1 - port]));
    let len = format!("set txpkts {len}");
    // Frames sent before both are connected would be lost, and no others are sent later.
    std::thread::sleep(CONNECTED);
    forward(&mut guests, &[&to_first, &to_second, "set fwd io", &len, "start tx_first 8"])?;
    std::thread::sleep(spans.warm_up);
    both(&mut guests)?;
    std::thread::sleep(spans.window);
    Ok(both(&mut guests)? / 1e6)
}

/// Time for a switch to connect to both sockets.
const CONNECTED: Duration = Duration::from_secs(2);

fn both(guests: &mut Child) -> Result<f64> {
    Ok(received(guests, 0)? + received(guests, 1)?)
}

fn start_guests(dir: &Path, cpu: usize) -> Result<Child> {
    let mut command = program("stdbuf")?;
    command.args(["-oL", testpmd::PROGRAM]);
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--no-huge", "-m", "1024", "--no-pci"]);
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
