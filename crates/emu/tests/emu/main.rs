//! The broker and its clients, over real sockets, and with real processes where those must die.

mod broker;
mod conformance;
mod domains;
mod host;
mod hostile;
mod killed;
mod runs;
mod vif;
