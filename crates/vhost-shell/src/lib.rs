//! The shell around the vhost-user session: everything that both ends do with their socket.
//!
//! [`Meeting`] is where connections come from: a socket that a front-end makes, which is dialled
//! when it appears, or one that is made here. [`Connection`] turns a socket into messages and never
//! waits. [`BackendEnd`] owns one session over one socket after another, has a limited turn, and
//! leaves memory, rings and the network to the process around it, which is a [`Device`].
//! [`FrontendEnd`] is the same for the other side, and its process a [`Driver`].
//!
//! A process that may open no socket has an [`Opener`] in another one, which passes connections on.
//!
//! Time is an argument. Read [`BackendEnd`] first.

mod backend;
mod connection;
mod frontend;
mod meeting;
mod opener;

pub use backend::{BackendEnd, Device, Note, State, TURN_READS};
pub use connection::{Broken, Connection, Received};
pub use frontend::{Driver, FrontendEnd, Parts};
pub use meeting::{Meeting, Mode, Place};
pub use opener::{Opener, Turn, Wanted};
