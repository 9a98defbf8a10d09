//! The kinds of vifs that no toolstack makes, as one type.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::QueueCounters;
use ringway_host::{Session, SessionHost, SessionPlace};
use ringway_tap::TapQueue;
use ringway_vhost::Backend;
use ringway_vhost_shell::SessionSource;
use ringway_virtback::QueuePair;
use rustix::event::PollFlags;

use crate::namespace::NamespaceSession;
use crate::session::{SessionEvent, VhostSession, VhostVif, VifPlace};

/// The sessions of a vif, whichever its kind is.
pub enum VifSession<Q, P> {
    /// Of a virtual machine behind a socket.
    Vhost(Box<VhostSession<Q, P>>),
    /// Of a network namespace.
    Namespace(Box<NamespaceSession<Q, P>>),
}

impl<Q, P: SessionSource> VifSession<Q, P>
where
    TapQueue: Into<Q>,
{
    /// The sessions of a vif, whose connections or devices come from this source.
    ///
    /// # Errors
    /// There are too many sessions.
    pub fn new(
        config: &VhostVif,
        source: P,
        into_queue: impl Fn(QueuePair, &Arc<QueueCounters>) -> Q + 'static,
    ) -> io::Result<Self> {
        Ok(match config.place {
            VifPlace::Socket { .. } => {
                VifSession::Vhost(Box::new(VhostSession::new(config, source, into_queue)?))
            }
            VifPlace::Namespace { .. } => {
                VifSession::Namespace(Box::new(NamespaceSession::new(config, source)))
            }
        })
    }
}

impl<Q, P: SessionSource> VifSession<Q, P> {
    /// What to wait for before the next turn.
    pub fn waker(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            VifSession::Vhost(session) => session.waker(),
            VifSession::Namespace(_) => None,
        }
    }

    /// What has come of such a vif from the process that opens its files, by these.
    pub fn opened(&self, mut files: Vec<OwnedFd>) -> Option<SessionEvent> {
        match self {
            VifSession::Vhost(_) => files.pop().map(SessionEvent::Connected),
            VifSession::Namespace(_) => Some(SessionEvent::Attached(files)),
        }
    }
}

/// Calls a method of whichever kind it is.
macro_rules! of_kind {
    ($session:expr, $it:ident => $call:expr) => {
        match $session {
            VifSession::Vhost($it) => $call,
            VifSession::Namespace($it) => $call,
        }
    };
}

impl<Q, P: SessionSource> Session<Q> for VifSession<Q, P> {
    type Event = SessionEvent;

    fn turn(&mut self, host: &mut impl SessionHost<Q>, now: Instant) -> io::Result<bool> {
        of_kind!(self, it => it.turn(host, now))
    }

    fn on(&mut self, event: SessionEvent, host: &mut impl SessionHost<Q>, now: Instant) {
        of_kind!(self, it => it.on(event, host, now));
    }

    fn close(&mut self, reason: &str, host: &mut impl SessionHost<Q>, now: Instant) {
        of_kind!(self, it => it.close(reason, host, now));
    }

    fn end(&mut self, host: &mut impl SessionHost<Q>, now: Instant) {
        of_kind!(self, it => it.end(host, now));
    }

    fn due(&self) -> Option<Instant> {
        of_kind!(self, it => it.due())
    }

    fn is_serving(&self) -> bool {
        of_kind!(self, it => it.is_serving())
    }

    fn said(&self) -> Option<&Backend> {
        of_kind!(self, it => it.said())
    }

    fn error(&self) -> Option<String> {
        of_kind!(self, it => it.error())
    }

    fn lacks_guest(&self) -> bool {
        of_kind!(self, it => it.lacks_guest())
    }

    fn blank_pairs(&self) -> Vec<u16> {
        of_kind!(self, it => it.blank_pairs())
    }

    fn place(&self) -> SessionPlace {
        of_kind!(self, it => it.place())
    }

    fn may_lose_memory(&self) -> bool {
        of_kind!(self, it => it.may_lose_memory())
    }
}
