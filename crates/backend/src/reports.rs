//! What a process reports to its service manager or supervisor: readiness, the number of vifs,
//! keep-alive messages.

use std::io;

use crate::liveness::Liveness;
use crate::recipient::{Recipient, Report};

/// The last reports, and the thread that sends keep-alive messages.
pub struct Reports {
    recipient: Recipient,
    /// The watch over the threads of this process.
    pub liveness: Liveness,
    is_ready: bool,
    /// The number of vifs, and of connected ones.
    vifs: Option<(usize, usize)>,
}

impl Reports {
    /// Called by the control thread, which is watched from now on if keep-alive messages are
    /// wanted.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn start(recipient: Recipient) -> io::Result<Reports> {
        let liveness = Liveness::start(&recipient)?;
        Ok(Reports { recipient, liveness, is_ready: false, vifs: None })
    }

    /// Reports once that all existing vifs have been read, and that new ones will be.
    pub fn ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.recipient.report(Report::Ready);
        }
    }

    /// Reports that an orderly stop has begun, which may take its time: nothing is watched any
    /// more.
    pub fn stopping(&mut self) {
        self.liveness.end();
        self.recipient.report(Report::Stopping);
    }

    /// Reports how many vifs there are, and how many are connected, when that has changed.
    pub fn vifs(&mut self, (count, connected): (usize, usize)) {
        if self.vifs.replace((count, connected)) != Some((count, connected)) {
            self.recipient.report(Report::Vifs { count, connected });
        }
    }
}
