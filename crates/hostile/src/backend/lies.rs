//! What a hostile backend does: one function per lie.

pub(crate) mod received;
pub(crate) mod sent;
