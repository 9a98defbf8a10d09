//! What a hostile backend does: one function per lie.

pub(crate) mod control;
pub(crate) mod events;
pub(crate) mod keys;
pub(crate) mod received;
pub(crate) mod sent;
pub(crate) mod states;
