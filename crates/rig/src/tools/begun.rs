//! Streams that must run before the measured seconds begin.
//!
//! On a busy machine a client may take seconds from its start to its first byte. Counters that are
//! read before that are of seconds in which nothing was sent.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::child::{Child, PartError};
use crate::launcher::Launcher;

/// The longest wait.
// waits: the measurement then begins all the same, and its counters show the gap.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of a stream's control connection, at most: more than that is the stream itself.
const CONTROL_BYTES_MAX: u64 = 64 << 10;

/// What a network namespace had sent before the clients in it started.
pub(super) struct Sender {
    /// A process of the namespace.
    pid: u32,
    bytes: u64,
    /// Streams that it is to send.
    streams: u64,
}

/// Counts the streams of each namespace, and what it has sent so far.
pub(super) fn before(pids: impl Iterator<Item = u32>) -> Vec<Sender> {
    let mut senders: Vec<Sender> = Vec::new();
    for pid in pids {
        match senders.iter_mut().find(|sender| sender.pid == pid) {
            Some(sender) => sender.streams += 1,
            None => senders.push(Sender { pid, bytes: sent(pid), streams: 1 }),
        }
    }
    senders
}

/// Waits until every namespace has sent more than control connections do. Returns early when a
/// client has ended: its output says why.
pub(super) fn wait_for(
    launcher: &Launcher,
    clients: &[(Child, String)],
    senders: &[Sender],
) -> Result<(), PartError> {
    let deadline = Instant::now() + PATIENCE;
    let has_begun = |one: &Sender| {
        sent(one.pid).saturating_sub(one.bytes) > one.streams.saturating_mul(CONTROL_BYTES_MAX)
    };
    while !senders.iter().all(has_begun) && Instant::now() < deadline {
        if launcher.stop().is_due() {
            return Err(PartError::Interrupted);
        }
        if clients.iter().any(|(client, _)| client.has_ended()) {
            return Ok(());
        }
        // waits: it counts again until all have sent.
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Bytes that the namespace of a process has sent by its interfaces; zero if the process has ended.
fn sent(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    sent_by_interfaces(&text)
}

fn sent_by_interfaces(table: &str) -> u64 {
    let bytes_of = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let bytes = counters.split_whitespace().nth(TX_BYTES)?.parse::<u64>().ok()?;
        (name.trim() != "lo").then_some(bytes)
    };
    table.lines().filter_map(bytes_of).fold(0, u64::saturating_add)
}

/// The column of sent bytes in `/proc/PID/net/dev`, behind the name.
const TX_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_not_counted() {
        let table = "Inter-|   Receive                          |  Transmit\n \
             face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop \
             fifo colls carrier compressed\n    \
             lo: 500 5 0 0 0 0 0 0 500 5 0 0 0 0 0 0\n  \
             eth0: 70 1 0 0 0 0 0 0 4200 3 0 0 0 0 0 0\n  \
             eth1:0 0 0 0 0 0 0 0 42 1 0 0 0 0 0 0\n";
        assert_eq!(sent_by_interfaces(table), 4242);
        assert_eq!(sent_by_interfaces("eth0: 1 2 3\n"), 0);
    }

    #[test]
    fn streams_of_one_namespace_are_counted_together() {
        let own = std::process::id();
        let senders = before([own, own, u32::MAX].into_iter());
        let streams: Vec<u64> = senders.iter().map(|sender| sender.streams).collect();
        assert_eq!(streams, [2, 1]);
    }
}
