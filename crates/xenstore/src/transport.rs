//! What carries a client's requests to a XenStore.

use ringway_wire::xenstore::{Errno, Op};

use crate::error::Lost;
use crate::events::Events;

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What it is about.
    pub op: Op,
    /// The transaction that it is part of; 0 if it is in none.
    pub tx: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// The store's reply: a payload, or the reason for a refusal.
pub type Reply = Result<Vec<u8>, Errno>;

/// A way to a XenStore: a descriptor that speaks the wire protocol ([`Socket`](crate::Socket)), or
/// a tree in this process ([`Local`](crate::Local)).
pub trait Transport {
    /// Sends one request and waits for the reply. Watch events that arrive first are kept in
    /// `events`.
    ///
    /// # Errors
    /// If the store is gone.
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost>;

    /// Makes several requests, none of which depends on the reply to another, and waits for all
    /// replies, which are in the same order. A [`Socket`](crate::Socket) of a daemon sends them
    /// together: where CPU time is short, most of the time of a request is the wait until the store
    /// has a turn. The kernel's device takes them one by one.
    ///
    /// # Errors
    /// If the store is gone.
    fn requests(
        &mut self,
        requests: &[Request<'_>],
        events: &mut Events,
    ) -> Result<Vec<Reply>, Lost> {
        requests.iter().map(|request| self.request(*request, events)).collect()
    }

    /// Moves watch events that have arrived to `events`, a bounded number of them. Does not block.
    ///
    /// # Errors
    /// If the store is gone.
    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost>;
}
