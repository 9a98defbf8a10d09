//! The least that anything with a TAP device at each end can do: read a frame here, write it there.
//!
//! No ring, no switch, no second process: what this reaches is the ceiling of one queue that meets
//! the kernel with one system call a frame.

use std::io;
use std::thread;
use std::time::Duration;

use ringway_net::LinkSetting;
use ringway_sys::tun::{QueueMode, TunFile, TunOffload, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;
use rustix::event::{PollFd, PollFlags, poll};

use ringway_rig::child::{Child, PartError};
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, configure, inside};

/// The part that copies between TAP devices: `PID PID`, the holders of their namespaces.
pub(crate) const RELAY: &str = "relay";
const PATIENCE: Duration = Duration::from_secs(10);
const READY: &str = "ready";
/// The device at each end.
pub(crate) const DEVICE: &str = "eth0";
/// The largest frame, and what no frame fills.
const BUFFER_LEN: usize = 65_536 + 256;

/// Starts a relay between two namespaces; the devices are there and up, without addresses.
pub(crate) fn start(launcher: &Launcher, ends: [&Namespace; 2]) -> Result<Child, PartError> {
    let mut command = launcher.part(RELAY);
    command.args(ends.map(|end| end.pid().to_string()));
    let mut relay = launcher.start("relay", command)?;
    relay.wait_for(PATIENCE, |line| (line == READY).then_some(()))?;
    for end in ends {
        configure(end.pid(), |net| net.set(DEVICE, &[LinkSetting::Up]))?;
    }
    Ok(relay)
}

/// The relaying process, until it is killed: one thread a direction.
pub(crate) fn relay(pids: [&str; 2]) -> io::Result<()> {
    let [left, right] = pids.map(|pid| {
        let pid = pid.parse().map_err(|_| io::Error::other("a relay has two ends"))?;
        open_in(pid)
    });
    let (left, right) = (left?, right?);
    println!("{READY}");
    thread::scope(|scope| {
        let there = scope.spawn(|| copy(&left, &right));
        let back = copy(&right, &left);
        let there = there.join().map_err(|_| io::Error::other("the other direction panicked"))?;
        there.and(back)
    })
}

fn open_in(pid: u32) -> io::Result<TunFile> {
    inside(pid, || {
        let device = TunFile::open(DEVICE, QueueMode::Single)?;
        let offload = TunOffload { checksum: true, tso_v4: true, tso_v6: true, uso: false };
        device.set_offload(offload)?;
        Ok(device)
    })
}

fn copy(from: &TunFile, to: &TunFile) -> io::Result<()> {
    let mut header = VirtioNetHdr::default();
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        match from.read_frame(&mut header, &mut buffer)? {
            Some(len) => {
                // A frame that the other side does not take is lost, as on a wire.
                if to.write_frame(&header, &buffer[..len])? == WriteOutcome::Full {
                    wait(to, PollFlags::OUT)?;
                }
            }
            None => wait(from, PollFlags::IN)?,
        }
    }
}

fn wait(file: &TunFile, what: PollFlags) -> io::Result<()> {
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(file, what)], None))?;
    Ok(())
}
