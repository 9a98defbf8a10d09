//! What honest guests and the backend are like while something happens.

pub(crate) mod backend;
pub(crate) mod burner;
pub(crate) mod ping;
pub(crate) mod tcp;
