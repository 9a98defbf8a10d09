//! The building blocks of experiments and measurements: network namespaces, child processes, and
//! existing tools.
//!
//! - [`launcher`]: starts processes, also in the [`namespace`] of another process; each is a
//!   [`child`] that never outlives this program, and a [`stop`] says when waiting ends.
//! - [`veth`]: connects namespaces by a bridge.
//! - [`host`]: ringway itself with its guests. [`ovs`]: Open vSwitch.
//! - [`tools`]: make load and report what they measured.
//! - [`machine`]: describes the computer. [`cpu_time`]: what it uses, and whether it is quiet.
//!   [`scratch`]: a directory for temporary files.
//!
//! Each namespace, process and directory belongs to a value and ends with it.
//!
//! Nothing here knows a study or decides what is measured, and nothing is created in the network
//! namespace of the user's own processes.
//!
//! A program that uses this crate is started again as its own parts: see [`part`]. Read first:
//! [`launcher::Launcher`], then [`namespace::Namespace`].

pub mod child;
pub mod cpu_time;
pub mod host;
pub mod launcher;
pub mod machine;
pub mod namespace;
pub mod ovs;
pub mod part;
pub mod scratch;
pub mod stop;
pub mod tools;
pub mod veth;
