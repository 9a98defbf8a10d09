//! XenStore: the small shared tree through which domains find each other's devices.
//!
//! It has three parts: the tree and its rules, with no I/O and no clock; a server that speaks the
//! real wire protocol on Unix sockets, so that the stock tools (`xenstore-ls`, `xenstore-watch`, …)
//! work against it through `XENSTORED_PATH`; and a client, over a socket of that server or of a
//! real Xen host, or over a tree in the same process. Dependencies between them go in one direction
//! only. This crate does not know what the keys mean.
//!
//! Read [`Tree`] first.

mod client;
mod connection;
mod error;
mod events;
mod local;
mod path;
mod permissions;
mod quota;
mod rate_limit;
mod request;
mod server;
mod session;
mod socket;
mod store;
mod transaction;
mod transport;
mod tree;
mod watch;

pub use client::{Client, Found, Snapshots, Transaction, Watching};
pub use error::{Lost, Reason, Refusal, XsError, or_refusal, unless_refused};
pub use events::{Events, WatchEvent, Watched};
pub use local::{LocalStore, LocalTransport};
pub use path::domain_path;
pub use permissions::{Permissions, Rights};
pub use quota::Quota;
pub use rate_limit::RateLimit;
pub use ringway_wire::DomId;
pub use ringway_wire::xenstore::Errno;
pub use server::{Server, ServerHandle};
pub use session::SessionId;
pub use socket::Socket;
pub use transport::{Reply, Request, Transport};
pub use tree::Tree;
