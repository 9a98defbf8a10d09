//! A hostile backend: it tells a frontend lies over its rings, the control ring, the keys and the
//! states of one vif.
//!
//! A [`Liar`] lies to any frontend: to an author's own, in whose XenStore `ringway-hostile backend`
//! is a backend, or to ringway's, in a machine within this process ([`trial`]), where everything
//! that the frontend may lose is counted. Read first: [`catalogue`], then [`liar`], then a file of
//! `lies`.

pub mod catalogue;
pub(crate) mod command;
pub mod liar;
mod lies;
pub mod place;
mod subject;
pub mod trial;

pub use catalogue::Lie;
pub use command::lie_on_host;
pub use liar::Liar;
