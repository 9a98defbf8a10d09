//! Checks whether anything is left of a host that has ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_net::Netlink;

use crate::host::ProcessRecord;

/// Kinds of namespaces that a host makes.
const NAMESPACES: [&str; 2] = ["net", "user"];

/// How long processes may take that end because another one has: the opener is not waited for.
const ENDING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// What there was before.
pub(super) struct Before {
    links: BTreeSet<String>,
    shared_memory: BTreeSet<String>,
    /// Namespaces that this process is in.
    namespaces: BTreeSet<String>,
}

/// A process of the host, and the namespaces it was in.
pub(super) struct Watched {
    process: ProcessRecord,
    namespaces: BTreeSet<String>,
}

impl Watched {
    pub(super) fn new(process: ProcessRecord) -> Result<Watched> {
        let namespaces = namespaces_of(&process.pid.to_string());
        Ok(Watched { process, namespaces })
    }
}

impl Before {
    pub(super) fn read() -> Result<Before> {
        Ok(Before {
            links: links()?,
            shared_memory: names_in("/dev/shm"),
            namespaces: namespaces_of("self"),
        })
    }

    /// What exists and did not before, once processes have had time to end.
    pub(super) fn leftovers(&self, place: &Path, watched: &[Watched]) -> Result<Vec<String>> {
        let deadline = Instant::now() + ENDING;
        loop {
            let found = self.found(place, watched)?;
            if found.is_empty() || Instant::now() >= deadline {
                return Ok(found);
            }
            thread::sleep(PAUSE);
        }
    }

    fn found(&self, place: &Path, watched: &[Watched]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for Watched { process, .. } in watched {
            if process.is_alive() {
                found.push(format!("process {} ({})", process.pid, process.name));
            }
        }
        let theirs: BTreeSet<&String> =
            watched.iter().flat_map(|watched| &watched.namespaces).collect();
        for pid in names_in("/proc") {
            // A zombie, which has ended and was not waited for yet, holds nothing.
            let is_alive = |pid| ProcessRecord::of("", pid).is_ok_and(|process| process.is_alive());
            if !pid.parse().is_ok_and(is_alive) {
                continue;
            }
            for namespace in namespaces_of(&pid) {
                if theirs.contains(&namespace) && !self.namespaces.contains(&namespace) {
                    found.push(format!("namespace {namespace}, by process {pid}"));
                }
            }
        }
        found.extend(links()?.difference(&self.links).map(|link| format!("interface {link}")));
        let shared_memory = names_in("/dev/shm");
        let new = shared_memory.difference(&self.shared_memory);
        found.extend(new.map(|name| format!("/dev/shm/{name}")));
        if place.exists() {
            found.push(format!("directory {}", place.display()));
        }
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let place = place.to_string_lossy();
        let paths = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7));
        found.extend(
            paths.filter(|path| path.starts_with(&*place)).map(|path| format!("socket {path}")),
        );
        Ok(found)
    }
}

fn links() -> Result<BTreeSet<String>> {
    Ok(Netlink::open()?.links()?.into_iter().map(|link| link.name).collect())
}

/// The names in a directory; none if it cannot be read.
fn names_in(directory: &str) -> BTreeSet<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The namespaces that we may see; other users' processes are not ours.
fn namespaces_of(pid: &str) -> BTreeSet<String> {
    NAMESPACES
        .iter()
        .filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect()
}
