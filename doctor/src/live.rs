//! Collects everything that checks, the report and the metrics read of this host.

use std::io;
use std::time::Duration;

use crate::check;
use crate::evidence::{self, Piece, Source};
use crate::fact::Fact;
use crate::probe;
use crate::watch::Shown;

/// Takes two samples of this host, `interval` apart.
pub fn collect(interval: Duration) -> Source {
    evidence::collect(interval, &pieces())
}

/// Takes two samples of this host, and probes the paths to some other hosts between them.
///
/// # Errors
/// If a host has no address, which is reported at once, or none that is routable.
pub fn collect_with_paths(interval: Duration, hosts: &[String]) -> io::Result<Source> {
    probe::collect(interval, hosts, &pieces())
}

fn pieces() -> Vec<Piece> {
    let mut pieces = check::pieces();
    pieces.extend(Shown::PIECES);
    pieces
}
