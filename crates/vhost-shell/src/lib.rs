//! The shell around the vhost-user session: all socket work that both ends need.
//!
//! [`Endpoint`] provides connections: it dials a socket that a front-end creates, as soon as it
//! appears, or listens on one of its own. [`Connection`] turns a socket into messages and never
//! blocks. [`BackendEnd`] owns one session over one socket after another, takes turns of bounded
//! length, and leaves memory, rings and the network to the process around it, a [`Device`].
//! [`FrontendEnd`] is the same for the other side, with a [`Driver`].
//!
//! A process that may open no socket has an [`Opener`] in another process, which passes it
//! connections; it has them from a [`PassedOn`].
//!
//! Time is an argument. Read [`BackendEnd`] first.

mod backend;
mod connection;
mod endpoint;
mod frontend;
mod namespaces;
mod opener;
mod passed_on;
mod socket_file;
mod trusted_path;

pub use backend::{BackendEnd, Device, Note, State, TURN_READS};
pub use connection::{Broken, Connection, PART_MAX, Received};
pub use endpoint::{ConnectionSource, Endpoint, Mode, Obstacle};
pub use frontend::{Driver, FrontendEnd, Parts};
pub use opener::{Opener, Outcome, Reloaded, Turn, VifNamespace, VifSocket};
pub use passed_on::{PassedOn, SessionSource};
pub use socket_file::{LISTENED_AT, SocketGroup};
