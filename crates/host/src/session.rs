//! What a host and the session of a virtio vif, or of a network namespace, ask of each other.
//!
//! A [`Session`] has the socket of a front-end, the memory of its guest and its rings; that of a
//! namespace has the queues of a network device in their place. What is served, when and with which
//! rules is decided by a [`SessionHost`], which a session informs of every change.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{OffloadCaps, QueueCounters};
use ringway_vhost::Backend;
use ringway_vhost::backend::{Negotiated, Offer};

/// One session after another with front-ends of a virtio vif, at one place, whose pairs of rings
/// become queues of type `Q`.
pub trait Session<Q> {
    /// What it learns from elsewhere in its process.
    type Event: Debug;

    /// Does pending work, within bounds. Returns whether there may be more.
    ///
    /// # Errors
    /// No front-end can connect any more.
    fn turn(&mut self, host: &mut impl SessionHost<Q>, now: Instant) -> io::Result<bool>;

    /// Handles what it learns from elsewhere.
    fn on(&mut self, event: Self::Event, host: &mut impl SessionHost<Q>, now: Instant);

    /// Disconnects the front-end for this reason of the host's. It may reconnect.
    fn close(&mut self, reason: &str, host: &mut impl SessionHost<Q>, now: Instant);

    /// Disconnects the front-end because its vif was removed.
    fn end(&mut self, host: &mut impl SessionHost<Q>, now: Instant);

    /// When to give it a turn even without an event.
    fn due(&self) -> Option<Instant>;

    /// Whether its guest is served.
    fn is_serving(&self) -> bool;

    /// What was said in the present session, if there is one in which something is.
    fn said(&self) -> Option<&Backend>;

    /// Why nothing is served, if so, with the remedy.
    fn error(&self) -> Option<String>;

    /// Whether the reason is only that its guest is not there: that is off, starts or is paused.
    fn lacks_guest(&self) -> bool;

    /// Pairs that are served and whose rings were all zeros when their guest last kicked.
    fn blank_pairs(&self) -> Vec<u16>;

    /// Where its guest is.
    fn place(&self) -> SessionPlace;

    /// Whether the front-end may truncate memory of its guest, because a file is not sealed.
    fn may_lose_memory(&self) -> bool;
}

/// Where a guest is, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionPlace {
    /// Behind a socket.
    Socket {
        /// Its path.
        path: String,
        /// Which end creates it: `client` if the front-end does, `server` if the backend does.
        mode: &'static str,
    },
    /// In a network namespace.
    Namespace {
        /// The file of the namespace.
        path: String,
        /// The network device there.
        device: String,
    },
}

/// A virtio vif, as its session sees it.
pub trait SessionHost<Q> {
    /// What to offer to the front-end that has connected, which is this process if that is known.
    fn offer(&mut self, front_end: Option<u32>) -> Offer;

    /// A pair is to be served from [`SessionHost::apply_changes`] on, and must not be served until
    /// then. On one that is not enabled, what its guest transmits is dropped.
    fn start(&mut self, pair: u16, is_enabled: bool, rings: &mut impl Rings<Q>);

    /// A pair must not be served any more.
    fn stop(&mut self, pair: u16, rings: &mut impl Rings<Q>);

    /// All changes of a turn are known.
    ///
    /// # Errors
    /// Why the pairs cannot be served, as text.
    fn apply_changes(&mut self, rings: &mut impl Rings<Q>) -> Result<(), String>;

    /// The network must learn that a guest with this address is here.
    fn announce(&mut self, mac: [u8; 6]);

    /// The front-end and its guest have negotiated this.
    fn negotiated(&mut self, negotiated: Negotiated);

    /// The connection is closed.
    fn reset(&mut self, rings: &mut impl Rings<Q>);

    /// The front-end has done this, for the log.
    fn log(&mut self, what: &str);

    /// Why the front-end is not served any more, for the log.
    fn log_end(&mut self, why: &str);
}

/// The rings of a guest.
pub trait Rings<Q> {
    /// A queue over a pair, and the work that its guest may be left with.
    ///
    /// # Errors
    /// Its rings or its memory are invalid, or this host lacks resources.
    fn queue(&mut self, pair: u16, counters: &Arc<QueueCounters>) -> io::Result<(Q, OffloadCaps)>;

    /// All queues were detached: their pairs continue later where these stopped.
    fn taken_back(&mut self);
}
