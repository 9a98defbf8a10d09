//! A chain of three plain processes: the yardstick of a backend between two guests.
//!
//! Each guest has a process for its TAP device, with buffers of its own, and the process between
//! them copies each frame once, from the buffers of one guest to those of the other, as it must
//! where guests do not share memory. Frames of a flow that wait together are written as one. There
//! is no ring of a protocol, no switch and no check of a frame.

mod guest;
mod hop;
mod merge;
mod stage;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use ringway_control::{Link, Received};
use ringway_sys::eventfd::EventFd;
use ringway_sys::tun::TunFile;

use crate::child::ourselves;
use guest::Guest;
use hop::{Consumer, Producer};
use stage::Stage;

/// The part of this program that is the process in the middle, which starts the other two.
pub(crate) const PART: &str = "chain";
/// The part that is a guest's process.
pub(crate) const GUEST: &str = "chain-guest";

/// Forwards until this process is killed.
pub(crate) fn run(words: &[OsString]) -> Result<()> {
    ringway_lab::part::relay(words, |devices| {
        let bell = EventFd::new()?;
        let [left, right] = devices;
        let (left, right) = (Neighbour::start(&left, &bell)?, Neighbour::start(&right, &bell)?);
        let mut between = Between {
            ways: [(left.from, right.to), (right.from, left.to)],
            bells: [left.bell, right.bell],
        };
        Ok(move || stage::run(&mut between, &bell))
    })?;
    Ok(())
}

/// Runs a guest's process until it is killed with the one that started it.
pub(crate) fn run_guest(words: &[OsString]) -> Result<()> {
    ringway_rig::part::die_with_parent(words)?;
    let link = Link::new(io::stdin().as_fd().try_clone_to_owned()?);
    let Received::Message((), fds) = link.wait::<()>()? else { bail!("the chain has ended") };
    let fds: Option<[OwnedFd; 5]> = fds.try_into().ok();
    let [device, up, down, bell, backend] = fds.context("a guest gets five descriptors")?;
    let bell = EventFd::from_peer(bell)?;
    let mut guest = Guest::new(
        TunFile::from_fd(device)?,
        (Producer::new(up)?, Consumer::new(down)?),
        EventFd::from_peer(backend)?,
    );
    Ok(stage::run(&mut guest, &bell)?)
}

/// A guest's process, as the one in the middle sees it.
struct Neighbour {
    from: Consumer,
    to: Producer,
    bell: EventFd,
}

impl Neighbour {
    /// Starts it. `backend` is what wakes this process.
    fn start(device: &TunFile, backend: &EventFd) -> io::Result<Neighbour> {
        let (up, down) = (hop::memory()?, hop::memory()?);
        let bell = EventFd::new()?;
        let (link, theirs) = Link::pair()?;
        let mut command = ourselves(GUEST).map_err(io::Error::other)?;
        command.stdin(Stdio::from(theirs)).spawn()?;
        let fds = [device.as_fd(), up.as_fd(), down.as_fd(), bell.as_fd(), backend.as_fd()];
        link.send(&(), &fds)?;
        Ok(Neighbour { from: Consumer::new(&up)?, to: Producer::new(&down)?, bell })
    }
}

/// The process in the middle.
struct Between {
    /// From the first guest to the second, and back.
    ways: [(Consumer, Producer); 2],
    /// What wakes the guests.
    bells: [EventFd; 2],
}

impl Stage for Between {
    fn round(&mut self, _is_idle: bool) -> io::Result<bool> {
        let [first, second] = &self.bells;
        let [there, back] = &mut self.ways;
        Ok(copy(there, first, second)? | copy(back, second, first)?)
    }

    fn arm(&mut self) -> bool {
        for (from, to) in &mut self.ways {
            from.await_frames();
            if to.room() == 0 {
                to.await_room();
            }
        }
        !self.ways.iter_mut().any(|(from, to)| from.waiting() > 0 && to.room() > 0)
    }

    fn device(&self) -> Option<&TunFile> {
        None
    }
}

/// Copies the frames of one guest to the other, as far as that has room. False if there were none.
fn copy(
    (from, to): &mut (Consumer, Producer),
    sender: &EventFd,
    receiver: &EventFd,
) -> io::Result<bool> {
    let count = from.waiting().min(to.room());
    for _ in 0..count {
        let frame = from.frame(0);
        to.fill(|pages, (at, _)| {
            from.pages().copy_across(frame.at, pages, at, frame.len);
            Ok(Some((frame.header, frame.len)))
        })?;
        if from.release(1) {
            sender.signal()?;
        }
    }
    if to.publish() {
        receiver.signal()?;
    }
    Ok(count > 0)
}
