//! A description that is read again while its host runs: this process reads it, and the opener has
//! the backend take it over. A backend that ends meanwhile leaves that to its successor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_control::{OpenerRequest, RunDir};
use ringway_sys::hangup::Hangup;
use ringway_sys::wake::WakeFd;

use super::accepted::{Accepted, Keep, log_refusal};
use super::bridges::Bridges;
use super::claim::Claim;
use super::isolation::{Isolation, ask_within};
use super::notices::Notices;
use crate::description::{self, Host, Origin};

/// How long the opener may take.
const CHANGE_MAX: Duration = Duration::from_secs(60);
/// The pause before it is asked again, if it has ended.
const RETRY: Duration = Duration::from_millis(100);

/// What is to be read again, and what was.
pub(super) struct Reloads<'a> {
    hangup: &'a Hangup,
    origin: Origin,
    kept: Accepted,
    /// The opener's socket.
    opener: PathBuf,
    outcomes: (Sender<io::Result<()>>, Receiver<io::Result<()>>),
    bell: Arc<WakeFd>,
    is_wanted: bool,
    pending: Option<Pending>,
}

/// A description without faults.
struct Pending {
    host: Host,
    keep: Keep,
    /// When to ask the opener; `None` while it is asked.
    due: Option<Instant>,
}

/// What became of a description.
enum Outcome {
    /// It is in force.
    InForce(Box<Host>, Keep),
    /// It is wrong, and nothing has changed.
    Refused,
}

impl<'a> Reloads<'a> {
    /// Reads the description of a host in this run directory again, if it came from a file, each
    /// time that a signal asks for it.
    pub(super) fn on(
        hangup: Option<&'a Hangup>,
        host: &Host,
        dir: &RunDir,
    ) -> Result<Option<Self>> {
        let (Some(hangup), Some(origin)) = (hangup, host.origin.clone()) else { return Ok(None) };
        let kept = Accepted::of(&origin.file, dir.path())?;
        let (outcomes, bell) = (mpsc::channel(), Arc::new(WakeFd::new()?));
        let (opener, is_wanted, pending) = (dir.opener(), false, None);
        Ok(Some(Reloads { hangup, origin, kept, opener, outcomes, bell, is_wanted, pending }))
    }

    /// Does what there is to do, once the host serves, and reports about it. Guests are as they
    /// were until it is started again, and so are bridges that it had.
    ///
    /// # Errors
    /// What the signal's descriptor reports.
    pub(super) fn serve(
        &mut self,
        is_ready: bool,
        notices: &Notices,
        (host, bridges): (&mut Host, &mut Bridges),
        claim: &Claim,
    ) -> io::Result<()> {
        if self.hangup.take()? {
            self.is_wanted = true;
            notices.reloading();
        }
        while let Some(outcome) = is_ready.then(|| self.turn()).flatten() {
            if let Outcome::InForce(described, keep) = outcome {
                let next = host.taking_over(&described);
                *host = Host { vhosts: described.vhosts, refused: None, ..next };
                if let Err(error) = claim.write_description(host) {
                    tracing::warn!("{error:#}: the next backend has the description before this");
                }
                bridges.add_new(&host.bridges);
                keep.keep();
            }
            notices.reloaded();
        }
        Ok(())
    }

    /// Has tenants' processes take over the description, if the signal asks for that, once
    /// nothing else of theirs is being changed.
    ///
    /// # Errors
    /// What the signal's descriptor reports.
    pub(super) fn serve_isolated(&mut self, isolation: &mut Isolation) -> io::Result<()> {
        if self.hangup.take()? {
            self.is_wanted = true;
            isolation.reloading();
        }
        if isolation.is_changing() || !std::mem::take(&mut self.is_wanted) {
            return Ok(());
        }
        match description::read_again(&self.origin.file, self.origin.usage) {
            Ok((content, host)) => {
                isolation.reload(host, Keep { kept: self.kept.clone(), content });
            }
            Err(error) => isolation.refuse_reload(&error.to_string()),
        }
        Ok(())
    }

    /// The descriptors that are readable when there is something to do.
    pub(super) fn wakers(&self) -> [BorrowedFd<'_>; 2] {
        [self.hangup.as_fd(), self.bell.as_fd()]
    }

    /// When to call [`serve`](Reloads::serve) next, even if no descriptor is readable.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.as_ref()?.due
    }

    /// Goes on; returns what became of a description.
    fn turn(&mut self) -> Option<Outcome> {
        self.bell.clear();
        let now = Instant::now();
        let Some(pending) = &mut self.pending else {
            if !std::mem::take(&mut self.is_wanted) {
                return None;
            }
            return self.begin();
        };
        if pending.due.is_some_and(|due| due <= now) {
            pending.due = None;
            self.ask();
            return None;
        }
        match self.outcomes.1.try_recv().ok()? {
            Ok(()) => {
                let Pending { host, keep, .. } = self.pending.take()?;
                Some(Outcome::InForce(Box::new(host), keep))
            }
            // In the opener's own words.
            Err(error) if error.kind() == io::ErrorKind::Other => {
                self.pending = None;
                log_refusal(&error.to_string());
                Some(Outcome::Refused)
            }
            Err(error) => {
                tracing::debug!(%error, "the opener is asked again");
                pending.due = Some(now + RETRY);
                None
            }
        }
    }

    fn begin(&mut self) -> Option<Outcome> {
        match description::read_again(&self.origin.file, self.origin.usage) {
            Ok((content, host)) => {
                let keep = Keep { kept: self.kept.clone(), content };
                self.pending = Some(Pending { host, keep, due: None });
                self.ask();
                None
            }
            Err(error) => {
                log_refusal(&error.to_string());
                Some(Outcome::Refused)
            }
        }
    }

    /// Asks the opener, on a thread of its own.
    fn ask(&self) {
        let Some(Pending { keep, .. }) = &self.pending else { return };
        let request = OpenerRequest::Reload { text: keep.content.clone() };
        let (socket, outcomes, bell) =
            (self.opener.clone(), self.outcomes.0.clone(), Arc::clone(&self.bell));
        thread::spawn(move || {
            let _ = outcomes.send(ask_within(&socket, &request, CHANGE_MAX));
            bell.ring();
        });
    }
}
