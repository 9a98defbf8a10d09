//! Pings from an honest guest, with its kernel's ping.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use ringway_rig::child::Child;
use ringway_rig::launcher::Launcher;

/// Seconds between two pings.
const INTERVAL: &str = "0.02";
const PER_SECOND: f64 = 50.0;
/// How long to wait for the last reply, in seconds.
const LINGER: u64 = 2;
/// Extra time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The results of pings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Replies {
    pub(crate) sent: u32,
    pub(crate) received: u32,
    /// The slowest reply, in milliseconds.
    pub(crate) slowest_ms: f64,
}

impl Replies {
    pub(crate) fn loss_percent(self) -> f64 {
        let lost = self.sent.saturating_sub(self.received);
        100.0 * f64::from(lost) / f64::from(self.sent.max(1))
    }

    /// Combines two series.
    pub(crate) fn and(self, other: Replies) -> Replies {
        Replies {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            slowest_ms: self.slowest_ms.max(other.slowest_ms),
        }
    }
}

/// Running pings.
pub(crate) struct Pings(Child, Duration);

impl Pings {
    /// Pings for `length`, from the namespace of a process.
    pub(crate) fn start(
        launcher: &Launcher,
        from: u32,
        to: Ipv4Addr,
        length: Duration,
    ) -> Result<Pings> {
        let count = (length.as_secs_f64() * PER_SECOND).max(1.0).round();
        let mut command = launcher.command_in(from, "ping");
        command.args(["-n", "-q", "-i", INTERVAL, "-c", &count.to_string()]);
        command.args(["-W", &LINGER.to_string(), &to.to_string()]).env("LC_ALL", "C");
        Ok(Pings(launcher.start("ping", command)?, length))
    }

    /// Waits for the last reply.
    pub(crate) fn finish(self) -> Result<Replies> {
        let Pings(child, length) = self;
        // Its exit status reports that all were lost, and so does its summary.
        let ended = child.ended(length + Duration::from_secs(LINGER) + PATIENCE)?;
        parse(&ended.output).with_context(|| format!("ping said: {}", ended.output.trim()))
    }
}

fn parse(summary: &str) -> Option<Replies> {
    let line = summary.lines().find(|line| line.contains("packets transmitted"))?;
    let mut parts = line.split(", ");
    let number = |part: &str| part.split(' ').next()?.parse().ok();
    let (sent, received) = (number(parts.next()?)?, number(parts.next()?)?);
    let times = summary.lines().find_map(|line| line.split_once("mdev = "));
    let slowest = times.and_then(|(_, times)| times.split('/').nth(2)?.parse().ok());
    Some(Replies { sent, received, slowest_ms: slowest.unwrap_or(0.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_with_and_without_replies() {
        let all = "PING 10.77.0.2 (10.77.0.2) 56(84) bytes of data.\n\n--- 10.77.0.2 ping \
                   statistics ---\n50 packets transmitted, 49 received, 2% packet loss, time 9ms\n\
                   rtt min/avg/max/mdev = 0.051/0.062/7.113/0.011 ms\n";
        let replies = parse(all).expect("it can be read");
        assert_eq!(replies, Replies { sent: 50, received: 49, slowest_ms: 7.113 });
        assert!((replies.loss_percent() - 2.0).abs() < 1e-9);
        let none = "5 packets transmitted, 0 received, +5 errors, 100% packet loss, time 81ms\n\n";
        let replies = parse(none).expect("it can be read");
        assert_eq!((replies.sent, replies.received), (5, 0));
        assert_eq!(parse("ping: connect: Network is unreachable"), None);
    }
}
