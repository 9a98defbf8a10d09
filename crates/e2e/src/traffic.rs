//! TCP between guests, and its results.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::host::{Host, Running, SOON, send, text_of, wait_for};

/// The seconds of a transfer that the test stops when it has seen what it wants.
pub const UNTIL_STOPPED: u32 = 3600;
/// Bytes that show that a transfer goes on.
const PROGRESS: u64 = 1 << 20;
/// How iperf3's report of a connection begins that was intact when the test stopped it.
const STOPPED: &str = "interrupt - the client has terminated";

/// A running transfer.
pub struct Iperf {
    client: Running,
    /// The name of the receiver, and the address of the sender.
    to: String,
    from: String,
    _server: Running,
    report: PathBuf,
    errors: PathBuf,
    limit: Duration,
}

impl Iperf {
    /// One guest receives from another for this many seconds.
    pub fn start(host: &Host, to: &str, from: (&str, &str), seconds: u32) -> Iperf {
        Iperf::start_with(host, to, from, seconds, &[])
    }

    /// With more options for the client.
    pub fn start_with(
        host: &Host,
        to: &str,
        (from, address): (&str, &str),
        seconds: u32,
        options: &[&str],
    ) -> Iperf {
        // A kernel that gets no reply to three ARP requests, a second apart, refuses to connect.
        host.ping(to, address);
        let path = |kind: &str| host.file(&format!("iperf-{to}-{from}-{kind}"));
        let (listening, report, errors) = (path("server"), path("report"), path("errors"));
        let mut command = host.in_guest(from, &["iperf3", "-s", "-1", "--forceflush"]);
        let server = Running::start(command.stdout(create(&listening)).stderr(Stdio::null()));
        wait_for("iperf3 to listen", SOON, || {
            fs::read_to_string(&listening).ok().filter(|text| text.contains("listening"))
        });
        let time = seconds.to_string();
        let mut command = host.in_guest(to, &["iperf3", "-R", "-J", "-i", "0.1"]);
        command.args(["-t", &time, "-c", address]).args(options);
        let client = Running::start(command.stdout(create(&report)).stderr(create(&errors)));
        let limit = Duration::from_secs(u64::from(seconds)) + SOON;
        let (to, from) = (to.to_owned(), address.to_owned());
        Iperf { client, to, from, _server: server, report, errors, limit }
    }

    /// Waits until more has arrived over the same connection.
    pub fn expect_progress(&self, host: &Host) {
        // A connection that begins again counts from 0, and never gets there.
        let before = self.received(host);
        host.wait(&format!("progress from {} to {}", self.from, self.to), 3 * SOON, |host| {
            (self.received(host) >= before + PROGRESS).then_some(())
        });
    }

    /// Bytes that have arrived over its connections, as the kernel of the receiver counts them.
    fn received(&self, host: &Host) -> u64 {
        let output = host.in_guest(&self.to, &["ss", "-tinH", "dst", &self.from]).output();
        let text = text_of(output.expect("iproute2"), "ss");
        let counts =
            text.split_whitespace().filter_map(|word| word.strip_prefix("bytes_received:"));
        counts.map(|count| count.parse::<u64>().expect("a number")).sum()
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Transfer {
        let status = self.client.wait("iperf3 to end", self.limit);
        let text = fs::read_to_string(&self.report).expect("a report");
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        let report: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(is_intact(status, &report), "iperf3: {status} {} {errors}", report["error"]);
        Transfer { report }
    }

    /// Ends it.
    pub fn stop(mut self) -> Transfer {
        self.limit = 3 * SOON;
        // `ringway guest exec` passes it on.
        send(self.client.0.id(), Signal::TERM);
        self.finish()
    }
}

/// Whether a connection lasted. Version 3.12 ends with the status 0 whatever its report says.
fn is_intact(status: ExitStatus, report: &Value) -> bool {
    report["error"].as_str().map_or(status.success(), |error| error.starts_with(STOPPED))
}

/// A transfer that ended without an error, so its connection survived to the end.
pub struct Transfer {
    report: Value,
}

impl Transfer {
    /// The receiver's throughput in bits per second.
    pub fn rate(&self) -> f64 {
        let rate = &self.report["end"]["sum_received"]["bits_per_second"];
        rate.as_f64().expect("a rate")
    }
}

/// What a vif has carried, by its own counters.
#[derive(Debug)]
pub struct Carried {
    bytes: u64,
    /// From before the counters were read first until they had been read again.
    time: Duration,
}

impl Carried {
    /// Waits until a vif has carried some megabytes more.
    pub fn of(host: &Host, bytes: impl Fn(&Host) -> u64) -> Carried {
        let start = Instant::now();
        let before = bytes(host);
        let bytes = host.wait("some megabytes", 3 * SOON, |host| {
            // The counters of another backend begin at 0.
            let bytes = bytes(host).saturating_sub(before);
            (bytes >= CARRIED).then_some(bytes)
        });
        Carried { bytes, time: start.elapsed() }
    }

