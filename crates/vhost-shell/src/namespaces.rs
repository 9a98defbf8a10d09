//! The devices in network namespaces that an opener passes on: another process makes them.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringway_control::{AttacherEvent, AttacherOrder, DeviceWanted, Link, OpenerEvent, Received};

/// Messages of the attacher that are handled in one turn.
const EVENTS_MAX: usize = 256; // not a limit: a batch, the rest follows
/// Why there is no device on a host without an attacher.
const WITHOUT: &str = "this host began without a [[namespace]], and has no process that may enter \
                       one: restart the host";

/// Devices in network namespaces, by the names of their vifs.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    /// The attacher, if the host has one.
    link: Option<Link>,
    names: BTreeSet<String>,
    unsent: VecDeque<AttacherOrder>,
}

impl Namespaces {
    /// Those that the attacher at the other end of a link makes.
    pub(crate) fn made_by(link: Option<Link>) -> Namespaces {
        Namespaces { link, ..Namespaces::default() }
    }

    /// Orders the device of a new vif. Returns why it will have none, if so.
    pub(crate) fn add(&mut self, name: &str, device: DeviceWanted) -> Option<OpenerEvent> {
        let name = name.to_owned();
        self.names.insert(name.clone());
        if self.link.is_none() {
            let reason = WITHOUT.to_owned();
            let (is_failure, is_absence) = (false, false);
            return Some(OpenerEvent::Waiting { name, reason, is_failure, is_absence });
        }
        self.unsent.push_back(AttacherOrder::Attach { name, device });
        None
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The backend has lost the queues of a device, if the vif has one.
    pub(crate) fn lost(&mut self, name: &str) {
        if self.has(name) {
            self.unsent.push_back(AttacherOrder::Again { name: name.to_owned() });
        }
    }

    /// Has a device removed, if the vif has one.
    pub(crate) fn remove(&mut self, name: &str) {
        if self.names.remove(name) {
            self.unsent.push_back(AttacherOrder::Detach { name: name.to_owned() });
        }
    }

    /// What the attacher has reported, for the backend.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn news(&self) -> io::Result<Vec<(OpenerEvent, Vec<OwnedFd>)>> {
        let mut news = Vec::new();
        let Some(link) = &self.link else { return Ok(news) };
        for _ in 0..EVENTS_MAX {
            let (event, files) = match link.receive()? {
                Received::Nothing => break,
                Received::End => return Err(ended()),
                Received::Message(event, files) => (event, files),
            };
            // A vif may have been removed meanwhile.
            match event {
                AttacherEvent::Made { name } if self.has(&name) => {
                    news.push((OpenerEvent::Connected { name }, files));
                }
                AttacherEvent::Waiting { name, reason, is_absence } if self.has(&name) => {
                    // Its session logs that within limits: others in the namespace may cause it.
                    let is_failure = false;
                    let waits = OpenerEvent::Waiting { name, reason, is_failure, is_absence };
                    news.push((waits, Vec::new()));
                }
                AttacherEvent::Made { .. } | AttacherEvent::Waiting { .. } => {}
            }
        }
        Ok(news)
    }

    /// Sends what was ordered; returns whether there was no room for all of it.
    ///
    /// # Errors
    /// The attacher has ended.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let Some(link) = &self.link else {
            self.unsent.clear();
            return Ok(false);
        };
        while let Some(order) = self.unsent.front() {
            match link.send(order, &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(ended()),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(Link::as_fd)
    }
}

fn ended() -> io::Error {
    io::Error::other("the process that makes devices in network namespaces has ended")
}
