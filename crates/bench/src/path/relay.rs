//! The least that anything with a TAP device at each end can do: read a frame here, write it there.
//!
//! No ring, no switch, no second process: what this reaches is the ceiling of one queue that meets
//! the kernel with one system call a frame.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ringway_sys::tun::{QueueMode, TunFile, TunOffload, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;
use rustix::event::{PollFd, PollFlags, poll};

use super::namespaces::Namespace;
use super::{OpenPath, Path};
use crate::child::{Child, ourselves};

/// The verb of the relaying process: `PID PID`, the holders of the two namespaces.
pub(crate) const RELAY_VERB: &str = "relay";
const PATIENCE: Duration = Duration::from_secs(10);
const READY: &str = "ready";
const DEVICE: &str = "eth0";
/// The largest frame, and what no frame fills.
const BUFFER_LEN: usize = 65_536 + 256;

/// TAP to TAP.
pub(crate) struct Relay;

struct Open {
    ends: [Namespace; 2],
    _relay: Child,
}

impl Path for Relay {
    fn name(&self) -> &'static str {
        "tap relay"
    }

    fn open(&self) -> Result<Box<dyn OpenPath>> {
        let ends = [Namespace::new()?, Namespace::new()?];
        let mut command = ourselves(RELAY_VERB)?;
        command.args(ends.each_ref().map(|end| end.pid().to_string()));
        let mut relay = Child::start("relay", command)?;
        relay.wait_for(PATIENCE, |line| (line == READY).then_some(()))?;
        for (end, namespace) in ends.iter().enumerate() {
            namespace.address(DEVICE, end)?;
        }
        Ok(Box::new(Open { ends, _relay: relay }))
    }
}

impl OpenPath for Open {
    fn pid(&self, end: usize) -> u32 {
        self.ends[end].pid()
    }
}

/// The relaying process, until it is killed: one thread a direction.
pub(crate) fn relay(pids: &[&str]) -> Result<()> {
    let [left, right] = pids[..] else { anyhow::bail!("a relay has two ends") };
    let (left, right) = (open_in(left.parse()?)?, open_in(right.parse()?)?);
    println!("{READY}");
    let ended = thread::scope(|scope| {
        let there = scope.spawn(|| copy(&left, &right));
        let back = copy(&right, &left);
        there.join().ok().context("the other direction panicked").and_then(|there| there.and(back))
    });
    ended.context("relay")
}

fn open_in(pid: u32) -> Result<TunFile> {
    let open = || {
        ringway_sys::namespace::enter(pid)?;
        let device = TunFile::open(DEVICE, QueueMode::Single)?;
        device.set_offload(TunOffload { checksum: true, tso_v4: true, tso_v6: true })?;
        Ok::<_, std::io::Error>(device)
    };
    let opened = thread::scope(|scope| scope.spawn(open).join());
    opened.ok().context("opening a TAP device panicked")?.context("open a TAP device")
}

fn copy(from: &TunFile, to: &TunFile) -> Result<()> {
    let mut header = VirtioNetHdr::default();
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        match from.read_frame(&mut header, &mut buffer)? {
            // What the other side does not take is lost, as on a wire.
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

fn wait(file: &TunFile, what: PollFlags) -> Result<()> {
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(file, what)], None))?;
    Ok(())
}
