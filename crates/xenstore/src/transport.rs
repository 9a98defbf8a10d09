//! What carries a client's requests to a XenStore.

use ringway_wire::xenstore::{Errno, Op};

use crate::error::Lost;
use crate::events::Events;

/// A way to a XenStore: a descriptor that speaks the wire protocol ([`Socket`](crate::Socket)), or
/// a tree in this process ([`Local`](crate::Local)).
pub trait Transport {
    /// Sends one request, in transaction `tx` or outside of any if that is 0, and waits for the
    /// reply. Watch events that arrive first are kept in `events`.
    ///
    /// The inner result is the store's reply: a payload, or the reason for a refusal.
    ///
    /// # Errors
    /// If the store is gone.
    fn request(
        &mut self,
        op: Op,
        tx: u32,
        payload: &[u8],
        events: &mut Events,
    ) -> Result<Result<Vec<u8>, Errno>, Lost>;

    /// Moves watch events that have arrived to `events`, a bounded number of them. Does not block.
    ///
    /// # Errors
    /// If the store is gone.
    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost>;
}
