//! Measurements of honest guests and the backend during an attack.

pub(crate) mod backend;
pub(crate) mod burner;
pub(crate) mod ping;
pub(crate) mod tcp;