    /// Whether so many bytes per second allow it. The time is never less than it took, so however
    /// busy the machine is, that is so if the limit holds.
    pub fn is_within(&self, rate: u64) -> bool {
        let at_least = self.bytes.saturating_sub(BURST_MAX).saturating_mul(1_000_000) / rate;
        self.time >= Duration::from_micros(at_least)
    }
}

/// Bytes that a limit is measured with.
const CARRIED: u64 = 3 << 20;
/// What a limit does not delay: what has accumulated before, and twice what two queues take in at
/// the same time.
const BURST_MAX: u64 = 384 << 10;

/// The longest time in which a guest received no frame, while it is observed.
pub fn longest_silence(host: &Host, guest: &str, watched: Duration) -> Duration {
    let devices = format!("/proc/{}/net/dev", host.pid_of(&format!("guest {guest}")));
    let received = || -> Option<u64> {
        let text = fs::read_to_string(&devices).expect("the guest runs");
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let start = Instant::now();
    let (mut count, mut since, mut longest) = (received(), start, Duration::ZERO);
    // waits: a silence has no end to wait for while nothing arrives.
    while start.elapsed() < watched {
        // waits: the kernel reports no change of these counters.
        std::thread::park_timeout(Duration::from_millis(1));
        let now = received();
        longest = longest.max(since.elapsed());
        if now != count {
            (count, since) = (now, Instant::now());
        }
    }
    longest
}

/// Sends a file from one guest to another over TCP, and returns whether it arrived unchanged.
pub fn send_file(host: &Host, from: &str, to: &str, address: &str, file: &Path) -> bool {
    let arrived = host.file(&format!("arrived-{from}-{to}"));
    let _ = fs::remove_file(&arrived);
    let (listen, connect) = match address.contains(':') {
        true => ("TCP6-LISTEN", format!("TCP6:[{address}]")),
        false => ("TCP4-LISTEN", format!("TCP4:{address}")),
    };
    let listen = format!("{listen}:9000,reuseaddr");
    let open = format!("CREATE:{}", arrived.display());
    let mut command = host.in_guest(to, &["socat", "-u", &listen, &open]);
    let mut receiver = Running::start(&mut command);
    let source = format!("OPEN:{},rdonly", file.display());
    // The other side may not listen yet.
    let connect = format!("{connect}:9000,retry=3000,interval=0.1");
    let mut command = host.in_guest(from, &["socat", "-u", &source, &connect]);
    let errors = host.file(&format!("errors-{from}-{to}"));
    let mut sender = Running::start(command.stderr(create(&errors)));
    let is_sent = sender.wait("the file to be sent", 3 * SOON).success();
    let complaint = || fs::read_to_string(&errors).unwrap_or_default();
    assert!(is_sent, "{from} to {address}: {}", complaint());
    assert!(receiver.wait("the file to arrive", SOON).success(), "{from} to {address}");
    fs::read(&arrived).expect("arrived") == fs::read(file).expect("sent")
}

/// A file of random bytes, for which no checksum is correct by chance.
pub fn random_file(path: &Path, mebibytes: u32) {
    let mut dd = Command::new("head");
    dd.args(["-c", &(mebibytes << 20).to_string(), "/dev/urandom"]).stdout(create(path));
    assert!(dd.status().expect("coreutils").success());
}

fn create(path: &Path) -> File {
    File::create(path).expect("a file can be made in the test's directory")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_report_with_an_error_is_that_of_a_broken_connection_whatever_the_status() {
        let of = |raw, report: &str| {
            let report = serde_json::from_str(report).expect("it is JSON");
            is_intact(ExitStatus::from_raw(raw), &report)
        };
        assert!(of(0, "{}") && !of(1 << 8, "{}"));
        assert!(!of(0, r#"{"error": "control socket has closed unexpectedly"}"#));
        for end in ["", " by signal Terminated(15)"] {
            assert!(of(1 << 8, &format!(r#"{{"error": "{STOPPED}{end}"}}"#)));
        }
    }
}
