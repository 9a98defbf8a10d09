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

    /// Moves watch events that have arrived to `events`, a bounded number of them. Does not block.
    ///
    /// # Errors
    /// If the store is gone.
    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost>;
}
