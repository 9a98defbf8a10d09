//! Ways from one network namespace to another. Whatever is measured between namespaces is measured
//! on each of them.

mod namespaces;
mod relay;
mod ringway;
mod veth;

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::Result;

use crate::child::program;
use crate::options::Options;
use crate::report::Report;
pub(crate) use namespaces::{HOLD_VERB, hold};
pub(crate) use relay::{RELAY_VERB, relay};
pub(crate) use ringway::Ringway;

/// Addresses of the two ends, in the benchmarking range (RFC 2544).
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Bits of their network.
const PREFIX_LEN: u8 = 24;

/// A way that can be built.
pub(crate) trait Path {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// Builds it; it is gone when the result is dropped.
    ///
    /// # Errors
    /// What stands in the way.
    fn open(&self) -> Result<Box<dyn OpenPath>>;
}

/// A way that is there.
pub(crate) trait OpenPath {
    /// A process in the namespace of one of the two ends, 0 or 1.
    fn pid(&self, end: usize) -> u32;

    /// A command in that namespace, to which arguments can be added.
    fn command(&self, end: usize, name: &str) -> Result<Command> {
        let mut command = program("nsenter")?;
        command.args(["-t", &self.pid(end).to_string(), "-n", "--", name]);
        Ok(command)
    }

    /// The address of an end.
    fn address(&self, end: usize) -> Ipv4Addr {
        ADDRESSES[end]
    }
}

/// All ways that exist here, ringway first; tells the report about the others.
pub(crate) fn all(
    section: &'static str,
    options: &Options,
    report: &mut Report,
) -> Vec<Box<dyn Path>> {
    let mut paths: Vec<Box<dyn Path>> = Vec::new();
    match Ringway::find(options.ringway.as_deref()) {
        Ok(path) => paths.push(Box::new(path)),
        Err(missing) => report.skip(section, "ringway", &missing),
    }
    paths.push(Box::new(relay::Relay));
    paths.push(Box::new(veth::VethBridge));
    paths
}
